"""Decoding ahead: row groups to blocks in a pool of threads, in the order a lane needs them, under a byte budget."""

import itertools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.block import Block, RowGroupReader, Shaper
from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._core.units import PLAIN, Units
from torch_dataloader_utils._core.uses import GroupUses, group_uses
from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils.stream.together import MOST_TOGETHER, SmallGroups, Together, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """How far to decode ahead.

    threads: row groups decoded at once. budget_bytes: blocks held ahead of the trainer, all lanes of a worker together;
        a row group that is needed now is decoded even if it alone exceeds the budget. worker_threads: instead of
        threads, in a worker process. small_bytes: row groups of no more are decoded several by one thread, and one
        thread at a time (see `Turns`); 0 for none, where threads wait for a store.
    """

    threads: int
    budget_bytes: int
    worker_threads: int = 1
    small_bytes: int = 0


# Small row groups are many within the budget. More than these a thread (those of one job, and of one that the trainer
# has) would only make the first batch wait.
_GROUPS_A_THREAD = 2 * MOST_TOGETHER


class Decoder:
    """Decodes the row groups of one worker, and counts them; closing it cancels what has not begun."""

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
        self._held_bytes = 0
        self._held_groups = 0
        groups, formats = work.inventory.groups, work.inventory.files.formats
        # What text takes in memory, its stored bytes do not say.
        is_text = np.isin(formats[groups.file], (FileFormat.CSV, FileFormat.JSON))
        self._is_small = (groups.projected_bytes <= options.small_bytes) & ~is_text
        self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="tdu-decode")
        self._small = SmallGroups(self._pool, self._decode, shaper.concat)

    def lane(self, units: Units) -> "LaneBlocks":
        """The blocks of one lane."""
        uses = group_uses(units, self._work.group_start, self._work.group_stop)
        return LaneBlocks(self, uses, units, exact=self._work.exact)

    def has_room(self, *groups: int) -> bool:
        """Whether the budget allows to decode these row groups ahead, beside what is held."""
        has_bytes = self._held_bytes + sum(map(self.group_bytes, groups)) <= self._budget_bytes
        return has_bytes and self._held_groups + len(groups) <= self._most_groups

    def group_bytes(self, group: int) -> int:
        """What a row group counts against the budget: its projected bytes."""
        return int(self._work.inventory.groups.projected_bytes[group])

    def is_small(self, group: int) -> bool:
        """Whether a row group is decoded together with others."""
        return bool(self._is_small[group])

    def submit(self, group: int, stop_row: int | None) -> "Future[Block]":
        """Start decoding a row group up to `stop_row` (None: all of it)."""
        self._hold([group])
        return self._pool.submit(self._decode, (group, stop_row))

    def submit_together(self, wanted: Sequence[Wanted], *, joins: bool) -> Together:
        """Start decoding small row groups by one job; see `SmallGroups`."""
        self._hold([group for group, _ in wanted])
        return self._small.start(wanted, joins=joins)

    def run(self, job: Callable[[], Block]) -> "Future[Block]":
        """Start a job that needs row groups which were submitted before it."""
        return self._pool.submit(job)

    def release(self, group: int) -> None:
        """Give the budget of a row group back: no later unit of its lane needs it."""
        self._held_bytes -= self.group_bytes(group)
        self._held_groups -= 1
        self.counters.released_groups += 1

    def _hold(self, groups: Sequence[int]) -> None:
        self._held_bytes += sum(map(self.group_bytes, groups))
        self._held_groups += len(groups)

    def _decode(self, wanted: Wanted) -> Block:
        group, stop_row = wanted
        task = self._work.inventory.task(group)
        return self.counters.count_decode(lambda: self._shaper.block(self._reader.read(task, stop_row)))

    def where(self, group: int) -> str:
        """A row group, for messages."""
        return self._work.inventory.task(group).where

    def close(self) -> None:
        """Cancel what has not begun and let the threads end."""
        if sys.is_finalizing():  # an unfinished iterator at the very end: threads are gone, and so are modules
            return
        self._small.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


