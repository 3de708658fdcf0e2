"""Reads one lane as a stream of rows: row groups are decoded ahead, to blocks that batches take rows of."""

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from torch_dataloader_utils._core.block import Block, MeasuredBlock, Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.program import WorkerInput, WorkerProgram
from torch_dataloader_utils._core.units import PLAIN, GroupSlices, Units, group_slices
from torch_dataloader_utils.stream.batch_groups import BlockSlice, in_few_blocks
from torch_dataloader_utils.stream.decode import Decoder
from torch_dataloader_utils.stream.small_groups import MOST_TOGETHER, Awaited, FollowUp, JointDecode, Pending


@dataclass(slots=True)
class _Job:
    """Row groups decoded by one job. left: how many are still needed. is_told: see `DecodeAhead.joined`."""

    groups: Sequence[int]
    left: int
    pending: Future[BlockSlice] | JointDecode
    is_told: bool = False

    def rows(self, group: int) -> Pending[BlockSlice]:
        """The rows of one of the row groups."""
        return self.pending.rows(group) if isinstance(self.pending, JointDecode) else self.pending


class DecodeAhead:
    """Starts decoding row groups, and holds each one's pending rows until `done` is called for it.

    decodes_rows_needed: decode a row group only up to the last row that the lane uses, where the format allows it;
        False where row counts are not known.
    """

    def __init__(self, decoder: Decoder, uses: GroupSlices, *, decodes_rows_needed: bool) -> None:
        self._decoder = decoder
        groups, first, number = np.unique(uses.group, return_index=True, return_inverse=True)
        stop = np.zeros(len(groups), dtype=np.int64)
        np.maximum.at(stop, number, uses.stop)
        stops = stop.tolist() if decodes_rows_needed else [None] * len(groups)
        self._stop_row: dict[int, int | None] = dict(zip(groups.tolist(), stops, strict=True))
        self._waiting: list[int] = groups[np.argsort(first)].tolist()[::-1]
        self._jobs: dict[int, _Job] = {}
        self._at_once = 1

    def prefetch(self) -> None:
        """Start decoding the next row groups, as far as the budget allows."""
        while self._waiting:
            groups = self._next_groups()
            if self._decoder.room_for(groups) < len(groups):
                return
            self._begin(groups)

    def rows(self, group: int) -> Pending[BlockSlice]:
        """The rows of a row group; starts decoding it now if need be, even beyond the budget.

        Row groups that the same job decodes are started only as far as the budget allows.
        """
        return self._job_of(group).rows(group)

    def begun(self, group: int) -> Pending[BlockSlice] | None:
        """The rows of a row group, if its decoding was started and it is still needed."""
        job = self._jobs.get(group)
        return None if job is None else job.rows(group)

    def joined(self, group: int) -> JointDecode | None:
        """The job of several row groups that begins with this one, or None; given once. Starts it if need be."""
        job = self._job_of(group)
        if job.is_told or group != job.groups[0] or not isinstance(job.pending, JointDecode):
            return None
        job.is_told = True
        return job.pending

    def done(self, group: int) -> None:
        """The row group is not needed any more. Row groups of one job share memory, which is freed with the last."""
        job = self._jobs.pop(group)
        job.left -= 1
        self._decoder.release(() if job.left else job.groups)

    def _job_of(self, group: int) -> _Job:
        while group not in self._jobs:
            groups = self._next_groups()
            self._begin(groups[: max(1, self._decoder.room_for(groups))])
        return self._jobs[group]

    def _begin(self, groups: Sequence[int]) -> None:
        """Start one job for the next row groups."""
        del self._waiting[-len(groups) :]
        if self._decoder.is_small(groups[0]):
            self._at_once = min(2 * self._at_once, MOST_TOGETHER)
        wanted = [(group, self._stop_row[group]) for group in groups]
        pending = self._decoder.submit(*wanted[0]) if len(wanted) == 1 else self._decoder.submit_together(wanted)
        self._jobs.update(dict.fromkeys(groups, _Job(groups, left=len(groups), pending=pending)))

    def _next_groups(self) -> list[int]:
        """The row groups of the next job: one, or several small ones (one at first, then twice as many each time)."""
        following = self._waiting[-self._at_once :][::-1]
        small = list(itertools.takewhile(self._decoder.is_small, following))
        return small[: self._decoder.most_of_one_job(small)] if small else following[:1]


