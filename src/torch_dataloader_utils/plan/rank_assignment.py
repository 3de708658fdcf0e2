"""Which rows each rank and worker of one topology reads, and how many are in each batch."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from torch_dataloader_utils._core.division import even_counts
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Segment
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.balance import (
    Transfers,
    assign_owners,
    assign_units,
    balanced_list,
    even_targets,
    plan_transfers,
    rows_per_rank,
    slice_units,
    worker_order,
)
from torch_dataloader_utils.plan.steps import StepSizes, batches_of_worker, count_steps, step_sizes
from torch_dataloader_utils.plan.strategy_call import RankUnits
from torch_dataloader_utils.plan.windows import shuffle_windows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankAssignment:
    """What one rank reads in an epoch: the rows of each worker in order, their batches, and the rows left out."""

    workers: tuple[Units, ...]
    sizes: StepSizes
    dropped: Units


class TopologyAssignment(Protocol):
    """Divides an epoch, or the rest of one, among the ranks and workers of one topology."""

    @property
    def topology(self) -> Topology:
        """The ranks and workers."""
        ...

    @property
    def steps(self) -> Int64s:
        """Steps of every rank, int64 [num_ranks]."""
        ...

    @property
    def rank_rows(self) -> Int64s:
        """Rows of every rank before any are dropped, int64 [num_ranks]."""
        ...

    @property
    def transfers(self) -> Transfers:
        """The row ranges that move between ranks."""
        ...

    @property
    def first_unit(self) -> Units:
        """The first unit of the epoch, whose first row a rank without rows repeats; empty if there are no rows."""
        ...

    def rank(self, rank: int) -> RankAssignment:
        """What one rank reads; costs no work for the other ranks."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class InitialAssignment:
    """Deals a whole epoch: slice, level, assign, level inside the rank, cut windows.

    units: the epoch's chunks in their order.
    """

    units: Units
    space: RowSpace
    options: PlanOptions
    epoch: int
    topology: Topology

    @property
    def _is_balanced(self) -> bool:
        return self.options.rank_sharding == "rows"

    @cached_property
    def _sliced_rows(self) -> Int64s:
        return rows_per_rank(self.units, self.topology.num_ranks)

    @cached_property
    def rank_rows(self) -> Int64s:
        """See TopologyAssignment."""
        return even_targets(self._sliced_rows) if self._is_balanced else self._sliced_rows

    @cached_property
    def transfers(self) -> Transfers:
        """See TopologyAssignment."""
        return plan_transfers(self._sliced_rows, self.rank_rows)

    @cached_property
    def steps(self) -> Int64s:
        """See TopologyAssignment."""
        return count_steps(self.rank_rows, self.topology, equal=self._is_balanced)

    @property
    def first_unit(self) -> Units:
        """See TopologyAssignment."""
        return self.units.take(slice(0, 1))

    def rank(self, rank: int) -> RankAssignment:
        """See TopologyAssignment."""
        units = balanced_list(rank, self._sliced, self.transfers)
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        kept, dropped = units.split_at(sizes.rows)
        weights = self.space.bytes_between(kept.start, kept.stop)
        order = worker_order(self.topology.num_workers, self.options, self.epoch, rank)
        lanes = balance_workers(assign_units(kept, weights, order), sizes)
        workers = tuple(shuffle_windows(lane, self.options, self.topology.batch_size) for lane in lanes)
        return RankAssignment(workers=workers, sizes=sizes, dropped=dropped)

    def _sliced(self, rank: int) -> Units:
        return slice_units(self.units, rank, self.topology.num_ranks)


def balance_workers(workers: list[Units], sizes: StepSizes) -> list[Units]:
    """The workers' units, levelled so that each has exactly the rows of its own batches."""
    count = len(workers)
    rows = np.array([lane.num_rows for lane in workers], dtype=np.int64)
    targets = np.array([sizes.of_worker(worker, count).rows for worker in range(count)], dtype=np.int64)
    transfers = plan_transfers(rows, targets)
    return [balanced_list(worker, lambda i: workers[i], transfers) for worker in range(count)]


