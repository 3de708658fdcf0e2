"""Read one lane as a stream of rows: row groups are decoded ahead to blocks, and batches take rows of these blocks."""

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import repeat
from typing import Any, cast

import numpy as np

from torch_dataloader_utils._core.block import Block, MeasuredBlock, Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.program import WorkerInput, WorkerProgram
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows
from torch_dataloader_utils._core.units import PLAIN, GroupSlices, Units, group_slices
from torch_dataloader_utils.stream.batch_groups import BlockSlice, in_few_blocks, put_together
from torch_dataloader_utils.stream.decode import MOST_GROUPS_OF_JOB, DecodeScheduler
from torch_dataloader_utils.stream.decode_jobs import DecodeJob, DependentJob, GroupToDecode, Pending


class DecodeAhead:
    """Row groups of a lane that are decoded ahead; holds each row group's pending rows until `done` is called for it.

    decodes_rows_needed: true to decode a row group only from the first to the last row that the lane needs, if the
        format allows it; false if row counts are not known.
    """

    def __init__(self, decoder: DecodeScheduler, slices: GroupSlices, *, decodes_rows_needed: bool) -> None:
        self._decoder = decoder
        decoder.add_lane(self)
        groups, first, number = np.unique(slices.group, return_index=True, return_inverse=True)
        start, stop = slices.start[first], slices.stop[first]
        np.minimum.at(start, number, slices.start)
        np.maximum.at(stop, number, slices.stop)
        needed = map(GroupRows, start.tolist(), stop.tolist()) if decodes_rows_needed else repeat(ALL_ROWS)
        self._needed: dict[int, GroupRows] = dict(zip(groups.tolist(), needed, strict=False))
        self._waiting: list[int] = groups[np.argsort(first)].tolist()[::-1]
        rows_left = (slices.stop - slices.start)[::-1].cumsum()[::-1]
        self._rows_left: list[int] = rows_left[np.sort(first)].tolist()[::-1]
        self._jobs: dict[int, DecodeJob] = {}
        self._most_groups = 1

    def rows_left(self) -> int:
        """Return the number of rows from the first row group that was not started to the end of the lane."""
        return self._rows_left[len(self._waiting) - 1] if self._waiting else 0

    def begin_next(self) -> bool:
        """Start decoding the next row groups if there is room for them; return whether there was."""
        groups = self._next_groups()
        if self._decoder.room_for(groups) < len(groups):
            return False
        self._begin(groups)
        return True

    def rows(self, group: int) -> Pending[BlockSlice]:
        """Return the rows of a row group from `first_row` on. Starts decoding it if necessary, even beyond the budget.

        Other row groups of the same job are started only as far as the budget allows.
        """
        return self._job_of(group).rows(group)

    def first_row(self, group: int) -> int:
        """Return the first row of a row group that the lane needs."""
        return self._needed[group].start

    def begun(self, group: int) -> Pending[BlockSlice] | None:
        """Return the rows of a row group; None if its decoding was not started or it is not needed any more."""
        job = self._jobs.get(group)
        return None if job is None else job.rows(group)

    def done(self, group: int) -> None:
        """Release a row group that is not needed any more."""
        self._decoder.release(self._jobs.pop(group))

    def _job_of(self, group: int) -> DecodeJob:
        while group not in self._jobs:
            groups = self._next_groups()
            self._begin(groups[: max(1, self._decoder.room_for(groups))])
        return self._jobs[group]

    def _begin(self, groups: Sequence[int]) -> None:
        """Start one job for the next row groups."""
        del self._waiting[-len(groups) :]
        self._most_groups = min(2 * self._most_groups, MOST_GROUPS_OF_JOB)
        job = self._decoder.submit([GroupToDecode(group, self._needed[group]) for group in groups])
        self._jobs.update(dict.fromkeys(groups, job))

    def _next_groups(self) -> Sequence[int]:
        """Return the row groups of the next job: at most one in the first job; the limit doubles with each job."""
        return self._decoder.next_job(self._waiting[-self._most_groups :][::-1])


