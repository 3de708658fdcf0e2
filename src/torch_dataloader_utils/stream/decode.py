"""Decode row groups to blocks, in a pool of threads, within a byte budget that all lanes of a worker share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from torch_dataloader_utils._core.block import RowGroupReader, Shaper
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils._runtime.threads import ThreadPool
from torch_dataloader_utils.stream.batch_groups import BlockSlice
from torch_dataloader_utils.stream.decode_jobs import (
    Awaited,
    DecodeJob,
    DependentJob,
    GroupDecoder,
    GroupToDecode,
    Pending,
)

T = TypeVar("T")

# Limits of one job: row groups (64 of 20 KB take 4 to 8 ms, and the trainer may wait so long for the first row group),
# projected bytes, and rows (a column with one value takes a few bytes for any number of rows).
MOST_GROUPS_OF_JOB = 64
_MOST_BYTES_OF_JOB = 2 << 20
_MOST_ROWS_OF_JOB = 1 << 16

# Row groups held for each thread: the row groups of one job, and of the job that the trainer has. Many more small row
# groups fit into the budget, but would only make the first batch wait.
_GROUPS_A_THREAD = 2 * MOST_GROUPS_OF_JOB


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Limits of decoding ahead.

    threads: number of row groups decoded at once.
    budget_bytes: bytes of blocks held ahead of the trainer, for all lanes of a worker together. A row group that is
        needed now is decoded even if it alone exceeds the budget.
    worker_threads: number of threads in a worker process, in place of `threads`.
    small_bytes: one job decodes several row groups of at most this size, see `GroupDecoder`; 0: one row group a job.
    least_groups: number of row groups that may be held if their projected bytes fit, for any decoded size; None: one
        row group for each thread, and the row group that is delivered.
    """

    threads: int
    budget_bytes: int
    worker_threads: int = 1
    small_bytes: int = 0
    least_groups: int | None = None


class LaneAhead(Protocol):
    """Row groups of one lane that are decoded ahead."""

    def rows_left(self) -> int:
        """Return the number of rows from the first row group that was not started to the end of the lane."""
        ...

    def begin_next(self) -> bool:
        """Start decoding the next row groups if there is room for them; return whether there was."""
        ...


class DecodeScheduler:
    """Scheduler of one worker's decoding: runs jobs in threads, within the budget. `close` cancels waiting jobs.

    has_freed: true if memory was freed since the last `prefetch`.
    """

    def __init__(
        self,
        work: WorkerInput,
        reader: RowGroupReader,
        shaper: Shaper,
        options: DecodeOptions,
        counters: WorkerCounters,
    ) -> None:
        self.counters = counters
        self._work = work
        self._budget_bytes = options.budget_bytes
        self._most_groups = options.threads * _GROUPS_A_THREAD
        self._least_groups = options.threads + 1 if options.least_groups is None else options.least_groups
        self._held_bytes = 0
        self._held_groups = 0
        self._lanes: list[LaneAhead] = []
        self.has_freed = False
        self._where = -1, ""
        groups = work.inventory.groups
        self._rows, self._bytes = groups.physical_rows, groups.projected_bytes
        self._is_small = (self._bytes <= options.small_bytes) & (self._rows <= _MOST_ROWS_OF_JOB)
        self._pool = ThreadPool(options.threads, "tdu-decode")
        self._groups = GroupDecoder(work, reader, shaper, counters)

    def add_lane(self, lane: LaneAhead) -> None:
        """Let `prefetch` decode the row groups of one more lane."""
        self._lanes.append(lane)

    def prefetch(self) -> None:
        """Start decoding the next row groups of all lanes, as far as the budget allows.

        Lanes advance alike and end together, so the lane with the most rows left needs its next row group first.
        """
        self.has_freed = False
        while self._lanes:
            lane = max(self._lanes, key=lambda each: each.rows_left())
            if lane.rows_left() == 0:
                self._lanes.clear()  # all row groups have begun
            elif not lane.begin_next():
                return

    def next_job(self, groups: Sequence[int]) -> Sequence[int]:
        """Return the first of these row groups that the next job should decode, at least one.

        One row group; or several small row groups that fit into half of the budget, so that another job can run
        beside this job.
        """
        if not self._is_small[groups[0]]:
            return groups[:1]
        numbers = np.asarray(groups)
        num_bytes, rows = np.cumsum(self._bytes[numbers]), np.cumsum(self._rows[numbers])
        most_bytes = min(self._budget_bytes // 2, _MOST_BYTES_OF_JOB)
        fits = self._is_small[numbers] & (num_bytes <= most_bytes) & (rows <= _MOST_ROWS_OF_JOB)
        return groups[: max(1, len(fits) if fits.all() else int(fits.argmin()))]

    def room_for(self, groups: Sequence[int]) -> int:
        """Return how many of these row groups, from the first on, fit into the budget beside the held row groups.

        Stored bytes say little if values repeat: dictionary-encoded values may take hundreds of times the bytes once
        decoded. So beyond `least_groups` row groups, the estimated decoded bytes must fit.
        """
        num_bytes, most_groups = self._held_bytes, self._most_groups - self._held_groups
        growth = self._groups.growth.ratio
        for number, group in enumerate(groups):
            num_bytes += int(self._bytes[group])
            is_least = self._held_groups + number < self._least_groups
            if number >= most_groups or num_bytes > self._budget_bytes / (1 if is_least else growth):
                return number
        return len(groups)

    @property
    def knows_growth(self) -> bool:
        """True once a row group was decoded; before that `room_for` allows only `least_groups`."""
        return self._groups.growth.ratio < math.inf

    def submit(self, groups: Sequence[GroupToDecode]) -> DecodeJob:
        """Start one job that decodes these row groups."""
        numbers = [each.group for each in groups]
        self._held_bytes += self._projected_bytes(numbers)
        self._held_groups += len(groups)
        return DecodeJob(numbers, self._pool.submit(self._groups.decode, groups))

    def run_after(
        self, needed: Sequence[Pending[BlockSlice]], job: Callable[[list[BlockSlice]], BlockSlice]
    ) -> DependentJob[BlockSlice, BlockSlice]:
        """Let a decoding thread run a job as soon as the row groups of `needed` are decoded."""
        return DependentJob(self._pool, job, needed)

    def wait(self, pending: Awaited[T]) -> T:
        """Return the result of a decoding thread. Waiting for the result counts as a stall."""
        return pending.result() if pending.done() else self.counters.count_stall(pending.result)

    def release(self, job: DecodeJob) -> None:
        """Release one row group of a job. Row groups of a job share memory, which is free after the last release."""
        job.left -= 1
        self._held_groups -= 1
        if job.left == 0:
            self._held_bytes -= self._projected_bytes(job.groups)
            self.has_freed = True
        self.counters.main.released_groups += 1

    def where(self, group: int) -> str:
        """Return the description of a row group for messages. Called for every batch that a function gets."""
        if self._where[0] != group:
            self._where = group, self._work.inventory.task(group).where
        return self._where[1]

    def close(self) -> None:
        """Cancel jobs that have not begun, and let the threads end."""
        self._groups.close()
        self._lanes.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _projected_bytes(self, groups: Sequence[int]) -> int:
        """Return the bytes that row groups count against the budget: their projected bytes."""
        return sum(int(self._bytes[group]) for group in groups)
