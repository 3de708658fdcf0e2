"""The assignment of rows whose counts are known.

    chunk  →  order  →  slice  →  balance  →  assign  →  balance  →  windows      a whole epoch
    remaining rows  →  cut into equal parts                                       after each change of topology

`DividedRows` says which rows each rank and worker of one topology reads, and how many rows each batch has. Its kinds
are `SlicedChunks`, `StrategyRows` and `RemainingRows`. `RowAssignment` makes programs from the divided rows. Pure: two
processes with the same inputs have the same assignment.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from torch_dataloader_utils._core.division import even_counts
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Segment
from torch_dataloader_utils._core.program import SingleLane, WorkerProgram
from torch_dataloader_utils._core.token_budget import EqualBuckets
from torch_dataloader_utils._core.units import RowSpace, Units
from torch_dataloader_utils.plan.assignment import EpochInputs, RankCounts
from torch_dataloader_utils.plan.balance import (
    Transfers,
    assign_owners,
    assign_units,
    balance_workers,
    balanced_list,
    even_targets,
    plan_transfers,
    rows_per_slice,
    slice_units,
    worker_order,
)
from torch_dataloader_utils.plan.chunks import keep_span, part_of_units
from torch_dataloader_utils.plan.steps import StepSizes, batches_of_worker, count_steps, spans_left, step_sizes
from torch_dataloader_utils.plan.strategy_call import RankUnits
from torch_dataloader_utils.plan.windows import shuffle_windows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankRows:
    """Rows of one rank: each worker's rows in order, the sizes of the batches, and the rows that are left out."""

    workers: tuple[Units, ...]
    sizes: StepSizes
    dropped: Units