T = TypeVar("T")


class LaneBlocks:
    """The rows of each use of a row group by the lane's units, in the order of `uses`.

    Plain units take the rows of their uses: `take`, `take_several`. Windows are gathered from several uses in the
    decoding threads (`gather`) and released later (`finish`). A row group is dropped after its last use.
    """

    def __init__(self, decoder: Decoder, work: WorkerInput, units: Units) -> None:
        self.uses = group_slices(units, work.group_start, work.group_stop)
        self._decoder = decoder
        self._exact = work.exact
        self._use_of_unit = np.searchsorted(self.uses.unit, np.arange(len(units) + 1), side="left").tolist()
        # Later uses overwrite earlier ones.
        self._last_use = {group: use for use, group in enumerate(self.uses.group.tolist())}
        # The row groups of one job may belong to several units, and windows take theirs in another order.
        self._takes_several = work.exact and bool((units.window == PLAIN).all())
        self._ahead = DecodeAhead(decoder, self.uses, decodes_rows_needed=work.exact)

    def prefetch(self) -> None:
        """Start decoding the next row groups, as far as the budget goes."""
        self._ahead.prefetch()

    def take(self, use: int) -> Block:
        """The rows of one use; uses must be taken in order."""
        pending = self._ahead.rows(self._group(use))
        self.prefetch()
        block = self._cut(use, self.wait(pending)).rows()
        self.finish(range(use, use + 1))
        return block

    def take_several(self, use: int) -> tuple[range, Block]:
        """The rows of this use, with those of the next uses if one job decoded all into one block: (uses, rows).

        Several uses only where they are whole row groups in the order in which they were decoded.
        """
        together = self._ahead.joined(self._group(use)) if self._takes_several else None
        uses = range(use, use + (1 if together is None else len(together.groups)))
        rows = None if together is None else self._joined(together, slice(uses.start, uses.stop))
        if rows is None:
            return range(use, use + 1), self.take(use)
        self.finish(uses)
        self.prefetch()
        return uses, rows

    def gather(self, uses: range, job: Callable[[Sequence[Block]], Block]) -> FollowUp[BlockSlice, Block]:
        """Have a decoding thread run a job on the rows of these uses, as soon as they are decoded.

        Starts decoding their row groups if need be, even beyond the budget.
        """
        needed = [self._ahead.rows(self._group(use)) for use in uses]

        def gathered(wholes: Sequence[BlockSlice]) -> Block:
            with self._decoder.counters.decoding():
                return job(in_few_blocks(map(self._cut, uses, wholes)))

        return self._decoder.run_after(needed, gathered)

    def learn_growth(self, uses: range) -> None:
        """Wait for the first of these uses if nothing was decoded yet, so that the budget can be judged.

        Otherwise what follows a window would be started only once the whole window is decoded.
        """
        if uses and not self._decoder.knows_growth:
            self._decoder.counters.count_stall(self._ahead.rows(self._group(uses.start)).exception)

    def finish(self, uses: range) -> None:
        """These uses were taken: row groups whose last use is among them are dropped."""
        for use in uses:
            group = self._group(use)
            if self._last_use[group] == use:
                self._ahead.done(group)

    def wait(self, pending: Awaited[T]) -> T:
        """The result of a decoding thread; waiting for it is counted as a stall."""
        return pending.result() if pending.done() else self._decoder.counters.count_stall(pending.result)

    def has_begun(self, uses: range) -> bool:
        """Whether all row groups of these uses are being decoded or are decoded."""
        return all(self._ahead.begun(self._group(use)) is not None for use in uses)

    def is_ready(self, use: int) -> bool:
        """Whether the row group of a use was started and decoded without an error; waits for that."""
        pending = self._ahead.begun(self._group(use))
        return pending is not None and self._decoder.counters.count_stall(pending.exception) is None

    def uses_of(self, unit: int) -> range:
        """The uses of row groups that one unit of the lane has."""
        return range(self._use_of_unit[unit], self._use_of_unit[unit + 1])

    def where(self, use: int) -> str:
        """The row group of a use, for messages."""
        return self._decoder.where(self._group(use))

    def _group(self, use: int) -> int:
        return int(self.uses.group[use])

    def _joined(self, together: JointDecode, uses: slice) -> Block | None:
        """The block of a job, if it has just the rows of these uses; None if it has others, or did not decode."""
        if self.uses.group[uses].tolist() != together.groups:
            return None
        try:
            rows = self.wait(together)
        except CancelledError:
            return None
        if rows is None:
            return None
        is_whole = not self.uses.start[uses].any() and int(self.uses.stop[uses].sum()) == rows.num_rows
        return rows if is_whole else None

    def _cut(self, use: int, whole: BlockSlice) -> BlockSlice:
        """The rows of a use, out of those of its row group; all of them where row counts are not known."""
        if not self._exact:
            return whole
        return whole.cut(int(self.uses.start[use]), int(self.uses.stop[use]))


