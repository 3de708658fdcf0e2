"""Decoding ahead: row groups to blocks in a pool of threads, in the order a lane needs them, under a byte budget."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np

from torch_dataloader_utils._core.block import Block, RowGroupReader, Shaper
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._core.turns import Turns
from torch_dataloader_utils._core.units import PLAIN, Units
from torch_dataloader_utils._core.uses import GroupUses, group_uses
from torch_dataloader_utils._observe.counters import WorkerCounters

B = TypeVar("B")


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


# Small row groups are many within the budget; more than this for each thread would only make the first batch wait.
_GROUPS_A_THREAD = 16
# Small row groups decoded by one job.
_MOST_AT_ONCE = 16

Wanted = tuple[int, int | None]
"""A row group, and up to which of its rows it is needed (None: all)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Together:
    """Small row groups decoded by one job: each alone, and all as one block (None if one of them does not decode)."""

    groups: tuple[int, ...]
    alone: "tuple[Future[Block], ...]"
    joined: "Future[Block | None]"

    @classmethod
    def of(cls, groups: Iterable[int]) -> Self:
        """Those to be decoded."""
        groups = tuple(groups)
        return cls(groups=groups, alone=tuple(Future() for _ in groups), joined=Future())

    def cancel(self) -> None:
        """Let go of whoever waits."""
        for future in self.alone:
            future.cancel()
        self.joined.cancel()


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
        self._small_bytes = options.small_bytes
        self._turns = Turns()
        self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="tdu-decode")

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
        return self.group_bytes(group) <= self._small_bytes

    def submit(self, group: int, stop_row: int | None) -> "Future[Block]":
        """Start decoding a row group up to `stop_row` (None: all of it)."""
        self._hold([group])
        return self._pool.submit(self._decode, (group, stop_row))

    def submit_together(self, wanted: Sequence[Wanted]) -> Together:
        """Start decoding small row groups, one after the other in one thread."""
        together = Together.of(group for group, _ in wanted)
        self._hold(together.groups)
        job = self._pool.submit(self._decode_all, wanted, together)
        job.add_done_callback(lambda job: together.cancel() if job.cancelled() else None)
        return together

    def _hold(self, groups: Sequence[int]) -> None:
        self._held_bytes += sum(map(self.group_bytes, groups))
        self._held_groups += len(groups)

    def run(self, job: Callable[[], Block]) -> "Future[Block]":
        """Start a job that needs row groups which were submitted before it."""
        return self._pool.submit(job)

    def release(self, group: int) -> None:
        """Give the budget of a row group back: no later unit of its lane needs it."""
        self._held_bytes -= self.group_bytes(group)
        self._held_groups -= 1
        self.counters.released_groups += 1

    def _decode_all(self, wanted: Sequence[Wanted], together: Together) -> None:
        outcomes = self._turns.each(self._outcome, wanted)
        blocks = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        # News comes at the end, of all at once: the trainer's thread would wake up for each, and take the
        # interpreter's lock from this one. It would join small blocks, too, at more than what decoding costs.
        joined = self._shaper.concat(blocks) if len(blocks) == len(wanted) else None
        for future, outcome in zip(together.alone, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        together.joined.set_result(joined)

    def _outcome(self, wanted: Wanted) -> Block | BaseException:
        try:
            return self._decode(wanted)
        except BaseException as error:  # noqa: BLE001 - raised where the rows are taken, as executors do
            return error

    def _decode(self, wanted: Wanted) -> Block:
        group, stop_row = wanted
        task = self._work.inventory.task(group)
        return self.counters.count_decode(lambda: self._shaper.block(self._reader.read(task, stop_row)))

    def where(self, group: int) -> str:
        """A row group, for messages."""
        return self._work.inventory.task(group).where

    def close(self) -> None:
        """Cancel what has not begun and let the threads end."""
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
        self._is_plain = (units.window == PLAIN)[uses.unit] & exact
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

    def take_several(self, use: int) -> tuple[Block, range]:
        """The rows of a use, with those behind it that were decoded together with it; and which uses that are."""
        self._begun(int(self.uses.group[use]))
        uses, rows = self._joined(use)
        if rows is None:
            return self.take(use), range(use, use + 1)
        self.prefetch()
        self.finish(uses)
        return rows, uses

    def _joined(self, use: int) -> tuple[range, Block | None]:
        """The uses from this one on that one job decodes, and its block if that is just their rows."""
        together = self._together.pop(int(self.uses.group[use]), None)
        if together is None:
            return range(0), None
        uses = range(use, use + len(together.groups))
        span = slice(uses.start, uses.stop)
        if not self._is_plain[span].all() or self.uses.group[span].tolist() != list(together.groups):
            return uses, None
        rows = self.wait(together.joined)
        is_whole = rows is not None and not self.uses.start[span].any() and self.uses.stop[span].sum() == rows.num_rows
        return uses, rows if is_whole else None

    def ask(self, use: int) -> Callable[[], Block]:
        """Begin with the row group of a use; the call gives its rows, in whatever thread, and waits for them."""
        pending = self._begun(int(self.uses.group[use]))
        return lambda: self._cut(use, pending.result())

    def run(self, job: Callable[[], Block]) -> "Future[Block]":
        """Let a decoding thread do a job over rows that were asked for."""
        return self._decoder.run(job)

    def wait(self, pending: "Future[B]") -> B:
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
        together = self._decoder.submit_together([(group, self._needed(group)) for group in groups])
        self._together[groups[0]] = together
        self._pending.update(zip(groups, together.alone, strict=True))

    def _small_groups(self) -> list[int]:
        """The small row groups that come next, as many as one job is to decode and the budget allows."""
        following = self._waiting[-self._at_once :][::-1]
        groups = list(itertools.takewhile(self._decoder.is_small, following))
        while len(groups) > 1 and not self._decoder.has_room(*groups):
            groups.pop()
        if groups:
            self._at_once = min(2 * self._at_once, _MOST_AT_ONCE)
        return groups

    def _needed(self, group: int) -> int | None:
        return self._stop_row[group] if self._exact else None