class LaneBlocks:
    """Rows of a lane's group slices. A slice is known by its number: its index in `slices`.

    Plain units take the rows of their slices (`take`). Windows are gathered from several slices in the decoding threads
    (`gather`) and released later (`finish`). A row group is dropped after its last slice.

    units: units of the lane. is_exact: false if row counts are not known; a slice then has all rows of its row group.
    """

    def __init__(self, decoder: DecodeScheduler, work: WorkerInput, units: Units) -> None:
        self.units = units
        self.is_exact = work.exact
        self.slices = group_slices(units, work.group_start, work.group_stop)
        self._decoder = decoder
        self._first_of_unit = np.searchsorted(self.slices.unit, np.arange(len(units) + 1), side="left").tolist()
        self._groups: list[int] = self.slices.group.tolist()
        # Later slices overwrite earlier ones.
        self._last_of_group = {group: number for number, group in enumerate(self._groups)}
        self._ahead = DecodeAhead(decoder, self.slices, decodes_rows_needed=work.exact)

    def take(self, number: int) -> BlockSlice:
        """Return the rows of one slice. Slices must be taken in order."""
        pending = self.begin(number)
        if self._decoder.has_freed or not pending.done():  # else the budget has no more room than before
            self._decoder.prefetch()
        rows = self._cut(number, self._decoder.wait(pending))
        self.finish(range(number, number + 1))
        return rows

    def begin(self, number: int) -> Pending[BlockSlice]:
        """Return the decoded rows of a slice's row group; start decoding it if necessary, even beyond the budget."""
        return self._ahead.rows(self._group(number))

    def rows_of(self, number: int) -> tuple[int, int]:
        """Return which of the decoded rows of its row group a slice has: the first, and the end."""
        first = self._ahead.first_row(self._group(number))
        return int(self.slices.start[number]) - first, int(self.slices.stop[number]) - first

    def gather(self, slices: range, job: Callable[[Sequence[Block]], Block]) -> DependentJob[BlockSlice, BlockSlice]:
        """Let a decoding thread run a job on the rows of these slices, as soon as they are decoded.

        Starts decoding their row groups if necessary, even beyond the budget.
        """
        needed = [self.begin(number) for number in slices]

        def gathered(wholes: Sequence[BlockSlice]) -> BlockSlice:
            with self._decoder.counters.decoding():
                return BlockSlice.of(job(in_few_blocks(map(self._cut, slices, wholes))))

        return self._decoder.run_after(needed, gathered)

    def look_ahead(self, slices: range) -> None:
        """Start decoding what comes after these slices, which have begun, as far as the budget allows.

        Waits for the first slice if no row group was decoded yet, so that decoded sizes can be estimated. Otherwise the
        row groups after a window would be started only after the whole window is decoded.
        """
        if slices and not self._decoder.knows_growth:
            self._decoder.counters.count_stall(self.begin(slices.start).exception)
        self._decoder.prefetch()

    def finish(self, slices: range) -> None:
        """Record that these slices were taken, and drop each row group whose last slice was taken."""
        for number in slices:
            group = self._group(number)
            if self._last_of_group[group] == number:
                self._ahead.done(group)

    def finish_window(self, window: DependentJob[BlockSlice, BlockSlice], slices: range) -> BlockSlice:
        """Wait for the rows of a window, finish its slices, and return the rows. Waiting counts as a stall."""
        rows = self._decoder.wait(window)
        self.finish(slices)
        return rows

    def has_begun(self, slices: range) -> bool:
        """Return whether the decoding of all row groups of these slices was started."""
        return all(self._ahead.begun(self._group(number)) is not None for number in slices)

    def block_of(self, number: int, *, waits: bool) -> Block | None:
        """Return the block of a slice's row group; None if its decoding was not started or failed.

        waits: true to wait for a row group that is being decoded; false to return None for it.
        """
        pending = self._ahead.begun(self._group(number))
        if pending is None:
            return None
        if not pending.done():
            if not waits:
                return None
            self._decoder.counters.count_stall(pending.exception)
        return None if pending.exception() else pending.result().block

    def slices_of(self, unit: int) -> range:
        """Return the numbers of a unit's slices."""
        return range(self._first_of_unit[unit], self._first_of_unit[unit + 1])

    def where(self, number: int) -> str:
        """Return the description of a slice's row group, for messages."""
        return self._decoder.where(self._group(number))

    def _group(self, number: int) -> int:
        return self._groups[number]

    def _cut(self, number: int, whole: BlockSlice) -> BlockSlice:
        """Cut a slice's rows from the decoded rows of its row group."""
        return whole.cut(*self.rows_of(number)) if self.is_exact else whole


