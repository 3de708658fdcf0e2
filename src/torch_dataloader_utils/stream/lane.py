"""Reads one lane as a stream of rows: its units become blocks, from which batches take rows."""

from collections.abc import Generator, Iterator

import numpy as np

from torch_dataloader_utils._core.block import Block, Shaper
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.units import PLAIN, Units
from torch_dataloader_utils.stream.lane_blocks import LaneBlocks
from torch_dataloader_utils.stream.row_span import RowSpan
from torch_dataloader_utils.stream.windows import LaneWindows

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

    def take(self, rows: int) -> Iterator[RowSpan]:
        """The next `rows` rows, as one span or several; fewer only where the lane ends."""
        while rows > 0 and (block := self._block_with_rows(rows)) is not None:
            start, count = self._offset, min(rows, block.num_rows - self._offset)
            self._moved(count)
            rows -= count
            yield RowSpan(block, start, start + count)

    def whole_batches(self, batch_rows: int, most: int) -> Iterator[object]:
        """Batches that lie whole in the current block, at most `most`, as views: the fast path."""
        block = self._block_with_rows(batch_rows)
        if block is None:
            return
        count = min((block.num_rows - self._offset) // batch_rows, most)
        if count == 0:
            return
        for batch in block.slice(self._offset, self._offset + count * batch_rows).split(batch_rows):
            self._moved(batch_rows)
            yield batch

    def _moved(self, rows: int) -> None:
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