class LaneBlocks:
    """The blocks of one lane's row groups: each decoded once, kept from its first use to its last."""

    def __init__(self, decoder: Decoder, uses: GroupUses, units: Units, *, exact: bool) -> None:
        self._decoder = decoder
        self._exact = exact
        groups, first, number = np.unique(uses.group, return_index=True, return_inverse=True)
        last = np.zeros(len(groups), dtype=np.int64)
        last[number] = np.arange(len(uses))
        stop = np.zeros(len(groups), dtype=np.int64)
        np.maximum.at(stop, number, uses.stop)
        self.uses = uses
        self._use_of_unit = np.searchsorted(uses.unit, np.arange(len(units) + 1), side="left").tolist()
        # Row groups of windows are needed alone.
        self._joins = exact and bool((units.window == PLAIN).all())
        self._last_use = dict(zip(groups.tolist(), last.tolist(), strict=True))
        self._stop_row = dict(zip(groups.tolist(), stop.tolist(), strict=True))
        self._waiting = groups[np.argsort(first)].tolist()[::-1]
        self._pending: dict[int, Future[Block]] = {}
        self._together: dict[int, Together] = {}
        self._at_once = 1

    def prefetch(self) -> None:
        """Start decoding the next row groups, as far as the budget goes."""
        while self._waiting and self._decoder.has_room(self._waiting[-1]):
            self._start()

    def take(self, use: int) -> Block:
        """The rows of one use of a row group; to be taken in order."""
        group = int(self.uses.group[use])
        pending = self._begun(group)
        self.prefetch()
        block = self._cut(use, self.wait(pending))
        self.finish(range(use, use + 1))
        return block

    def take_several(self, use: int) -> tuple[range, Block]:
        """The uses from this one on that are at hand as one block, and their rows: those of one job, or this use alone.

        Several only where whole row groups follow each other as they were decoded.
        """
        group = int(self.uses.group[use])
        self._begun(group)
        together = self._together.pop(group, None)
        uses = range(use, use + (1 if together is None else len(together.groups)))
        rows = None if together is None else self._joined(together, slice(uses.start, uses.stop))
        if rows is None:
            return range(use, use + 1), self.take(use)
        self.finish(uses)
        self.prefetch()
        return uses, rows

    def _joined(self, together: Together, uses: slice) -> Block | None:
        """The joined block of a job, if it is just the rows of these uses; None too if not all of it decodes."""
        if together.joined is None or self.uses.group[uses].tolist() != list(together.groups):
            return None
        try:
            rows = self.wait(together.joined)
        except CancelledError:
            return None
        is_whole = not self.uses.start[uses].any() and int(self.uses.stop[uses].sum()) == rows.num_rows
        return rows if is_whole else None

    def ask(self, use: int) -> Callable[[], Block]:
        """Begin with the row group of a use; the call gives its rows, in whatever thread, and waits for them."""
        pending = self._begun(int(self.uses.group[use]))
        return lambda: self._cut(use, pending.result())

    def run(self, job: Callable[[], Block]) -> "Future[Block]":
        """Let a decoding thread do a job over rows that were asked for."""
        return self._decoder.run(job)

    def wait(self, pending: "Future[Block]") -> Block:
        """What a decoding thread gives; counted as a stall if it is not there yet."""
        return pending.result() if pending.done() else self._decoder.counters.count_stall(pending.result)

    def has_begun(self, uses: range) -> bool:
        """Whether decoding of all these uses has begun, so that asking for them takes no more of the budget."""
        return all(int(self.uses.group[use]) in self._pending for use in uses)

    def comes(self, use: int) -> bool:
        """Whether the row group of a use is under way and decodes; waits for it."""
        pending = self._pending.get(int(self.uses.group[use]))
        return pending is not None and self._decoder.counters.count_stall(pending.exception) is None

    def finish(self, uses: range) -> None:
        """These uses were taken; a row group whose last use is among them gives its budget back."""
        for use in uses:
            group = int(self.uses.group[use])
            if self._last_use[group] == use:
                del self._pending[group]
                self._decoder.release(group)

    def uses_of(self, unit: int) -> range:
        """The uses of row groups that one unit of the lane has."""
        return range(self._use_of_unit[unit], self._use_of_unit[unit + 1])

    def _begun(self, group: int) -> "Future[Block]":
        while group not in self._pending:
            self._start()
        return self._pending[group]

    def _cut(self, use: int, whole: Block) -> Block:
        """The rows of a use; all that the row group has, where counts are not known."""
        if not self._exact:
            return whole
        start, stop = int(self.uses.start[use]), int(self.uses.stop[use])
        return whole if start == 0 and stop >= whole.num_rows else whole.slice(start, stop)

    def where(self, use: int) -> str:
        """The row group of a use, for messages."""
        return self._decoder.where(int(self.uses.group[use]))

    def _start(self) -> None:
        """Start decoding the next row group, with small ones the next few: at first it alone, then twice as many."""
        groups = self._small_groups()
        if len(groups) < 2:
            group = self._waiting.pop()
            self._pending[group] = self._decoder.submit(group, self._needed(group))
            return
        del self._waiting[-len(groups) :]
        wanted = [(group, self._needed(group)) for group in groups]
        together = self._decoder.submit_together(wanted, joins=self._joins)
        if self._joins:
            self._together[groups[0]] = together
        self._pending.update(zip(groups, together.alone, strict=True))

    def _small_groups(self) -> list[int]:
        """The small row groups that come next, as many as one job is to decode and the budget allows."""
        following = self._waiting[-self._at_once :][::-1]
        groups = list(itertools.takewhile(self._decoder.is_small, following))
        while len(groups) > 1 and not self._decoder.has_room(*groups):
            groups.pop()
        if groups:
            self._at_once = min(2 * self._at_once, MOST_TOGETHER)
        return groups

    def _needed(self, group: int) -> int | None:
        return self._stop_row[group] if self._exact else None
