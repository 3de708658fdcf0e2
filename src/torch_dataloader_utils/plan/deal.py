"""Deals: which rows each rank and worker of one topology reads, and how many are in each batch."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from torch_dataloader_utils._core.division import even_counts
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.assign import assign_units, worker_order
from torch_dataloader_utils.plan.level import Transfers, even_targets, level_list, plan_transfers
from torch_dataloader_utils.plan.slice import rows_per_share, slice_units
from torch_dataloader_utils.plan.steps import StepSizes, count_steps, step_sizes
from torch_dataloader_utils.plan.window import shuffle_windows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankDeal:
    """What one rank reads in an epoch: the rows of each worker in order, their batches, and the rows left out."""

    workers: tuple[Units, ...]
    sizes: StepSizes
    dropped: Units


class Deal(Protocol):
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

    def rank(self, rank: int) -> RankDeal:
        """What one rank reads; costs no work for the other ranks."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class FreshDeal:
    """Deals a whole epoch: slice, level, assign, level inside the rank, cut windows.

    units: the epoch's chunks in their order.
    """

    units: Units
    space: RowSpace
    options: PlanOptions
    epoch: int
    topology: Topology

    @property
    def _is_levelled(self) -> bool:
        return self.options.rank_sharding == "rows"

    @cached_property
    def _sliced_rows(self) -> Int64s:
        return rows_per_share(self.units, self.topology.num_ranks)

    @cached_property
    def rank_rows(self) -> Int64s:
        """See Deal."""
        return even_targets(self._sliced_rows) if self._is_levelled else self._sliced_rows

    @cached_property
    def transfers(self) -> Transfers:
        """See Deal."""
        return plan_transfers(self._sliced_rows, self.rank_rows)

    @cached_property
    def steps(self) -> Int64s:
        """See Deal."""
        return count_steps(self.rank_rows, self.topology, equal=self._is_levelled)

    @property
    def first_unit(self) -> Units:
        """See Deal."""
        return self.units.take(slice(0, 1))

    def rank(self, rank: int) -> RankDeal:
        """See Deal."""
        units = level_list(rank, self._sliced, self.transfers)
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        kept, dropped = units.split_at(sizes.rows)
        weights = self.space.bytes_between(kept.start, kept.stop)
        order = worker_order(self.topology.num_workers, self.options, self.epoch, rank)
        lanes = level_workers(assign_units(kept, weights, order), sizes)
        workers = tuple(shuffle_windows(lane, self.options, self.topology.batch_size) for lane in lanes)
        return RankDeal(workers=workers, sizes=sizes, dropped=dropped)

    def _sliced(self, rank: int) -> Units:
        return slice_units(self.units, rank, self.topology.num_ranks)


def level_workers(workers: list[Units], sizes: StepSizes) -> list[Units]:
    """The workers' units, levelled so that each has exactly the rows of its own batches."""
    count = len(workers)
    rows = np.array([lane.num_rows for lane in workers], dtype=np.int64)
    targets = np.array([sizes.of_worker(worker, count).rows for worker in range(count)], dtype=np.int64)
    transfers = plan_transfers(rows, targets)
    return [level_list(worker, lambda i: workers[i], transfers) for worker in range(count)]


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceDeal:
    """Deals the rest of an epoch under a new topology.

    units: the remaining rows in canonical order (see plan/remain.py). They are cut into runs, one for each worker, in
    the order of ranks and workers. So at most one unit is cut for each worker, and a worker finishes one old lane
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
        """See Deal."""
        return even_counts(self.units.num_rows, self.topology.num_ranks)

    @cached_property
    def steps(self) -> Int64s:
        """See Deal."""
        return count_steps(self.rank_rows, self.topology, equal=True)

    @property
    def first_unit(self) -> Units:
        """See Deal."""
        return self.units.take(slice(0, 1))

    def rank(self, rank: int) -> RankDeal:
        """See Deal."""
        mine = self._run(int(self.rank_rows[:rank].sum()), int(self.rank_rows[rank]))
        sizes = step_sizes(int(self.rank_rows[rank]), int(self.steps[rank]), self.topology.batch_size)
        workers = []
        for worker in range(self.topology.num_workers):
            lane, mine = mine.split_at(sizes.of_worker(worker, self.topology.num_workers).rows)
            workers.append(lane)
        return RankDeal(workers=tuple(workers), sizes=sizes, dropped=mine)

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