class DividedRows(Protocol):
    """Rows of an epoch, or of the rest of an epoch, divided among the ranks and workers of one topology."""

    @property
    def topology(self) -> Topology:
        """Ranks, workers and batch size."""
        ...

    @property
    def steps(self) -> Int64s:
        """Steps of every rank, int64 [num_ranks]."""
        ...

    @property
    def rank_rows(self) -> Int64s:
        """Rows of every rank before rows are dropped, int64 [num_ranks]."""
        ...

    @property
    def transfers(self) -> Transfers:
        """Row ranges that move between ranks."""
        ...

    @property
    def first_unit(self) -> Units:
        """First unit of the epoch, or no unit if the epoch has no rows. A rank without rows repeats its first row."""
        ...

    def rank(self, rank: int) -> RankRows:
        """Return the rows of one rank. Costs no work for the other ranks."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SlicedChunks:
    """Chunks of a whole epoch: sliced, balanced, assigned, balanced inside the rank, cut into windows.

    units: the epoch's chunks in order, one group of ranks (see `PlanOptions.rank_groups`) after another. Every step
        here is done inside each group.
    """

    units: Units
    space: RowSpace
    options: PlanOptions
    epoch: int
    topology: Topology

    @property
    def _is_balanced(self) -> bool:
        return self.options.rank_sharding == "rows"

    @property
    def _num_groups(self) -> int:
        return self.options.rank_groups(self.topology.num_ranks)

    @property
    def _group_ranks(self) -> int:
        return self.topology.num_ranks // self._num_groups

    @cached_property
    def _group_units(self) -> list[Units]:
        bounds = part_of_units(self.units, self._num_groups).searchsorted(np.arange(self._num_groups + 1))
        return [self.units.take(slice(start, stop)) for start, stop in pairwise(bounds.tolist())]

    @cached_property
    def _sliced_rows(self) -> Int64s:
        return np.concatenate([rows_per_slice(units, self._group_ranks) for units in self._group_units])

    @cached_property
    def rank_rows(self) -> Int64s:
        """See DividedRows."""
        return even_targets(self._sliced_rows, self._num_groups) if self._is_balanced else self._sliced_rows

    @cached_property
    def transfers(self) -> Transfers:
        """See DividedRows."""
        return plan_transfers(self._sliced_rows, self.rank_rows, self._num_groups)

    @cached_property
    def steps(self) -> Int64s:
        """See DividedRows."""
        return count_steps(self.rank_rows, self.topology, equal=self._is_balanced)

    @property
    def first_unit(self) -> Units:
        """See DividedRows."""
        return self.units.take(slice(0, 1))

    def rank(self, rank: int) -> RankRows:
        """See DividedRows."""
        units = balanced_list(rank, self._sliced, self.transfers)
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        kept, dropped = units.split_at(sizes.rows)
        weights = self.space.bytes_between(kept.start, kept.stop)
        order = worker_order(self.topology.num_workers, self.options, self.epoch, rank)
        lanes = balance_workers(assign_units(kept, weights, order), sizes)
        workers = tuple(shuffle_windows(lane, self.options, self.topology.batch_size) for lane in lanes)
        return RankRows(workers=workers, sizes=sizes, dropped=dropped)

    def _sliced(self, rank: int) -> Units:
        group, index = divmod(rank, self._group_ranks)
        return slice_units(self._group_units[group], index, self._group_ranks)


@dataclass(frozen=True, kw_only=True, eq=False)
class RemainingRows:
    """Rest of an epoch under a new topology.

    units: the remaining rows in canonical order (see `remaining_units`). The rows are cut into one row range a worker,
    in the order of ranks and workers. So at most one unit is cut for each worker, and a worker finishes one old lane
    before it opens the next. Ranks get equal rows for any `rank_sharding`: a resumed epoch has equal steps.
    """

    units: Units
    topology: Topology

    @property
    def transfers(self) -> Transfers:
        """No transfers: the ranges are equal already."""
        return Transfers.of([])

    @cached_property
    def rank_rows(self) -> Int64s:
        """See DividedRows."""
        return even_counts(self.units.num_rows, self.topology.num_ranks)

    @cached_property
    def steps(self) -> Int64s:
        """See DividedRows."""
        return count_steps(self.rank_rows, self.topology, equal=True)

    @property
    def first_unit(self) -> Units:
        """See DividedRows."""
        return self.units.take(slice(0, 1))

    def rank(self, rank: int) -> RankRows:
        """See DividedRows."""
        mine = self._range(int(self.rank_rows[:rank].sum()), int(self.rank_rows[rank]))
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        workers = []
        for worker in range(self.topology.num_workers):
            lane, mine = mine.split_at(sizes.of_worker(worker, self.topology.num_workers).rows)
            workers.append(lane)
        return RankRows(workers=tuple(workers), sizes=sizes, dropped=mine)

    def remaining(self, received: Segment) -> Units:
        """Return `remaining_units`. Ranks with equal rows and steps have equal spans left; each is computed once."""
        ranks = [(rows, received.steps_of(rank)) for rank, rows in enumerate(self.rank_rows.tolist())]
        spans = {each: np.array(self._spans_left(*each)) for each in set(ranks)}
        begins = (np.cumsum(self.rank_rows) - self.rank_rows).tolist()
        left = np.concatenate([spans[each] + begin for each, begin in zip(ranks, begins, strict=True)])
        return self.units.spans(left[:, 0], left[:, 1])

    def _spans_left(self, rows: int, steps: int) -> list[tuple[int, int]]:
        """Return the spans that a rank with `rows` rows has left: `spans_left` of its workers, then dropped rows."""
        sizes = step_sizes(rows, int(self.steps[0]), self.topology.batch_size)
        return [*spans_left(sizes, steps, self.topology.num_workers), (sizes.rows, rows)]

    @cached_property
    def _unit_ends(self) -> Int64s:
        """Number of rows up to the end of each unit, int64 [units]."""
        return np.cumsum(self.units.rows)

    def _range(self, begin: int, rows: int) -> Units:
        """Return `rows` rows, beginning with row `begin` of the remaining rows. Looks only at units with these rows."""
        first = int(np.searchsorted(self._unit_ends, begin, side="right"))
        last = int(np.searchsorted(self._unit_ends, begin + rows, side="left"))
        before = int(self._unit_ends[first - 1]) if first else 0
        return self.units.take(slice(first, last + 1)).split_at(begin - before)[1].split_at(rows)[0]


def remaining_lanes(mine: RankRows, steps: int) -> list[Units]:
    """Return the rows of each worker that its rank has not received after `steps` steps."""
    count = len(mine.workers)
    return [lane.split_at(mine.sizes.rows_received(steps, w, count))[1] for w, lane in enumerate(mine.workers)]


def remaining_units(divided: DividedRows, received: Segment) -> Units:
    """Return the rows that no rank has received, in canonical order.

    The order: for each rank, the rest of each worker's lane, then the rows that the rank would have dropped. The rest
    of a lane stays together, so a worker that takes a range of the remaining rows opens few row groups.
    """
    if isinstance(divided, RemainingRows):  # all ranks at once: a long log would need thousands of planned ranks
        return divided.remaining(received)
    parts = []
    for rank in range(divided.topology.num_ranks):
        mine = divided.rank(rank)
        parts.extend([*remaining_lanes(mine, received.steps_of(rank)), mine.dropped])
    return Units.concat(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyRows:
    """Units that a strategy chose. Rows move between ranks and workers only as far as equal steps need it.

    chosen: every rank's units, worker by worker. is_shared: true if every rank has the same units (a strategy without
        rank arguments); then no rows move between ranks.
    """

    chosen: tuple[RankUnits, ...]
    is_shared: bool
    space: RowSpace
    options: PlanOptions
    topology: Topology

    @cached_property
    def _chosen_rows(self) -> Int64s:
        return np.array([sum(units.num_rows for units in workers) for workers in self.chosen], dtype=np.int64)

    @cached_property
    def rank_rows(self) -> Int64s:
        """See DividedRows."""
        is_balanced = self.options.rank_sharding == "rows" and not self.is_shared
        return even_targets(self._chosen_rows) if is_balanced else self._chosen_rows

    @cached_property
    def transfers(self) -> Transfers:
        """See DividedRows."""
        return plan_transfers(self._chosen_rows, self.rank_rows)

    @cached_property
    def steps(self) -> Int64s:
        """See DividedRows."""
        return count_steps(self.rank_rows, self.topology, equal=self.options.rank_sharding == "rows")

    @property
    def first_unit(self) -> Units:
        """See DividedRows."""
        return Units.concat([units for workers in self.chosen for units in workers]).take(slice(0, 1))

    def rank(self, rank: int) -> RankRows:
        """See DividedRows."""
        units = balanced_list(rank, lambda i: Units.concat(self.chosen[i]), self.transfers)
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        owner = self._owners(rank, units)
        kept, dropped = units.split_at(sizes.rows)
        owner = owner[: len(kept)]
        lanes = [kept.take(np.flatnonzero(owner == worker)) for worker in range(self.topology.num_workers)]
        balanced = balance_workers(lanes, sizes)
        workers = tuple(shuffle_windows(lane, self.options, self.topology.batch_size) for lane in balanced)
        return RankRows(workers=workers, sizes=sizes, dropped=dropped)

    def _owners(self, rank: int, units: Units) -> Int64s:
        """Return the worker of each unit: the strategy's choice for the rank's own units, LPT for received units."""
        own = np.repeat(np.arange(self.topology.num_workers), [len(lane) for lane in self.chosen[rank]])
        received = sum(transfer.rows for transfer in self.transfers.received.get(rank, ()))
        num_kept = len(units.split_at(units.num_rows - received)[0])
        own = own[:num_kept]
        weights = self.space.bytes_between(units.start, units.stop)
        loads = [int(weights[:num_kept][own == worker].sum()) for worker in range(self.topology.num_workers)]
        return np.concatenate([own, assign_owners(weights[num_kept:], loads, range(len(loads)))])


@dataclass(frozen=True, kw_only=True, eq=False)
class RowAssignment:
    """`Assignment` of rows: balanced over ranks and workers, or as a split strategy says."""

    inputs: EpochInputs
    divided: DividedRows

    @classmethod
    def begin(cls, inputs: EpochInputs) -> "RowAssignment":
        """Return the assignment of the whole epoch."""
        strategy, epoch, topology = inputs.strategy, inputs.position.epoch, inputs.position.first_topology
        if strategy is None:
            chunks = SlicedChunks(
                units=inputs.chunks, space=inputs.space, options=inputs.options, epoch=epoch, topology=topology
            )
            return cls(inputs=inputs, divided=chunks)
        rows = StrategyRows(
            chosen=tuple(
                tuple(keep_span(units, inputs.options) for units in workers)
                for workers in strategy.units(epoch, topology.num_ranks, topology.num_workers)
            ),
            is_shared=strategy.is_shared,
            space=inputs.space,
            options=inputs.options,
            topology=topology,
        )
        return cls(inputs=inputs, divided=rows)

    def resumed(self, received: Segment, topology: Topology) -> "RowAssignment":
        """See Assignment."""
        if self.inputs.strategy is not None:
            # With the same ranks, the rest of each rank is one of the equal parts of the remaining rows.
            self.inputs.strategy.check_resume(received, topology)
        return replace(self, divided=RemainingRows(units=remaining_units(self.divided, received), topology=topology))

    @cached_property
    def counts(self) -> RankCounts:
        """See Assignment."""
        divided, topology, rows = self.divided, self.divided.topology, self.divided.rank_rows
        repeats = np.zeros(len(rows), dtype=np.bool_)
        if topology.drop_last:
            rows = np.minimum(rows, divided.steps * topology.batch_size)
        else:
            before_last = (divided.steps - 1) * topology.batch_size
            repeats = (divided.steps > 0) & (rows == before_last)
            repeats &= (before_last == 0) | (topology.batch_size == 1)
        return RankCounts(
            steps=divided.steps,
            rows=rows,
            repeats=repeats,
            dropped_rows=int((divided.rank_rows - rows).sum()),
            moved_rows=divided.transfers.rows,
            cuts=len(divided.transfers),
        )

    def programs(self, rank: int, received: Segment) -> tuple[WorkerProgram, ...]:
        """See Assignment."""
        topology, options, position = self.divided.topology, self.inputs.options, self.inputs.position
        topology.check_rank(rank)
        # `Position.under` closes a segment whose ranks drifted apart: here any rank tells the steps of all ranks.
        mine, done = self.divided.rank(rank), received.steps_of(0)
        # A bucket is one batch, of the batch size with which the epoch began and its windows were cut.
        bucket_rows = position.first_topology.batch_size
        by_length = EqualBuckets(bucket_rows=bucket_rows) if options.bucket_by else None
        programs = []
        for worker, lane in enumerate(remaining_lanes(mine, done)):
            sizes = mine.sizes.of_worker(worker, topology.num_workers)
            left = sizes.steps - batches_of_worker(done, worker, topology.num_workers)
            tail = sizes.tail[-left:] if left > 0 else ()
            batching = SingleLane(batch_rows=sizes.batch_rows, num_batches=max(0, left), tail_rows=tail)
            # A rank without rows repeats the first row of this topology.
            repeated = [self.divided.first_unit.split_at(1)[0]] if sizes.repeated and left > 0 else []
            programs.append(
                WorkerProgram(
                    lanes=(Units.concat([lane, *repeated]),),
                    batching=batching,
                    seed=options.seed,
                    epoch=position.epoch,
                    by_length=by_length,
                )
            )
        return tuple(programs)
