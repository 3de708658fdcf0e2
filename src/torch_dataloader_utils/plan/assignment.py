"""The protocol that all kinds of assignments have, what they are made from, and what they count.

row_assignment.py    rows, balanced over ranks and workers; or as a split strategy says
lanes.py             micro-batches of lanes (num_lanes)
token_batches.py     batches under a token budget (max_tokens_per_batch)
uncounted.py         whole row groups, whose rows are not counted

Each begins with a whole epoch (`begin`) and goes on with what remains of it under another topology (`resumed`).
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
    """All that an epoch's assignment depends on.

    chunks: all chunks in this epoch's order, from `order_chunks`. strategy: assigns chunks instead of the built-in
    steps. batches: those of the whole epoch, from `cut_batches`, where the options limit the tokens of a batch.
    """

    space: RowSpace
    options: PlanOptions
    chunks: Units
    position: Position
    strategy: StrategyCall | None = None
    batches: Units | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankCounts:
    """The steps and rows of every rank under one topology, with the steps that are done already.

    steps: of every rank, int64 [num_ranks]. rows: that every rank delivers, repeats not counted, int64 [num_ranks].
    repeats: whether a rank's last step is one row that another batch has too, bool [num_ranks].
    dropped_rows: that drop_last leaves out, over all ranks.
    moved_rows, cuts: rows, and row ranges, that balancing moved between ranks.
    """

    steps: Int64s
    rows: Int64s
    repeats: npt.NDArray[np.bool_]
    dropped_rows: int = 0
    moved_rows: int = 0
    cuts: int = 0


class Assignment(Protocol):
    """Which rows every rank and worker takes under one topology: of a whole epoch, or of what remains of one."""

    @property
    def counts(self) -> RankCounts | None:
        """Steps and rows of every rank; None where row counts are not known."""
        ...

    def programs(self, rank: int, received: Segment) -> tuple[WorkerProgram, ...]:
        """The work that each worker of a rank still has to do; costs no work for the other ranks.

        received: what was received under it.

        Raises:
            ConfigError: rank not in [0, num_ranks), or a topology that this kind of assignment does not fit.
        """
        ...

    def resumed(self, received: Segment, topology: Topology) -> "Assignment":
        """The assignment, under another topology, of the rows that no rank has received under this one.

        Raises:
            ConfigError: this kind of assignment cannot go on from there, or does not fit the topology.
        """
        ...
