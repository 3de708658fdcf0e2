"""Runs: consecutive batches that a worker process sends together, as few pieces of memory.

A piece is rows of one block, sent where they lie. Only where a batch spans two blocks, or a block is small, rows are
first put together:

    batches of 1,000 rows; block 1 has 5,600, block 2, which is small, 1,900, block 3 has 7,500
    pieces: 5 batches of block 1, 3 put together of the rest of it, block 2 and half a batch of block 3, 7 of block 3
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils.stream.row_span import RowSpan

# Sending one more piece costs as much as copying this many bytes, so smaller blocks are put together.
LEAST_PIECE_BYTES = 256 << 10


class Piece(NamedTuple):
    """`rows[i]` rows of `batch` are batch i of the piece."""

    batch: Any
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive batches that are sent together."""

    pieces: tuple[Piece, ...]


def pieces_of(spans: Sequence[RowSpan], rows: tuple[int, ...], shaper: Shaper) -> Iterator[Piece]:
    """The pieces of batches of `rows[0]`, `rows[1]`, ... rows, which are the rows of these spans."""
    borders = list(accumulate(rows, initial=0))
    begin, done = 0, 0  # the row that the span begins with; the first batch that is in no piece yet
    waiting: list[RowSpan] = []  # rows that are in no piece yet
    for span in spans:
        end = begin + span.stop - span.start
        first, last = bisect_left(borders, begin), bisect_right(borders, end) - 1
        if _is_large(span, borders[max(first, last)] - borders[first]):
            start, stop = span.start + borders[first] - begin, span.start + borders[last] - begin
            waiting += _rows_of(span, span.start, start)
            if waiting:
                yield Piece(_together(waiting, shaper), rows[done:first])
            yield Piece(span.block.slice(start, stop).to_batch(), rows[first:last])
            done, waiting = last, _rows_of(span, stop, span.stop)
        else:
            waiting.append(span)
        begin = end
    if waiting:
        yield Piece(_together(waiting, shaper), rows[done:])


def _is_large(span: RowSpan, rows: int) -> bool:
    return rows > 0 and rows * span.block.num_bytes >= LEAST_PIECE_BYTES * span.block.num_rows


def _rows_of(span: RowSpan, start: int, stop: int) -> list[RowSpan]:
    return [RowSpan(span.block, start, stop)] if stop > start else []


def _together(spans: Sequence[RowSpan], shaper: Shaper) -> Any:
    return shaper.concat([span.rows() for span in spans]).to_batch()
