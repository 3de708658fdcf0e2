"""Columns of numbers, or of lists of numbers, which the compiled decoder reads into memory that is used again.

    row group → bytes of its chunks of numbers → one call of the decoder → one RecordBatch over one piece of memory

Columns that the decoder does not fully understand (an encoding, a codec, a damaged page) are left to pyarrow, column by
column. Rows, errors and verdicts do not depend on the decoder.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.batches import MAX_OFFSET
from torch_dataloader_utils._arrow.number_batch import NumberBatch
from torch_dataloader_utils._arrow.process_memory import RECYCLED, ProcessMemory
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.row_group_task import GroupRows
from torch_dataloader_utils._observe.counters import count_chunks
from torch_dataloader_utils._runtime.reused_memory import Bytes
from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.formats.parquet.footer_numbers import FooterNumbers, OfChunk, chunk_starts
from torch_dataloader_utils.formats.parquet.number_places import NumberTable, Places
from torch_dataloader_utils.formats.task_source import TaskSource

# A footer may claim any number of values. Before pages are looked at, no more memory is taken than this, or than so
# many times the stored bytes.
_UNSEEN_BYTES = 32 << 20
_UNSEEN_RATIO = 16

# More values than any memory holds. A footer may claim so many values that 64 bits do not hold the number of bytes.
_MOST_COUNTED = 1 << 44

PAGES = ProcessMemory()
"""Memory of stored pages. Only this process sees it."""


class _Chunks(NamedTuple):
    """Chunks of one row group that are decoded.

    numbers: int64 [columns, 4], as the decoder takes them: codec, offset in the file, length, and number of values (for
    lists, of levels) by the footer.
    """

    table: NumberTable
    numbers: Int64s

    @property
    def starts(self) -> Int64s:
        """Return the offsets in the file."""
        return self.numbers[:, 1]

    @property
    def lengths(self) -> Int64s:
        """Return the numbers of bytes."""
        return self.numbers[:, 2]

    @property
    def values(self) -> Int64s:
        """Return the numbers of values by the footer."""
        return self.numbers[:, 3]


class FileChunks(NamedTuple):
    """Chunks of columns of numbers in all row groups of a file: arrays [row groups, columns].

    numbers: See `_Chunks`. fit: Whether the chunk lies in the file and may have the rows of its row group. are_known:
    Whether the codec is known. num_bytes: Bytes of the decoded values. have_nulls: Whether the chunk has fixed-size
    lists with nulls, which are left to pyarrow. usual_bytes: Sums of `num_bytes`, for each row group; for a row group
    with chunks that the decoder may not read, a number larger than any.
    """

    table: NumberTable
    numbers: Int64s
    fit: npt.NDArray[np.bool_]
    are_known: npt.NDArray[np.bool_]
    num_bytes: Int64s
    have_nulls: npt.NDArray[np.bool_]
    usual_bytes: Sequence[int]

    @classmethod
    def of(cls, table: NumberTable, footer: FooterNumbers, file_size: int) -> Self:
        """Return the chunks of columns, as the footer describes them."""
        chunks, are_lists, rows = footer.chunks[:, table.leaves], table.are_lists, footer.groups[:, :1]
        codecs, values, lengths = (chunks[..., each] for each in (OfChunk.CODEC, OfChunk.VALUES, OfChunk.COMPRESSED))
        starts = chunk_starts(chunks)
        are_there = (starts >= 0) & (lengths >= 0) & (starts <= file_size - lengths)
        fit = are_there & np.where(are_lists, (rows <= values) & (values <= MAX_OFFSET), values == rows)
        are_known = np.isin(codecs, list(filter(_engine.has_codec, set(codecs.ravel().tolist()))))
        have_nulls = np.zeros(fit.shape, np.bool_)
        fixed = list(table.fixed_sizes)
        have_nulls[:, fixed] = chunks[:, fixed, OfChunk.NULLS] > 0
        num_bytes = np.minimum(values, _MOST_COUNTED) * table.layouts[:, -1] // 8
        are_usual = np.logical_and.reduce(fit & are_known & ~have_nulls, axis=1)
        return cls(
            table=table,
            numbers=np.ascontiguousarray(np.stack([codecs, starts, lengths, values], axis=-1)),
            fit=fit,
            are_known=are_known,
            num_bytes=num_bytes,
            have_nulls=have_nulls,
            usual_bytes=np.where(are_usual, num_bytes.sum(axis=1), np.iinfo(np.int64).max).tolist(),
        )

    def of_group(self, ordinal: int, room_bytes: int) -> _Chunks:
        """Return the chunks of a row group that the decoder may read. Other chunks are counted.

        room_bytes: Limit of the decoded bytes. Larger lists are left to pyarrow, which takes memory as it goes.
        """
        if self.usual_bytes[ordinal] <= room_bytes:
            return _Chunks(self.table, self.numbers[ordinal])
        kept = []
        facts = (each[ordinal].tolist() for each in (self.fit, self.are_known, self.have_nulls, self.num_bytes))
        for index, (fits, is_known, has_nulls, num_bytes) in enumerate(zip(*facts, strict=True)):
            if not fits:
                count_chunks("damaged")
            elif has_nulls:
                count_chunks("type")
            elif not is_known:
                count_chunks("codec")
            elif num_bytes > room_bytes:
                count_chunks("too large")
            else:
                room_bytes -= num_bytes
                kept.append(index)
        return _Chunks(NumberTable.of(self.table.columns[index] for index in kept), self.numbers[ordinal, kept])


def read_numbers(
    source: TaskSource, chunks: FileChunks, group_rows: int, rows: GroupRows
) -> list[pa.RecordBatch | NumberBatch]:
    """Return rows of a row group of `group_rows` rows, with the columns that the decoder reads; see `Places.batches`.

    Raises:
        FileChangedError, StoreError: the bytes of the chunks are not the planned bytes.
    """
    start, stop = rows.of(group_rows)
    num_rows = stop - start
    taken = chunks.of_group(source.task.ordinal, source.max_row_group_bytes)
    count = len(taken.numbers)
    if not count:
        return []
    places, wanted = Places.of_rows(taken.table, taken.values, num_rows), np.array([start, num_rows], np.int64)
    is_bounded = _is_bounded(taken, places.num_bytes)
    decoded = _decoded_from_file(source, taken, places, wanted) if is_bounded else None
    if decoded is None or "not read" in decoded.refused:
        pages, placed = _read_pages(source, taken)  # raises why a file is not read: gone, replaced or shorter
        if not is_bounded and _lacks_values(pages, placed):
            count_chunks("damaged", count)
            return []
        decoded = _decoded(source, pages, placed, places, wanted)
    memory, results, refused = decoded
    reasons = places.checked(memory, results, refused)
    for reason, number in Counter(reasons).items() if reasons else (("", count),):
        count_chunks(reason or "compiled", number)
    return list(places.batches(memory, results, reasons))


class _Decoded(NamedTuple):
    """Memory and results of the decoder, and why it refused columns: see `_engine.decode`."""

    memory: Bytes
    results: Int64s
    refused: Sequence[str]


def _decoded(source: TaskSource, pages: Buffer, chunks: Int64s, places: Places, rows: Int64s, *file: Any) -> _Decoded:
    """Return decoded columns.

    chunks: `_Chunks.numbers` with offsets in `pages`, or in a file. rows: First row, and number of rows. file: The last
    arguments of `_engine.decode`.
    """
    memory, results = RECYCLED.take(places.num_bytes), np.empty((len(chunks), 2), np.int64)
    refused = _engine.decode(
        pages,
        memory,
        places.numbers,
        chunks,
        rows,
        results,
        source.max_row_group_bytes,
        source.page_checksums,
        *file,
    )
    return _Decoded(memory, results, refused)


def _decoded_from_file(source: TaskSource, chunks: _Chunks, places: Places, rows: Int64s) -> _Decoded | None:
    """Return columns decoded from a local file, or from a cache entry, chunk by chunk; None if neither is there."""
    if not source.store.is_local:
        return _decoded_from_cache(source, chunks, places, rows)
    path = source.local_path
    if path is None:
        return None
    return _decoded(source, b"", chunks.numbers, places, rows, -1, None, path, source.task.identity)


def _decoded_from_cache(source: TaskSource, chunks: _Chunks, places: Places, rows: Int64s) -> _Decoded | None:
    """Return columns decoded from the file of one cache entry, which is checked as its chunks are read.

    None if there is no sound entry, or if it holds more than these chunks; it is then read as other bytes are.
    """
    order = np.argsort(chunks.starts, kind="stable")
    starts, lengths = chunks.starts[order], chunks.lengths[order]
    if (starts[1:] != starts[:-1] + lengths[:-1]).any():
        return None
    span = int(starts[0]), int(lengths.sum())
    with source.kept_range(span) as entry:
        if entry is None:
            return None
        placed = chunks.numbers.copy()
        placed[:, 1] += entry.start - span[0]
        seal = np.concatenate([[entry.before], order])
        decoded = _decoded(source, b"", placed, places, rows, entry.descriptor, seal)
        return decoded if entry.check(int(seal[0])) else None


def _is_bounded(chunks: _Chunks, num_bytes: int) -> bool:
    """Return whether this is no more memory than may be taken before pages are looked at."""
    return num_bytes <= _UNSEEN_BYTES or num_bytes <= _UNSEEN_RATIO * int(chunks.lengths.sum())


def _lacks_values(pages: Buffer, chunks: Int64s) -> bool:
    """Return whether pages have fewer values than the footer claims; memory is taken for values that are there."""
    view = memoryview(pages)
    return any(
        _engine.count_values(view[start : start + length]) < values for _, start, length, values in chunks.tolist()
    )


def _read_pages(source: TaskSource, chunks: _Chunks) -> tuple[Buffer, Int64s]:
    """Return the pages of chunks, in memory that is used again, and `_Chunks.numbers` with offsets in them.

    Neighbours come by one read.
    """
    whole = source.whole()
    if whole is not None:
        return whole, chunks.numbers
    merged: list[tuple[int, int]] = []
    for start, length in sorted(zip(chunks.starts.tolist(), chunks.lengths.tolist(), strict=True)):
        if merged and start <= sum(merged[-1]):
            first, before = merged[-1]
            merged[-1] = (first, max(before, start + length - first))
        else:
            merged.append((start, length))
    firsts, sizes = np.array(merged, np.int64).T
    places = np.cumsum(sizes) - sizes
    buffer = PAGES.take(int(sizes.sum())).data
    source.read_into(merged, [buffer[place : place + size] for place, size in zip(places, sizes, strict=True)])
    read = np.searchsorted(firsts, chunks.starts, side="right") - 1
    placed = chunks.numbers.copy()
    placed[:, 1] += places[read] - firsts[read]
    return buffer, placed