@dataclass(frozen=True, kw_only=True, eq=False)
class ResumedAssignment:
    """Deals the rest of an epoch under a new topology.

    units: the remaining rows in canonical order (see `remaining_units`). They are cut into runs, one a worker, in the
    order of ranks and workers. So at most one unit is cut for each worker, and a worker finishes one old lane
    before it opens the next. Ranks get equal rows, whatever `rank_sharding` says: a resumed epoch has equal steps.
    """

    units: Units
    topology: Topology

    @property
    def transfers(self) -> Transfers:
        """No transfers: the runs are even already."""
        return Transfers.of([])

    @cached_property
    def rank_rows(self) -> Int64s:
        """See TopologyAssignment."""
        return even_counts(self.units.num_rows, self.topology.num_ranks)

    @cached_property
    def steps(self) -> Int64s:
        """See TopologyAssignment."""
        return count_steps(self.rank_rows, self.topology, equal=True)

    @property
    def first_unit(self) -> Units:
        """See TopologyAssignment."""
        return self.units.take(slice(0, 1))

    def rank(self, rank: int) -> RankAssignment:
        """See TopologyAssignment."""
        mine = self._run(int(self.rank_rows[:rank].sum()), int(self.rank_rows[rank]))
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        workers = []
        for worker in range(self.topology.num_workers):
            lane, mine = mine.split_at(sizes.of_worker(worker, self.topology.num_workers).rows)
            workers.append(lane)
        return RankAssignment(workers=tuple(workers), sizes=sizes, dropped=mine)

    @cached_property
    def _unit_ends(self) -> Int64s:
        """Rows of the sequence up to the end of each unit, int64 [units]."""
        return np.cumsum(self.units.rows)

    def _run(self, begin: int, rows: int) -> Units:
        """`rows` rows from number `begin` on; looks only at the units that hold them."""
        first = int(np.searchsorted(self._unit_ends, begin, side="right"))
        last = int(np.searchsorted(self._unit_ends, begin + rows, side="left"))
        before = int(self._unit_ends[first - 1]) if first else 0
        return self.units.take(slice(first, last + 1)).split_at(begin - before)[1].split_at(rows)[0]


def remaining_lanes(assigned: RankAssignment, steps: int) -> list[Units]:
    """The rows of each worker that its rank has not received after `steps` steps."""
    lanes = []
    for worker, lane in enumerate(assigned.workers):
        sizes = assigned.sizes.of_worker(worker, len(assigned.workers))
        done = batches_of_worker(min(steps, assigned.sizes.steps), worker, len(assigned.workers))
        lanes.append(lane.split_at(sizes.rows_before(done))[1])
    return lanes


def remaining_units(assigned: TopologyAssignment, segment: Segment) -> Units:
    """The rows that no rank has received in this segment of the epoch, in canonical order.

    The order: for each rank, the rest of each worker's lane, then the rows that the rank would have dropped. The rest
    of a lane stays together, so that a worker that takes a run of these rows opens few row groups.
    """
    parts = []
    for rank in range(assigned.topology.num_ranks):
        share = assigned.rank(rank)
        parts.extend([*remaining_lanes(share, segment.steps_of(rank)), share.dropped])
    return Units.concat(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyAssignment:
    """Deals a strategy's units; moves rows between ranks and workers only as far as equal steps need it.

    given: every rank's units, worker by worker. shared: every rank has the same units (a strategy without rank
        arguments); then no rows move between ranks.
    """

    given: tuple[RankUnits, ...]
    shared: bool
    space: RowSpace
    options: PlanOptions
    topology: Topology

    @cached_property
    def _given_rows(self) -> Int64s:
        return np.array([sum(units.num_rows for units in workers) for workers in self.given], dtype=np.int64)

    @cached_property
    def rank_rows(self) -> Int64s:
        """See TopologyAssignment."""
        levelled = self.options.rank_sharding == "rows" and not self.shared
        return even_targets(self._given_rows) if levelled else self._given_rows

    @cached_property
    def transfers(self) -> Transfers:
        """See TopologyAssignment."""
        return plan_transfers(self._given_rows, self.rank_rows)

    @cached_property
    def steps(self) -> Int64s:
        """See TopologyAssignment."""
        return count_steps(self.rank_rows, self.topology, equal=self.options.rank_sharding == "rows")

    @property
    def first_unit(self) -> Units:
        """See TopologyAssignment."""
        return Units.concat([units for workers in self.given for units in workers]).take(slice(0, 1))

    def rank(self, rank: int) -> RankAssignment:
        """See TopologyAssignment."""
        units = balanced_list(rank, lambda i: Units.concat(self.given[i]), self.transfers)
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        owner = self._owners(rank, units)
        kept, dropped = units.split_at(sizes.rows)
        owner = owner[: len(kept)]
        lanes = [kept.take(np.flatnonzero(owner == worker)) for worker in range(self.topology.num_workers)]
        levelled = balance_workers(lanes, sizes)
        workers = tuple(shuffle_windows(lane, self.options, self.topology.batch_size) for lane in levelled)
        return RankAssignment(workers=workers, sizes=sizes, dropped=dropped)

    def _owners(self, rank: int, units: Units) -> Int64s:
        """The worker of each unit: the strategy's choice for the rank's own units, by LPT for those it received."""
        own = np.repeat(np.arange(self.topology.num_workers), [len(lane) for lane in self.given[rank]])
        received = sum(transfer.rows for transfer in self.transfers.received.get(rank, ()))
        num_kept = len(units.split_at(units.num_rows - received)[0])
        own = own[:num_kept]
        weights = self.space.bytes_between(units.start, units.stop)
        loads = [int(weights[:num_kept][own == worker].sum()) for worker in range(self.topology.num_workers)]
        return np.concatenate([own, assign_owners(weights[num_kept:], loads, range(len(loads)))])