# Number of windows gathered ahead of the trainer's current window; part of the documented memory of a rank.
_WINDOWS_AHEAD = 2


class LaneWindows:
    """Rows of a lane's window units, to be taken in order.

    The next windows are gathered ahead once their row groups are being decoded, so that the trainer's thread does no
    work for each row.
    """

    def __init__(self, program: WorkerProgram, blocks: LaneBlocks, shaper: Shaper) -> None:
        self._program = program
        self._units = blocks.units
        self._blocks = blocks
        self._shaper = shaper
        self._gathered: dict[int, DependentJob[BlockSlice, BlockSlice]] = {}

    def begin(self, unit: int) -> DependentJob[BlockSlice, BlockSlice]:
        """Return the rows of a unit (a part of its window) in the window's order; let the next windows begin too."""
        if unit not in self._gathered:
            self._start(unit)
        self._blocks.look_ahead(self._blocks.slices_of(unit))
        self._look_ahead(unit)
        return self._gathered.pop(unit)

    def close(self) -> None:
        """Drop the windows that are gathered ahead: they refer to this object."""
        self._gathered.clear()

    def _look_ahead(self, unit: int) -> None:
        for ahead in range(unit + 1, min(unit + 1 + _WINDOWS_AHEAD, len(self._units))):
            if self._units.window[ahead] == PLAIN or not self._blocks.has_begun(self._blocks.slices_of(ahead)):
                return
            if ahead not in self._gathered:
                self._start(ahead)

    def _start(self, unit: int) -> None:
        slices = self._blocks.slices_of(unit)
        self._gathered[unit] = self._blocks.gather(slices, lambda blocks: self._gather(unit, blocks))

    def _gather(self, unit: int, blocks: Sequence[Block]) -> Block:
        order = self._order(unit, blocks)
        start, stop = int(self._units.start[unit]), int(self._units.stop[unit]) if self._blocks.is_exact else len(order)
        return self._shaper.gather(blocks, order[start:stop])

    def _order(self, unit: int, blocks: Sequence[Block]) -> Int64s:
        key = int(self._units.windows.keys[self._units.window[unit]])
        program = self._program
        if program.by_length is not None:
            lengths = np.concatenate([block.lengths for block in cast("Sequence[MeasuredBlock]", blocks)])
            return program.by_length.order(lengths, seed=program.seed, epoch=program.epoch, index=key)
        rows = sum(block.num_rows for block in blocks)
        return permutation(rows, seed=program.seed, epoch=program.epoch, purpose=Purpose.WINDOW, index=key)


# A small row group is joined with the next row groups that are being decoded, up to so many batches or bytes. Without
# this, with many small files, the batch at every border would have to be put together from two blocks. The first row
# group of a pass is not joined, so that the first batch does not wait.
_JOINED_BATCHES = 16
_JOINED_BYTES = 1 << 20