# Windows gathered ahead of the trainer's current one; part of the documented memory of a rank.
_WINDOWS_AHEAD = 2


class LaneWindows:
    """Gives the rows of a lane's window units, which must be taken in order.

    The next windows are gathered ahead once their row groups are being decoded, so that the trainer's thread does no
    work for each row.
    """

    def __init__(
        self, program: WorkerProgram, units: Units, blocks: LaneBlocks, shaper: Shaper, *, exact: bool
    ) -> None:
        self._program = program
        self._units = units
        self._blocks = blocks
        self._shaper = shaper
        self._exact = exact
        self._gathered: dict[int, FollowUp[BlockSlice, Block]] = {}

    def take(self, unit: int) -> Block:
        """The rows of a unit, which are part of its window, in the window's order."""
        if unit not in self._gathered:
            self._start(unit)
        self._blocks.learn_growth(self._blocks.uses_of(unit))
        self._blocks.prefetch()
        self._look_ahead(unit)
        rows = self._blocks.wait(self._gathered.pop(unit))
        self._blocks.finish(self._blocks.uses_of(unit))
        return rows

    def close(self) -> None:
        """Drop what is gathered ahead; it refers to this."""
        self._gathered.clear()

    def _look_ahead(self, unit: int) -> None:
        for ahead in range(unit + 1, min(unit + 1 + _WINDOWS_AHEAD, len(self._units))):
            if self._units.window[ahead] == PLAIN or not self._blocks.has_begun(self._blocks.uses_of(ahead)):
                return
            if ahead not in self._gathered:
                self._start(ahead)

    def _start(self, unit: int) -> None:
        uses = self._blocks.uses_of(unit)
        self._gathered[unit] = self._blocks.gather(uses, lambda blocks: self._gather(unit, blocks))

    def _gather(self, unit: int, blocks: Sequence[Block]) -> Block:
        order = self._order(unit, blocks)
        start, stop = int(self._units.start[unit]), int(self._units.stop[unit]) if self._exact else len(order)
        return self._shaper.gather(blocks, order[start:stop])

    def _order(self, unit: int, blocks: Sequence[Block]) -> Int64s:
        key = int(self._units.windows.keys[self._units.window[unit]])
        program = self._program
        if program.by_length is not None:
            lengths = np.concatenate([block.lengths for block in cast("Sequence[MeasuredBlock]", blocks)])
            return program.by_length.order(lengths, seed=program.seed, epoch=program.epoch, index=key)
        rows = sum(block.num_rows for block in blocks)
        return permutation(rows, seed=program.seed, epoch=program.epoch, purpose=Purpose.WINDOW, index=key)


# A small block is joined with the blocks after it that are being decoded, up to so many batches or bytes: with many
# small files, a batch at every border would have to be put together from two blocks. The first block of a pass is not
# joined, so that the first batch does not wait.
_JOINED_BATCHES = 16
_JOINED_BYTES = 1 << 20


