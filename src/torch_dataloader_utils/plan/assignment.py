"""The `Assignment` protocol, with its inputs (`EpochInputs`) and its counts (`RankCounts`).

row_assignment.py    rows, balanced over ranks and workers; or as a split strategy says
lanes.py             micro-batches of lanes (num_lanes)
token_batches.py     batches under a token budget (max_tokens_per_batch)
uncounted.py         whole row groups, without row counts

Each kind assigns a whole epoch (`begin`), and the rest of an epoch under another topology (`resumed`).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.units import RowSpace, Units
from torch_dataloader_utils.plan.strategy_call import StrategyCall


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochInputs:
    """Inputs of an epoch's assignment; the assignment depends on nothing else.

    chunks: all chunks in this epoch's order, from `order_chunks`. strategy: assigns chunks instead of the built-in
    steps. batches: all batches of the epoch, from `cut_batches`, if the options limit the tokens of a batch.
    """

    space: RowSpace
    options: PlanOptions
    chunks: Units
    position: Position
    strategy: StrategyCall | None = None
    batches: Units | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankCounts:
    """Steps and rows of every rank under one topology, including the steps that are already done.

    steps: int64 [num_ranks]. rows: rows that each rank delivers, repeats not counted, int64 [num_ranks].
    repeats: bool [num_ranks], true if the rank's last step is one row that another batch has too.
    dropped_rows: rows that drop_last leaves out, over all ranks.
    moved_rows, cuts: number of rows, and of row ranges, that balancing moved between ranks.
    """

    steps: Int64s
    rows: Int64s
    repeats: npt.NDArray[np.bool_]
    dropped_rows: int = 0
    moved_rows: int = 0
    cuts: int = 0


class Assignment(Protocol):
    """Rows of every rank and worker under one topology, for a whole epoch or for the rest of an epoch."""

    @property
    def counts(self) -> RankCounts | None:
        """Steps and rows of every rank; None if row counts are not known."""
        ...

    def programs(self, rank: int, received: Segment) -> tuple[WorkerProgram, ...]:
        """Return the work that each worker of a rank still has to do. Costs no work for the other ranks.

        received: the steps that were received under this assignment.

        Raises:
            ConfigError: rank is not in [0, num_ranks), or this kind of assignment does not fit the topology.
        """
        ...

    def resumed(self, received: Segment, topology: Topology) -> "Assignment":
        """Return the assignment of the rows that no rank has received, under another topology.

        received: the steps that were received under this assignment.

        Raises:
            ConfigError: this kind of assignment cannot be resumed after `received`, or does not fit the topology.
        """
        ...
