"""Plans to look at: `plan_epoch` and what it gives. The loader uses the same plans, from the same function.

inventory, seed, epoch, topology  →  EpochPlan  →  worker inputs, explain(), to_arrow()
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.options import DEFAULT_INTERLEAVE, DEFAULT_SPLIT_BYTES, PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.program import WorkerInput, worker_input
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils._core.uses import group_uses
from torch_dataloader_utils.plan.epoch import ExactPlan
from torch_dataloader_utils.plan.explain import explain_plan
from torch_dataloader_utils.plan.inexact_epoch import InexactPlan
from torch_dataloader_utils.plan.strategy_check import StrategyCall, describe_files, strategy_name

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochPlan:
    """Who reads what in one epoch, or in what remains of it.

    Made by `plan_epoch` and by every loader (`loader.plan`). Computing one rank's part costs that rank alone.
    """

    inventory: Inventory
    details: ExactPlan | InexactPlan = field(repr=False)

    @property
    def epoch(self) -> int:
        """The epoch this plan is for."""
        return self.details.epoch

    @property
    def topology(self) -> Topology:
        """Ranks, workers and batch size."""
        return self.details.topology

    @property
    def is_exact(self) -> bool:
        """Whether all row counts are known, so that steps are equal and resume is exact on any topology."""
        return isinstance(self.details, ExactPlan)

    @property
    def rank_steps(self) -> tuple[int, ...] | None:
        """Batches of every rank under this topology, or None where row counts are not known."""
        return tuple(self.details.rank_steps.tolist()) if isinstance(self.details, ExactPlan) else None

    @property
    def steps(self) -> int | None:
        """Batches of the rank with most of them; with rank_sharding="rows" all ranks have as many."""
        return max(self.rank_steps) if self.rank_steps is not None else None

    @property
    def rank_rows(self) -> tuple[int, ...] | None:
        """Rows that every rank delivers, or None where row counts are not known."""
        return tuple(self.details.rank_rows.tolist()) if isinstance(self.details, ExactPlan) else None

    @property
    def dropped_rows(self) -> int:
        """Rows that drop_last leaves out this epoch, over all ranks."""
        return self.details.dropped_rows if isinstance(self.details, ExactPlan) else 0

    @property
    def repeated_rows(self) -> int:
        """Rows that come a second time because a rank has none left for its last step, over all ranks."""
        return self.details.repeated_rows if isinstance(self.details, ExactPlan) else 0

    @cached_property
    def fingerprint(self) -> str:
        """blake2b (128 bits, hex) of everything this plan is a function of."""
        plan = self.details
        parts = (planning_fingerprint(self.inventory), plan.options, plan.epoch, plan.history, plan.topology)
        return blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    def worker_inputs(self, rank: int) -> tuple[WorkerInput, ...]:
        """What every worker of a rank needs to do its part: its program and the row groups it touches.

        Raises:
            ConfigError: rank not in [0, num_ranks).
        """
        programs = self.details.programs(rank)
        return tuple(worker_input(program, self.inventory, self.details.space) for program in programs)

    def explain(self, max_ranks: int = 16) -> str:
        """The plan as text: ranks × workers with rows, bytes, row groups and imbalance, and what levelling did."""
        return explain_plan(self.details, self.inventory, max_ranks)

    def to_arrow(self, ranks: Sequence[int] | None = None) -> "pa.Table":
        """The plan as a table, one row for each row range that a worker reads, in its reading order.

        Columns: rank, worker, lane, unit, window (-1: not shuffled), path, row_group, start_row, stop_row (live rows
        of the row group), bytes (projected, estimated for parts of a row group).
        """
        import pyarrow as pa

        chosen = range(self.topology.num_ranks) if ranks is None else ranks
        tables = [_rank_table(self, rank) for rank in chosen]
        return pa.concat_tables(tables) if tables else _rank_table(self, 0).slice(0, 0)


def plan_epoch(
    inventory: Inventory,
    *,
    num_ranks: int = 1,
    num_workers: int = 1,
    batch_size: int = 1024,
    shuffle: bool = False,
    seed: int = 42,
    epoch: int = 0,
    drop_last: bool = False,
    split_bytes: int = DEFAULT_SPLIT_BYTES,
    split_rows: int | None = None,
    rank_sharding: str = "rows",
    shuffle_rows: int | None = None,
    interleave: int = DEFAULT_INTERLEAVE,
    num_lanes: int | None = None,
    lane_rows: int | None = None,
    split_strategy: SplitStrategy | None = None,
) -> EpochPlan:
    """The plan of one epoch: a pure function of its arguments.

    Args:
        inventory: what `scan_files` or `scan_iceberg` found.
        num_ranks: training processes. num_workers: lanes of each rank's loader (0 counts as 1).
        batch_size: rows of a batch of one rank.
        shuffle: permute chunks by (seed, epoch).
        seed: any integer, taken modulo 2^64.
        drop_last: only full batches; the plan says how many rows that leaves out.
        split_bytes: projected bytes of a chunk. split_rows: rows of a chunk, wins over bytes.
        rank_sharding: "rows" for equal steps, "chunks" to keep every chunk on one rank.
        shuffle_rows: rows of a shuffle window. interleave: chunks that a window draws from.
        num_lanes, lane_rows: an order that survives a change of topology; see the lanes page of the docs.
        split_strategy: an object with `generate`, instead of the built-in steps.

    Raises:
        ConfigError: arguments out of range, or lanes that do not fit the topology.
    """
    options = PlanOptions(
        split_bytes=split_bytes,
        split_rows=split_rows,
        shuffle=shuffle,
        seed=seed,
        rank_sharding=rank_sharding,  # type: ignore[arg-type]  # checked by PlanOptions
        shuffle_rows=shuffle_rows,
        interleave=interleave,
        num_lanes=num_lanes,
        lane_rows=lane_rows,
        strategy=strategy_name(split_strategy),
    )
    topology = Topology(
        num_ranks=num_ranks, num_workers=max(1, num_workers), batch_size=batch_size, drop_last=drop_last
    )
    position = Position(epoch=epoch, segment=Segment(topology=topology))
    return Planner(inventory=inventory, options=options, strategy=split_strategy).plan(position)


@dataclass(frozen=True, kw_only=True, eq=False)
class Planner:
    """An inventory and options: gives the plan of any position."""

    inventory: Inventory
    options: PlanOptions
    strategy: SplitStrategy | None = None

    @cached_property
    def space(self) -> RowSpace:
        """The numbering of the inventory's rows."""
        return RowSpace.of(self.inventory.groups)

    @cached_property
    def fingerprint(self) -> str:
        """See planning_fingerprint."""
        return planning_fingerprint(self.inventory)

    @cached_property
    def _strategy_call(self) -> StrategyCall | None:
        if self.strategy is None:
            return None
        return StrategyCall(strategy=self.strategy, files=describe_files(self.inventory), space=self.space)

    def plan(self, position: Position) -> EpochPlan:
        """The plan from `position` on."""
        details: ExactPlan | InexactPlan
        if self.space.exact:
            details = ExactPlan(
                space=self.space,
                options=self.options,
                epoch=position.epoch,
                topology=position.segment.topology,
                history=position.history,
                done=position.segment.steps_of(0),
                strategy=self._strategy_call,
            )
        else:
            details = InexactPlan(
                space=self.space,
                options=self.options,
                epoch=position.epoch,
                present=position.segment,
                history=position.history,
                strategy=self._strategy_call,
            )
        return EpochPlan(inventory=self.inventory, details=details)