class LaneReader:
    """Reader of one lane: gives its rows in order. cursor: (units finished, rows taken of the next unit)."""

    def __init__(self, program: WorkerProgram, blocks: LaneBlocks, shaper: Shaper) -> None:
        self._units = blocks.units
        self._blocks = blocks
        self._shaper = shaper
        self._windows = LaneWindows(program, blocks, shaper)
        self._source = self._unit_rows()
        self._current: Block | None = None
        self._offset = 0
        self._cut: Iterator[Any] | None = None  # the batches of `_cut_rows` rows from `_offset` on
        self._cut_rows = 0
        self._ends: list[tuple[int, int]] = [(0, 0)]  # of each slice in the current block: its end, and its number
        self._next_slice = 0
        self.cursor = (0, 0)

    def close(self) -> None:
        """Drop all rows now: reference cycles would keep them until the garbage collector runs."""
        self._source.close()
        self._windows.close()
        self._current = self._cut = None

    @property
    def where(self) -> str:
        """Description of the row group that the last rows came from, for messages."""
        return self._blocks.where(next(number for end, number in self._ends if self._offset <= end))

    def take(self, rows: int) -> Iterator[BlockSlice]:
        """Yield the next `rows` rows, as one slice or several; fewer rows only at the end of the lane."""
        self._cut = None
        while rows > 0 and (block := self._block_with_rows(rows)) is not None:
            start, count = self._offset, min(rows, block.num_rows - self._offset)
            self._advance(count)
            rows -= count
            yield BlockSlice(block, start, start + count)

    def whole_batch(self, rows: int, *, cuts_ahead: bool) -> Any:
        """Return the next `rows` rows as one batch of views; None if they do not lie whole in one block.

        cuts_ahead: true if the lane's next batches have as many rows: the block is cut for several of them at once.
        """
        block = self._block_with_rows(rows)
        if block is None or block.num_rows - self._offset < rows:
            return None
        start = self._offset
        self._advance(rows)
        if not cuts_ahead:
            return block.slice(start, start + rows).to_batch()
        if self._cut is None or self._cut_rows != rows:
            whole = (block.num_rows - start) // rows * rows
            self._cut, self._cut_rows = block.slice(start, start + whole).split(rows), rows
        return next(self._cut)

    def _advance(self, rows: int) -> None:
        """Record that the next `rows` rows of the current block were taken."""
        self._offset += rows
        self.cursor = (self.cursor[0], self.cursor[1] + rows)

    def _block_with_rows(self, batch_rows: int) -> Block | None:
        """Return the current block, or the next block if all its rows are taken; None at the end of the lane."""
        while self._current is None or self._offset == self._current.num_rows:
            self._current, self._cut, self._offset = None, None, 0  # released before waiting for the next block
            taken = next(self._source, None)
            if taken is None:
                return None
            rows, number = taken
            self._ends = [(rows.num_rows, number)]
            may_wait = self._blocks.is_exact and self.cursor != (0, 0)
            slices = self._with_following(rows, batch_rows * _JOINED_BATCHES) if may_wait else [rows]
            self._current = put_together(slices, self._shaper)
        return self._current

    def _with_following(self, rows: BlockSlice, most_rows: int) -> list[BlockSlice]:
        """Return these rows and the next plain rows that are being decoded, up to `most_rows` and _JOINED_BYTES.

        Beyond these limits, return only rows that follow in the same block: they cost nothing.
        """
        slices, num_bytes = [rows], rows.block.num_bytes
        while True:
            is_enough = self._ends[-1][0] >= most_rows or num_bytes >= _JOINED_BYTES
            block = self._next_plain_block(waits=not is_enough)
            if block is None:
                return slices
            if block is not slices[-1].block:
                if is_enough:
                    return slices
                num_bytes += block.num_bytes
            rows, number = next(self._source)
            slices.append(rows)
            self._ends.append((self._ends[-1][0] + rows.num_rows, number))

    def _next_plain_block(self, *, waits: bool) -> Block | None:
        following = self._next_slice
        if following >= len(self._blocks.slices) or self._units.window[self._blocks.slices.unit[following]] != PLAIN:
            return None
        return self._blocks.block_of(following, waits=waits)

    def _unit_rows(self) -> Generator[tuple[BlockSlice, int]]:
        """Yield the rows of all units in pieces, each with the number of its last slice (see LaneBlocks)."""
        for unit in range(len(self._units)):
            self.cursor = (unit, 0)
            slices = self._blocks.slices_of(unit)
            if self._units.window[unit] == PLAIN:
                for number in slices:
                    self._next_slice = number + 1
                    yield self._blocks.take(number), number
                continue
            self._next_slice = slices.stop
            last = max(slices.stop - 1, 0)  # a unit may have no rows and no slices
            if self._units.windows.permuted:
                yield self._blocks.finish_window(self._windows.begin(unit), slices), last
            else:
                rows = self._blocks.take(slices.start)
                yield rows.cut(int(self._units.start[unit])), last
        self.cursor = (len(self._units), 0)
