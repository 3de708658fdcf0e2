"""Decodes row groups to blocks, in a pool of threads, within a byte budget that all lanes of a worker share."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from threading import Lock

import numpy as np

from torch_dataloader_utils._core.block import (
    Block,
    JoinedGroups,
    RowGroupReader,
    Shaper,
    read_block,
    read_joined,
)
from torch_dataloader_utils._core.inventory import FileFormat, RowGroupTask
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils._runtime.threads import ThreadPool
from torch_dataloader_utils.stream.batch_groups import BlockSlice
from torch_dataloader_utils.stream.small_groups import (
    MOST_BYTES_TOGETHER,
    MOST_TOGETHER,
    FollowUp,
    JointDecode,
    Pending,
    SmallGroups,
    Wanted,
)

# Row groups held for each thread: those of one job, and of the job that the trainer has. Of small ones many more fit
# into the budget, and would only make the first batch wait.
_GROUPS_A_THREAD = 2 * MOST_TOGETHER

# Rows of one job. Stored bytes alone do not limit it: a column of one value takes a few bytes, however many its rows.
_MOST_SMALL_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """How far to decode ahead.

    threads: row groups decoded at once.
    budget_bytes: blocks held ahead of the trainer, of all lanes of a worker together; a row group that is needed now is
        decoded even if it alone exceeds the budget.
    worker_threads: the same as threads, for a worker process.
    small_bytes: row groups up to this size are decoded several by one job, see `SmallGroups`; 0: none are.
    least_groups: so many row groups may be held if their stored bytes fit, however large they are decoded; None: one
        for each thread and the one that is delivered.
    """

    threads: int
    budget_bytes: int
    worker_threads: int = 1
    small_bytes: int = 0
    least_groups: int | None = None


class Decoder:
    """Decodes the row groups of one worker, and counts them; `close` cancels what has not begun."""

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
        self._reader = reader
        self._shaper = shaper
        self._budget_bytes = options.budget_bytes
        self._most_groups = options.threads * _GROUPS_A_THREAD
        self._least_groups = options.threads + 1 if options.least_groups is None else options.least_groups
        self._growth = _Growth()
        self._held_bytes = 0
        self._held_groups = 0
        groups, formats = work.inventory.groups, work.inventory.files.formats
        # The stored bytes of text do not say how much memory its rows take.
        is_text = np.isin(formats[groups.file], (FileFormat.CSV, FileFormat.JSON))
        self._rows, self._bytes = groups.physical_rows, groups.projected_bytes
        is_short = self._rows <= _MOST_SMALL_ROWS
        self._is_small = (self._bytes <= options.small_bytes) & is_short & ~is_text
        self._pool = ThreadPool(options.threads, "tdu-decode")
        self._small = SmallGroups(self._pool, self._decode, self._decode_joined)
        self._is_closed = False

    def room_for(self, groups: Sequence[int]) -> int:
        """How many of these row groups, from the first on, fit into the budget beside what is held.

        Stored bytes say little where values repeat: dictionary-encoded values may take hundreds of times as much
        once decoded. So beyond `least_groups` row groups, the estimated decoded bytes must fit.
        """
        num_bytes = self._held_bytes + np.cumsum(self._bytes[np.asarray(groups)])
        num_groups = self._held_groups + np.arange(1, len(groups) + 1)
        growth = np.where(num_groups <= self._least_groups, 1, self._growth.ratio)
        fit = np.count_nonzero(num_bytes <= self._budget_bytes / growth)
        return max(0, min(int(fit), self._most_groups - self._held_groups))

    @property
    def knows_growth(self) -> bool:
        """Whether a row group was decoded yet; before that `room_for` allows only `least_groups`."""
        return self._growth.ratio < math.inf

    def most_of_one_job(self, groups: Sequence[int]) -> int:
        """How many of these row groups, from the first on, one job should decode; at least one.

        A job takes at most half of the budget, so that another one can run beside it.
        """
        numbers = np.asarray(groups)
        num_bytes, rows = np.cumsum(self._bytes[numbers]), np.cumsum(self._rows[numbers])
        fit = (num_bytes <= min(self._budget_bytes // 2, MOST_BYTES_TOGETHER)) & (rows <= _MOST_SMALL_ROWS)
        return max(1, int(np.count_nonzero(fit)))

    def group_bytes(self, group: int) -> int:
        """What a row group counts against the budget: its projected bytes."""
        return int(self._bytes[group])

    def is_small(self, group: int) -> bool:
        """Whether a row group is decoded together with others."""
        return bool(self._is_small[group])

    def submit(self, group: int, stop_row: int | None) -> "Future[BlockSlice]":
        """Start decoding a row group up to `stop_row` (None: all of it)."""
        self._hold([group])
        return self._pool.submit(lambda: BlockSlice.of(self._decode((group, stop_row))))

    def submit_together(self, wanted: Sequence[Wanted]) -> JointDecode:
        """Start decoding small row groups by one job; see `SmallGroups`."""
        self._hold([group for group, _ in wanted])
        return self._small.start(wanted)

    def run_after(
        self, needed: Sequence[Pending[BlockSlice]], job: Callable[[list[BlockSlice]], Block]
    ) -> FollowUp[BlockSlice, Block]:
        """Have a decoding thread run a job as soon as these row groups are decoded."""
        return FollowUp(self._pool, job, needed)

    def release(self, freed: Sequence[int]) -> None:
        """Count one row group as not needed any more. freed: the row groups whose bytes that gives back."""
        self._held_bytes -= sum(map(self.group_bytes, freed))
        self._held_groups -= 1
        self.counters.main.released_groups += 1

    def _hold(self, groups: Sequence[int]) -> None:
        self._held_bytes += sum(map(self.group_bytes, groups))
        self._held_groups += len(groups)

    def _decode(self, wanted: Wanted) -> Block:
        task, stop_row = self._task(wanted)
        with self.counters.decoding() as counts:
            block = read_block(self._reader, self._shaper, task, stop_row)
            counts.decoded_groups += 1
            counts.decoded_bytes += block.num_bytes
        self._growth.learn(self.group_bytes(wanted[0]), block.num_bytes)
        return block

    def _decode_joined(self, wanted: Sequence[Wanted]) -> JoinedGroups:
        tasks = map(self._task, wanted)
        with self.counters.decoding() as counts:
            joined = read_joined(self._reader, self._shaper, tasks)
            counts.decoded_groups += len(wanted)
            counts.decoded_bytes += joined.num_bytes
        self._growth.learn(sum(self.group_bytes(group) for group, _ in wanted), joined.num_bytes)
        return joined

    def _task(self, wanted: Wanted) -> tuple[RowGroupTask, int | None]:
        """The row group's task and its `stop_row`; raises CancelledError once the decoder is closed."""
        if self._is_closed:
            raise CancelledError
        group, stop_row = wanted
        return self._work.inventory.task(group), stop_row

    def where(self, group: int) -> str:
        """A row group, for messages."""
        return self._work.inventory.task(group).where

    def close(self) -> None:
        """Cancel what has not begun and let the threads end."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        del self._small  # a reference cycle: it would keep the plan until the garbage collector runs


class _Growth:
    """Decoded bytes divided by stored bytes, of the row groups decoded so far."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stored_bytes = self._decoded_bytes = 0

    def learn(self, stored_bytes: int, decoded_bytes: int) -> None:
        """Take row groups that were decoded into account."""
        with self._lock:
            self._stored_bytes += stored_bytes
            self._decoded_bytes += decoded_bytes

    @property
    def ratio(self) -> float:
        """At least 1; infinity before anything was decoded."""
        return max(1.0, self._decoded_bytes / self._stored_bytes) if self._stored_bytes else math.inf
