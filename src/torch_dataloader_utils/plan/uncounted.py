"""The plan of one epoch without row counts: chunks dealt whole, batches until each lane ends."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import UntilExhausted, WorkerProgram
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.assignment import EpochInputs
from torch_dataloader_utils.plan.balance import assign_units, slice_units, worker_order
from torch_dataloader_utils.plan.strategy_call import RankUnits
from torch_dataloader_utils.plan.windows import group_windows


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeGroupAssignment:
    """Deals whole units in windows of whole row groups: sliced to ranks, by LPT to workers, or as a strategy says.

    units: chunks in the epoch's order, or the window units that remain of an epoch.
    given: a strategy's units for every rank and worker, instead of slicing and LPT.
    """

    units: Units
    space: RowSpace
    options: PlanOptions
    epoch: int
    topology: Topology
    given: tuple[RankUnits, ...] | None = None

    def rank(self, rank: int) -> list[Units]:
        """The window units of each worker of a rank."""
        if self.given is not None:
            workers = list(self.given[rank])
        else:
            mine = slice_units(self.units, rank, self.topology.num_ranks)
            order = worker_order(self.topology.num_workers, self.options, self.epoch, rank)
            workers = assign_units(mine, self._weights(mine), order)
        return [self._windows(lane) for lane in workers]

    def _windows(self, lane: Units) -> Units:
        if len(lane) and not lane.is_plain.any():
            return lane
        options = self.options
        return group_windows(lane, self.space.group_start, options.shuffle_rows, options.interleave)

    def _weights(self, units: Units) -> Int64s:
        if units.is_plain.all():
            return self.space.bytes_between(units.start, units.stop)
        windows = units.windows
        pieces = self.space.bytes_between(windows.piece_start, windows.piece_stop)
        weights: Int64s = np.add.reduceat(pieces, windows.offsets[:-1])[units.window]
        return weights


def after_cursor(lane: Units, cursor: Cursor) -> Units:
    """The rest of a worker's lane: its next unit without the rows already delivered, then the later units."""
    finished, rows = cursor
    rest = lane.take(slice(finished, None))
    if rows == 0 or len(rest) == 0:
        return rest
    start = rest.start.copy()
    start[0] += rows
    return Units(start=start, stop=rest.stop, window=rest.window, windows=rest.windows)


def remaining_after(assigned: WholeGroupAssignment, cursors: Sequence[Sequence[Cursor] | None]) -> Units:
    """The rows that no rank has delivered.

    cursors: `cursors[rank][worker]` for the deal's topology; None for a rank that has delivered all its rows.
    """
    parts: list[Units] = []
    for rank, of_rank in enumerate(cursors):
        if of_rank is not None:
            parts.extend(after_cursor(lane, cursor) for lane, cursor in zip(assigned.rank(rank), of_rank, strict=True))
    return Units.concat(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class UncountedAssignment:
    """The `EpochAssignment` without row counts; nothing is balanced, dropped or repeated.

    Raises:
        ConfigError: lanes or buckets, which need row counts.
    """

    inputs: EpochInputs
    counts: None = None

    def __post_init__(self) -> None:
        if self.inputs.options.num_lanes is not None:
            raise ConfigError(
                "lanes= needs exact row counts, and this plan has none: leave count_rows at its default, "
                'or pass count_rows="auto".'
            )
        if self.inputs.options.bucket_by:
            raise ConfigError(
                "token_batches= needs exact row counts, so that windows are whole batches, and this plan has none: "
                'leave count_rows at its default, or pass count_rows="auto".'
            )

    @cached_property
    def _assigned(self) -> WholeGroupAssignment:
        """The row groups under the present topology."""
        inputs, position, given = self.inputs, self.inputs.position, None
        first = position.first_topology
        if inputs.strategy is not None:
            given = inputs.strategy.units(position.epoch, first.num_ranks, first.num_workers)
        assigned = WholeGroupAssignment(
            units=inputs.chunks,
            space=inputs.space,
            options=inputs.options,
            epoch=position.epoch,
            topology=first,
            given=given,
        )
        for segment, following in position.changes():
            rest = remaining_after(assigned, segment.cursors_of(range(segment.topology.num_ranks)))
            assigned = replace(assigned, units=rest, topology=following, given=None)
        return assigned

    def programs(self, rank: int) -> tuple[WorkerProgram, ...]:
        """See EpochAssignment."""
        position, options = self.inputs.position, self.inputs.options
        present, topology = position.segment, position.topology
        topology.check_rank(rank)
        cursors = dict(present.cursors or ()).get(rank, ((0, 0),) * topology.num_workers)
        return tuple(
            WorkerProgram(
                lanes=(after_cursor(lane, cursor),),
                batching=UntilExhausted(batch_rows=topology.batch_size),
                seed=options.seed,
                epoch=position.epoch,
            )
            for lane, cursor in zip(self._assigned.rank(rank), cursors, strict=True)
        )
