"""The work of one worker in one epoch: its lanes, and which rows of which lane make each batch."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s, Inventory
from torch_dataloader_utils._core.permute import EpochKey
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._core.token_budget import WindowOrder
from torch_dataloader_utils._core.units import RowSpace, Units, ranges

BatchParts = tuple[tuple[int, int], ...]
"""(lane, rows) pairs: how many rows of which lanes make a batch, in the order of the batch."""


class Batching(Protocol):
    """Rule for the rows of each batch: how many rows a batch takes from which lane."""

    @property
    def num_batches(self) -> int | None:
        """Number of batches, None if only reading can tell."""
        ...

    def parts(self, batch: int) -> BatchParts:
        """Return the parts of batch number `batch`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleLane:
    """Every batch is the next `batch_rows` rows of the one lane; the last batches may be shorter.

    tail_rows: Sizes of the last batches, where the sizes differ (at most two).
    """

    batch_rows: int
    num_batches: int
    tail_rows: tuple[int, ...] = ()

    def parts(self, batch: int) -> BatchParts:
        """See Batching."""
        from_end = batch - (self.num_batches - len(self.tail_rows))
        return ((0, self.tail_rows[from_end] if from_end >= 0 else self.batch_rows),)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListedBatches:
    """Batch i is the next `batch_rows[i]` rows of the one lane; for batches that differ in rows. int64 [batches]."""

    batch_rows: Int64s

    @property
    def num_batches(self) -> int:
        """Number of listed batches."""
        return len(self.batch_rows)

    def parts(self, batch: int) -> BatchParts:
        """See Batching."""
        return ((0, int(self.batch_rows[batch])),)


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilExhausted:
    """Batches of `batch_rows` until the lane ends; for plans whose row counts are not known."""

    batch_rows: int

    @property
    def num_batches(self) -> None:
        """None: the number is not known."""
        return None

    def parts(self, batch: int) -> BatchParts:  # noqa: ARG002
        """See Batching."""
        return ((0, self.batch_rows),)


def numbers_of_rank(begin: int, end: int, rank: int, num_ranks: int) -> range:
    """Return the micro-batches in [begin, end) of a rank: numbers with remainder `rank` by num_ranks, ascending.

    begin=6, end=10, rank=1, num_ranks=2      7 9
    """
    return range(begin + (rank - begin) % num_ranks, end, num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatingLanes:
    """Micro-batches from many lanes in rotation (see plan/lanes.py for the numbering).

    Batch i of this worker is step `first_step + i * num_workers`. The batch has the micro-batches numbered
    first_number + step * numbers_per_step + j that have the remainder `rank` by num_ranks, ascending.

    lane_ids: Job-wide numbers of this worker's lanes, ascending; lane k of the program is lane_ids[k].
    tail_rows: Rows of the last batch, if this worker owns the job's incomplete last step. The rows lie in one more
        lane, number len(lane_ids). 0: no incomplete step.
    """

    micro_rows: int
    num_lanes: int
    num_ranks: int
    rank: int
    num_workers: int
    first_step: int
    first_number: int
    numbers_per_step: int
    num_batches: int
    lane_ids: tuple[int, ...]
    tail_rows: int = 0

    def parts(self, batch: int) -> BatchParts:
        """See Batching."""
        if self.tail_rows and batch == self.num_batches - 1:
            return ((len(self.lane_ids), self.tail_rows),)
        step = self.first_step + batch * self.num_workers
        begin = self.first_number + step * self.numbers_per_step
        numbers = numbers_of_rank(begin, begin + self.numbers_per_step, self.rank, self.num_ranks)
        return tuple((bisect_left(self.lane_ids, number % self.num_lanes), self.micro_rows) for number in numbers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerProgram:
    """Lanes of one worker for the rest of one epoch, and the batching that makes batches of the lanes.

    by_length: How windows are ordered by length (_core/token_budget.py); None where they are not.
    """

    lanes: tuple[Units, ...]
    batching: Batching
    seed: int
    epoch: int
    by_length: WindowOrder | None = None

    @property
    def num_rows(self) -> int:
        """Plan rows of all lanes."""
        return sum(lane.num_rows for lane in self.lanes)

    @property
    def delivers_row_groups(self) -> bool:
        """Whether batches are simply row groups cut one after the other: one lane, no windows."""
        return isinstance(self.batching, SingleLane) and all(bool(lane.is_plain.all()) for lane in self.lanes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerInput:
    """Data and plan that a worker is sent in each pass: its program and the row groups that it reads.

    The `Pipeline` (reader, shaper, functions) is sent once, when the worker starts.

    inventory: Only this worker's row groups and files. group_start, group_stop: Plan rows of the row groups, [groups].
    """

    program: WorkerProgram
    inventory: Inventory
    group_start: Int64s
    group_stop: Int64s
    exact: bool

    def task(self, group: int) -> RowGroupTask:
        """Return the reading task of one row group, in the epoch of the program."""
        program = self.program
        return self.inventory.task(group, EpochKey(program.seed, program.epoch, int(self.group_start[group])))

    @property
    def first_task(self) -> RowGroupTask:
        """Row group in which the first batch begins; if a window mixes several, the row group of its first piece."""
        lane, _ = self.program.batching.parts(0)[0]
        unit = self.program.lanes[lane].take(slice(0, 1))
        row = unit.start[0] if unit.is_plain[0] else unit.windows.take(unit.window).piece_start[0]
        return self.task(int(np.searchsorted(self.group_start, row, side="right")) - 1)


def rows_of_parts(parts: BatchParts) -> int:
    """Return the rows of a batch."""
    return sum(rows for _, rows in parts)


def rows_of_batches(batching: Batching) -> int:
    """Return the rows of all batches of a batching, repeats included; 0 where only reading can tell."""
    if isinstance(batching, ListedBatches):
        return int(batching.batch_rows.sum())
    count = batching.num_batches or 0
    if count == 0:
        return 0
    last = range(max(1, count - 2), count)  # only the last two batches may have another size
    first, *others = (rows_of_parts(batching.parts(batch)) for batch in (0, *last))
    return first * (count - len(others)) + sum(others)


def touched_groups(units: Units, space: RowSpace) -> Int64s:
    """Return the row groups that these units read, ascending and distinct; groups without rows are never touched."""
    plain = units.is_plain
    start, stop = units.start[plain], units.stop[plain]
    if not plain.all():
        windows = units.windows.take(np.unique(units.window[~plain]))
        start, stop = np.concatenate([start, windows.piece_start]), np.concatenate([stop, windows.piece_stop])
    start, stop = start[stop > start], stop[stop > start]
    first, last = space.group_of(start), space.group_of(stop - 1)
    touched = np.unique(ranges(first, last - first + 1))
    has_rows = space.group_start[touched + 1] > space.group_start[touched]
    return touched[has_rows].astype(np.int64)


def worker_input(program: WorkerProgram, inventory: Inventory, space: RowSpace) -> WorkerInput:
    """Return the program with the part of the inventory that it reads."""
    lanes = tuple(lane.compact() for lane in program.lanes)
    touched = np.unique(np.concatenate([np.zeros(0, np.int64), *(touched_groups(lane, space) for lane in lanes)]))
    groups = inventory.with_members(touched)
    return WorkerInput(
        program=replace(program, lanes=lanes),
        inventory=inventory.take_groups(groups),
        group_start=space.group_start[groups],
        group_stop=space.group_start[groups + 1],
        exact=space.exact,
    )
