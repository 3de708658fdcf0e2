"""Cut blocks into slices, and join slices to batch groups: neighbouring batches that a worker process sends at once.

A group has one or several parts. A part is rows of one block, sent without a copy. Rows are first put together only if
a batch spans two blocks or a block is small:

    batches of 1,000 rows; block 1 has 5,600 rows, block 2 is small and has 1,900, block 3 has 7,500
    parts: 5 batches of block 1; 3 batches put together from the rest of block 1, block 2 and the first 500 rows of
           block 3; 7 batches of block 3
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from torch_dataloader_utils._core.block import Block, Shaper
from torch_dataloader_utils._core.row_group_task import GroupRows


class BlockSlice(NamedTuple):
    """Rows [start, stop) of a block."""

    block: Block
    start: int
    stop: int

    @classmethod
    def of(cls, block: Block) -> Self:
        """Return all rows of a block."""
        return cls(block, 0, block.num_rows)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @classmethod
    def one_after_other(cls, block: Block, rows: Sequence[int]) -> list[Self]:
        """Return the first rows[0] rows of a block, the next rows[1] rows, ..."""
        return [cls(block, start, stop) for start, stop in pairwise(accumulate(rows, initial=0))]

    def cut(self, start: int, stop: int | None = None) -> Self:
        """Return rows [start, stop) of this slice; rows past its end are left out."""
        start, stop = GroupRows(start, stop).of(self.num_rows)
        return type(self)(self.block, self.start + start, self.start + stop)

    def rows(self) -> Block:
        """Return the rows as a block."""
        return self.block.slice(self.start, self.stop)


def in_few_blocks(slices: Iterable[BlockSlice]) -> list[Block]:
    """Return the rows of all slices, in order. Slices that follow each other in one block become one block."""
    return [each.rows() for each in _merged(slices)]


def put_together(slices: Iterable[BlockSlice], shaper: Shaper) -> Block:
    """Return the rows of all slices (at least one), in order. Neighbouring rows of one block are not copied."""
    merged = _merged(slices)
    spans = [(number, each.start, each.num_rows) for number, each in enumerate(merged)]
    return shaper.concat([each.block for each in merged], np.array(spans, np.int64))


def _merged(slices: Iterable[BlockSlice]) -> list[BlockSlice]:
    """Return the slices; slices that follow each other in one block become one slice."""
    merged: list[BlockSlice] = []
    for block, start, stop in slices:
        if merged and merged[-1].block is block and merged[-1].stop == start:
            start = merged.pop().start
        merged.append(BlockSlice(block, start, stop))
    return merged


# Sending another part costs as much as copying this many bytes, so smaller blocks are put together.
LEAST_PART_BYTES = 256 << 10


class GroupPart(NamedTuple):
    """Neighbouring batches in one object: batch i has the next `rows[i]` rows of `batch`."""

    batch: Any
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGroup:
    """Consecutive batches that are sent together."""

    parts: tuple[GroupPart, ...]


def group_parts(slices: Sequence[BlockSlice], rows: tuple[int, ...], shaper: Shaper) -> Iterator[GroupPart]:
    """Yield the parts of a group of batches. The batches have `rows[0]`, `rows[1]`, ... rows of these slices."""
    borders = list(accumulate(rows, initial=0))
    begin, done = 0, 0  # first row of the slice; first batch that is in no part yet
    waiting: list[BlockSlice] = []  # rows that are in no part yet
    for each in slices:
        end = begin + each.num_rows
        first, last = bisect_left(borders, begin), bisect_right(borders, end) - 1
        if _is_large(each, borders[max(first, last)] - borders[first]):
            start, stop = each.start + borders[first] - begin, each.start + borders[last] - begin
            waiting += _part_of(each, each.start, start)
            if waiting:
                yield GroupPart(put_together(waiting, shaper).to_batch(), rows[done:first])
            yield GroupPart(each.block.slice(start, stop).to_batch(), rows[first:last])
            done, waiting = last, _part_of(each, stop, each.stop)
        else:
            waiting.append(each)
        begin = end
    if waiting:
        yield GroupPart(put_together(waiting, shaper).to_batch(), rows[done:])


def _is_large(whole: BlockSlice, rows: int) -> bool:
    return rows > 0 and rows * whole.block.num_bytes >= LEAST_PART_BYTES * whole.block.num_rows


def _part_of(whole: BlockSlice, start: int, stop: int) -> list[BlockSlice]:
    return [BlockSlice(whole.block, start, stop)] if stop > start else []