def planning_fingerprint(inventory: Inventory) -> str:
    """The inventory's fingerprint with the weights that plans depend on; what states are bound to."""
    weights = np.ascontiguousarray(inventory.groups.projected_bytes).tobytes()
    return blake2b(inventory.fingerprint().encode() + weights, digest_size=16).hexdigest()


def _rank_table(plan: EpochPlan, rank: int) -> "pa.Table":
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    space = plan.details.space
    paths = plan.inventory.files.paths
    for worker, program in enumerate(plan.details.programs(rank)):
        for lane, units in enumerate(program.lanes):
            uses = group_uses(units, space.group_start[:-1], space.group_start[1:])
            groups = plan.inventory.groups
            begin = space.group_start[uses.group]
            values = {
                "rank": np.full(len(uses), rank, dtype=np.int32),
                "worker": np.full(len(uses), worker, dtype=np.int32),
                "lane": np.full(len(uses), lane, dtype=np.int32),
                "unit": uses.unit,
                "window": units.window[uses.unit],
                "path": pa.array([paths[file] for file in groups.file[uses.group].tolist()], pa.string()),
                "row_group": groups.ordinal[uses.group],
                "start_row": uses.start,
                "stop_row": uses.stop,
                "bytes": space.bytes_between(begin + uses.start, begin + uses.stop),
            }
            for name, value in values.items():
                columns.setdefault(name, []).append(pa.array(value))
    return pa.table({name: pa.chunked_array(chunks) for name, chunks in columns.items()})