class LaneReader:
    """Gives the rows of one lane in order. cursor: (units finished, rows taken of the next unit)."""

    def __init__(
        self, program: WorkerProgram, units: Units, blocks: LaneBlocks, shaper: Shaper, *, exact: bool
    ) -> None:
        self._units = units
        self._blocks = blocks
        self._shaper = shaper
        self._exact = exact
        self._windows = LaneWindows(program, units, blocks, shaper, exact=exact)
        self._source = self._unit_blocks()
        self._current: Block | None = None
        self._offset = 0
        self._ends: list[tuple[int, int]] = [(0, 0)]
        self._next_use = 0
        self.cursor = (0, 0)

    def prefetch(self) -> None:
        """Start decoding what comes next."""
        self._blocks.prefetch()

    def close(self) -> None:
        """Drop all rows now: reference cycles would keep them until the garbage collector runs."""
        self._source.close()
        self._windows.close()
        self._current = None

    @property
    def where(self) -> str:
        """The row group that the last rows came from, for messages."""
        return self._blocks.where(next(use for end, use in self._ends if self._offset <= end))

    def take(self, rows: int) -> Iterator[BlockSlice]:
        """The next `rows` rows, as one span or several; fewer only where the lane ends."""
        while rows > 0 and (block := self._block_with_rows(rows)) is not None:
            start, count = self._offset, min(rows, block.num_rows - self._offset)
            self.advance(count)
            rows -= count
            yield BlockSlice(block, start, start + count)

    def whole_batches(self, batch_rows: int, most: int) -> Iterator[object]:
        """Batches that lie whole in the current block, at most `most`, as views: the fast path.

        Call `advance(batch_rows)` for each one that is taken; none are left over when the next rows are asked for.
        """
        block = self._block_with_rows(batch_rows)
        if block is None:
            return iter(())
        count = min((block.num_rows - self._offset) // batch_rows, most)
        return block.slice(self._offset, self._offset + count * batch_rows).split(batch_rows) if count else iter(())

    def advance(self, rows: int) -> None:
        """The next rows of the current block were taken."""
        self._offset += rows
        self.cursor = (self.cursor[0], self.cursor[1] + rows)

    def _block_with_rows(self, batch_rows: int) -> Block | None:
        """The current block, or the next one if all its rows are taken; None at the end of the lane."""
        while self._current is None or self._offset == self._current.num_rows:
            self._current, self._offset = None, 0  # let go of it before the next one is waited for
            taken = next(self._source, None)
            if taken is None:
                return None
            block, uses = taken
            self._ends = self._ends_of(block, uses, 0)
            may_wait = self._exact and self.cursor != (0, 0)
            self._current = self._joined(block, batch_rows * _JOINED_BATCHES) if may_wait else block
        return self._current

    def _joined(self, block: Block, rows: int) -> Block:
        """The block joined with plain blocks after it that are being decoded, up to `rows` rows and _JOINED_BYTES."""
        if self._ends[-1][0] >= rows:
            return block
        parts, num_bytes = [block], block.num_bytes
        while self._ends[-1][0] < rows and num_bytes < _JOINED_BYTES and self._next_is_plain():
            part, uses = next(self._source)
            parts.append(part)
            self._ends += self._ends_of(part, uses, self._ends[-1][0])
            num_bytes += part.num_bytes
        return block if len(parts) == 1 else self._shaper.concat(parts)

    def _ends_of(self, block: Block, uses: range, before: int) -> list[tuple[int, int]]:
        """Where the rows of each use end, in a block that has `before` rows before these."""
        if len(uses) == 1:  # of plans without row counts, only the block itself knows its rows
            return [(before + block.num_rows, uses.start)]
        of_uses = slice(uses.start, uses.stop)
        counts = self._blocks.uses.stop[of_uses] - self._blocks.uses.start[of_uses]
        return list(zip((before + np.cumsum(counts)).tolist(), uses, strict=True))

    def _next_is_plain(self) -> bool:
        following = self._next_use
        if following >= len(self._blocks.uses) or self._units.window[self._blocks.uses.unit[following]] != PLAIN:
            return False
        return self._blocks.is_ready(following)

    def _unit_blocks(self) -> Generator[tuple[Block, range]]:
        """The rows of all units as blocks, each with the range of uses (see LaneBlocks) that it is made of."""
        for unit in range(len(self._units)):
            self.cursor = (unit, 0)
            uses = self._blocks.uses_of(unit)
            if self._units.window[unit] == PLAIN:
                # The first of them may have come with those of the unit before.
                while self._next_use < uses.stop:
                    taken, block = self._blocks.take_several(self._next_use)
                    self._next_use = taken.stop
                    yield block, taken
                continue
            self._next_use = uses.stop
            last = range(max(uses.stop - 1, 0), max(uses.stop, 1))  # a unit may have no rows, and no uses
            if self._units.windows.permuted:
                yield self._windows.take(unit), last
            else:
                block = self._blocks.take(uses.start)
                yield block.slice(min(int(self._units.start[unit]), block.num_rows), block.num_rows), last
        self.cursor = (len(self._units), 0)
