"""Columns of numbers, or of lists of numbers, which the compiled decoder reads into memory that is used again.

    row group → bytes of its chunks of numbers → one call of the decoder → one RecordBatch over one piece of memory

Columns that the decoder does not fully understand (an encoding, a codec, a damaged page) are left to pyarrow, column by
column. Rows, errors and verdicts do not depend on the decoder.

Source: parquet-format, "Types" and "Logical Types".
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.batches import MAX_OFFSET
from torch_dataloader_utils._arrow.number_batch import NumberBatch, NumberRun
from torch_dataloader_utils._arrow.process_memory import RECYCLED, ProcessMemory
from torch_dataloader_utils._arrow.schema import leaf_ranges
from torch_dataloader_utils._core.inventory import GroupRows, Int64s
from torch_dataloader_utils._observe.counters import count_chunks
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._runtime.reused_memory import Bytes
from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.formats.parquet.footer_numbers import FooterNumbers, OfChunk, chunk_starts
from torch_dataloader_utils.formats.task_source import TaskSource

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

# Arrow wants columns to begin at multiples of this.
_ALIGNED_BYTES = 64

# A footer may claim any number of values. Before pages are looked at, no more memory is taken than this, or than so
# many times the stored bytes.
_UNSEEN_BYTES = 32 << 20
_UNSEEN_RATIO = 16

# More values than any memory holds. A footer may claim so many values that 64 bits do not hold the number of bytes.
_MOST_COUNTED = 1 << 44

# Places are kept for so many numbers of rows: most row groups of a file have the same number.
_MOST_PLACES = 8

PAGES = ProcessMemory()
"""Memory of stored pages. Only this process sees it."""


class NumberColumn(NamedTuple):
    """Top-level column of one number a row, or of one list of numbers a row.

    leaf: Number of the column among the leaf columns. stored, width: Bytes of a value in the file, and in memory; a
    bit: 0, 1. is_optional: Whether values, or items of lists, may be null. Whether lists may be null is in `field`.
    """

    leaf: int
    field: pa.Field
    stored: int
    width: int
    is_integer: bool
    is_optional: bool
    is_list: bool

    def kind(self) -> tuple[bool, int, int, bool]:
        """Return the sort key of columns: columns of one kind lie side by side at even distances, as a matrix."""
        return self.is_list, self.stored, self.width, self.is_integer

    @property
    def layout(self) -> tuple[int, int, bool, bool, bool, int]:
        """Facts for the decoder: stored, width, is_integer, is_optional, whether lists may be null, bits of a value."""
        may_be_null = self.is_list and self.field.nullable
        return self.stored, self.width, self.is_integer, self.is_optional, may_be_null, self.value_bits

    @property
    def value_bits(self) -> int:
        """Number of bits of a decoded value."""
        return 8 * self.width if self.stored else 1


class NumberTable(NamedTuple):
    """Columns of numbers in the order in which they lie in memory once they are decoded, with their facts as arrays.

    schema: Fields of the columns. leaves: Numbers of the leaf columns, int64 [columns]. layouts: int64 [columns, 6], see
    `NumberColumn.layout`. are_lists: bool [columns]. flat_places: Places by number of rows, see `Places.flat`.
    """

    columns: Sequence[NumberColumn]
    schema: pa.Schema
    leaves: Int64s
    layouts: Int64s
    are_lists: npt.NDArray[np.bool_]
    flat_places: "Recent[int, Places]"

    @classmethod
    def of(cls, columns: Iterable[NumberColumn]) -> Self:
        """Return the table of these columns, in any order."""
        columns = sorted(columns, key=NumberColumn.kind)
        return cls(
            columns=columns,
            schema=pa.schema([column.field for column in columns]),
            leaves=np.array([column.leaf for column in columns], np.int64),
            layouts=np.array([column.layout for column in columns], np.int64).reshape(len(columns), 6),
            are_lists=np.array([column.is_list for column in columns], np.bool_),
            flat_places=Recent(_MOST_PLACES),
        )


def number_columns(metadata: Any, schema: pa.Schema) -> dict[str, NumberColumn]:
    """Return the columns of numbers that the decoder can read, by name.

    metadata: Footer of the file (pyarrow.parquet.FileMetaData). schema: Arrow schema of the file.
    """
    if not _engine.IS_BUILT:
        return {}
    found = {}
    for field, leaves in zip(schema, leaf_ranges(schema), strict=True):
        if len(leaves) != 1:
            continue
        column = metadata.schema.column(leaves[0])
        stored = _stored_type(column) if _is_plain(column, field) else None
        if stored is None or not _is_same(stored, _value_field(field).type):
            continue
        found[field.name] = NumberColumn(
            leaf=leaves[0],
            field=field,
            stored={"BOOLEAN": 0, "INT32": 4, "FLOAT": 4, "FIXED_LEN_BYTE_ARRAY": 2}.get(column.physical_type, 8),
            width=max(1, stored.bit_width // 8),
            is_integer=column.physical_type in ("INT32", "INT64"),
            is_optional=_value_field(field).nullable,
            is_list=bool(column.max_repetition_level),
        )
    return found


def _is_plain(column: Any, field: pa.Field) -> bool:
    """Return whether the leaf of a field holds one value a row, or one list of values that are no lists or structs.

    Levels tell: a list has one level for each part that may be null, and one more.
    """
    of_values = 1 + _value_field(field).nullable if _is_list(field.type) else 0
    levels = (int(_is_list(field.type)), field.nullable + of_values)
    return (column.max_repetition_level, column.max_definition_level) == levels


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _value_field(field: pa.Field) -> pa.Field:
    return field.type.value_field if _is_list(field.type) else field


def _stored_type(column: Any) -> pa.DataType | None:
    """Return the Arrow type that a column's values have without a conversion; None if they need a conversion."""
    logical = json.loads(column.logical_type.to_json())
    kind, unit = logical["Type"], _UNITS.get(logical.get("timeUnit", ""))
    match column.physical_type, kind:
        case "BOOLEAN", "None":
            return pa.bool_()
        case "FLOAT", "None":
            return pa.float32()
        case "DOUBLE", "None":
            return pa.float64()
        case "FIXED_LEN_BYTE_ARRAY", "Float16":
            return pa.float16()
        case "INT32", "None":
            return pa.int32()
        case "INT64", "None":
            return pa.int64()
        case "INT32" | "INT64", "Int":
            name = f"{'' if logical['isSigned'] else 'u'}int{logical['bitWidth']}"
            is_wide = logical["bitWidth"] == 64
            return pa.type_for_alias(name) if is_wide == (column.physical_type == "INT64") else None
        case "INT32", "Date":
            return pa.date32()
        case "INT32", "Time" if unit == "ms":
            return pa.time32("ms")
        case "INT64", "Time" if unit in ("us", "ns"):
            return pa.time64(unit)
        case "INT64", "Timestamp" if unit is not None:
            return pa.timestamp(unit)
    return None


def _is_same(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(wanted):
        return bool(stored.unit == wanted.unit)
    return bool(stored == wanted)


class _Chunks(NamedTuple):
    """Chunks of one row group that are decoded.

    numbers: int64 [columns, 4], as the decoder takes them: codec, offset in the file, length, and number of values by the
        footer (for lists, number of levels).
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
    Whether the codec is known. num_bytes: Bytes of the decoded values.
    are_usual: Whether all chunks of a row group fit and have known codecs, bool [row groups].
    """

    table: NumberTable
    numbers: Int64s
    fit: npt.NDArray[np.bool_]
    are_known: npt.NDArray[np.bool_]
    num_bytes: Int64s
    are_usual: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, table: NumberTable, footer: FooterNumbers, file_size: int) -> Self:
        """Return the chunks of columns, as the footer describes them."""
        chunks, are_lists, rows = footer.chunks[:, table.leaves], table.are_lists, footer.groups[:, :1]
        codecs, values, lengths = (chunks[..., each] for each in (OfChunk.CODEC, OfChunk.VALUES, OfChunk.COMPRESSED))
        starts = chunk_starts(chunks)
        are_there = (starts >= 0) & (lengths >= 0) & (starts <= file_size - lengths)
        fit = are_there & np.where(are_lists, (rows <= values) & (values <= MAX_OFFSET), values == rows)
        are_known = np.isin(codecs, list(filter(_engine.has_codec, set(codecs.ravel().tolist()))))
        return cls(
            table=table,
            numbers=np.ascontiguousarray(np.stack([codecs, starts, lengths, values], axis=-1)),
            fit=fit,
            are_known=are_known,
            num_bytes=np.minimum(values, _MOST_COUNTED) * table.layouts[:, 5] // 8,
            are_usual=np.logical_and.reduce(fit & are_known, axis=1),
        )

    def of_group(self, ordinal: int, room_bytes: int) -> _Chunks:
        """Return the chunks of a row group that the decoder may read. Other chunks are counted.

        room_bytes: Limit of the decoded bytes. Larger lists are left to pyarrow, which takes memory as it goes.
        """
        if self.are_usual[ordinal] and int(self.num_bytes[ordinal].sum()) <= room_bytes:
            return _Chunks(self.table, self.numbers[ordinal])
        kept = []
        facts = zip(self.fit[ordinal], self.are_known[ordinal], self.num_bytes[ordinal].tolist(), strict=True)
        for index, (fits, is_known, num_bytes) in enumerate(facts):
            if not fits:
                count_chunks("damaged")
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
) -> pa.RecordBatch | NumberBatch | None:
    """Return rows of a row group of `group_rows` rows, with the columns that the decoder reads; None without any.

    Raises:
        FileChangedError, StoreError: the bytes of the chunks are not the planned bytes.
    """
    start, stop = rows.of(group_rows)
    num_rows = stop - start
    taken = chunks.of_group(source.task.ordinal, source.max_row_group_bytes)
    count = len(taken.numbers)
    if not count:
        return None
    places = Places.of_rows(taken.table, taken.values, num_rows)
    results = np.empty((count, 2), np.int64)
    with _pages(source, taken, places.num_bytes) as pages:
        if pages is None:
            count_chunks("damaged", count)
            return None
        memory = RECYCLED.take(places.num_bytes)
        reasons = _engine.decode(
            pages.buffer,
            memory,
            places.numbers,
            pages.chunks,
            np.array([start, num_rows], np.int64),
            results,
            source.max_row_group_bytes,
            source.page_checksums,
            pages.file,
        )
    if not any(reasons):
        count_chunks("compiled", count)
        return places.batch(memory, results, reasons)
    if "not read" in reasons:
        _read_pages(source, taken)  # raises the reason; without an error, pyarrow reads them
    for reason, number in Counter(reasons).items():
        count_chunks(reason or "compiled", number)
    return places.batch(memory, results, reasons)


class _Pages(NamedTuple):
    """Pages of chunks, in `buffer`, or in `file`, which is read one chunk after the other.

    chunks: `_Chunks.numbers` with offsets in `buffer` or `file`.
    """

    buffer: Buffer
    chunks: Int64s
    file: int = -1


@contextmanager
def _pages(source: TaskSource, chunks: _Chunks, num_bytes: int) -> Iterator[_Pages | None]:
    """Yield the pages of these chunks; None if they have fewer values than the footer claims.

    num_bytes: Memory that will be taken. A large amount is taken only for values that the pages say they have, so the
    pages are read first. Otherwise pages of a local file are read as they are decoded, while a core's cache holds them.
    """
    reads_later = num_bytes <= max(_UNSEEN_BYTES, _UNSEEN_RATIO * int(chunks.lengths.sum()))
    with source.local_file() if reads_later else nullcontext() as file:
        if file is not None:
            yield _Pages(PAGES.take(int(chunks.lengths.max())).data, chunks.numbers, file)
            return
        pages = _read_pages(source, chunks)
        view = memoryview(pages.buffer)
        lacks_values = any(
            _engine.count_values(view[start : start + length]) < values
            for _, start, length, values in pages.chunks.tolist()
        )
        yield None if lacks_values else pages


class Places(NamedTuple):
    """Places of columns in one piece of memory: values one column after the other, everything else behind all values.

    numbers: Places as the decoder takes them, int64 [columns, 9]. lengths: Bytes of values, their validity, offsets,
    and validity of lists, int64 [columns, 4]. runs: See `NumberBatch`; None with lists or bits among the columns.
    """

    table: NumberTable
    numbers: Int64s
    lengths: Int64s
    num_rows: int
    num_bytes: int
    runs: Sequence[NumberRun] | None

    @classmethod
    def flat(cls, table: NumberTable, num_rows: int) -> "Places":
        """Return places for columns without lists. The places depend on the number of rows alone."""
        return table.flat_places.get(num_rows, lambda _: cls.of(table, np.full(len(table.leaves), num_rows), num_rows))

    @classmethod
    def of_rows(cls, table: NumberTable, values: Int64s, num_rows: int) -> "Places":
        """Return places for rows of one row group. values: Number of values in each chunk, by the footer."""
        if table.are_lists.any():
            return cls.of(table, np.where(table.are_lists, values, num_rows), num_rows)
        return cls.flat(table, num_rows)

    @classmethod
    def of(cls, table: NumberTable, room: Int64s, num_rows: int) -> "Places":
        """Return places for columns. room: Number of values that each column has room for.

        Only decoding counts the items of lists.
        """
        layouts, are_lists = table.layouts, table.are_lists
        are_optional, lists_are_optional, bits = layouts[:, 3:].T
        lengths = np.stack(
            [
                -(-room * bits // 8),
                -(-room // 8) * are_optional,
                (num_rows + 1) * 4 * are_lists,
                -(-num_rows // 8) * lists_are_optional,
            ],
            axis=1,
        )
        # All values, then the rest, column by column.
        aligned = -(-lengths // _ALIGNED_BYTES) * _ALIGNED_BYTES
        sizes = np.concatenate([aligned[:, 0], aligned[:, 1:].ravel()])
        starts = np.cumsum(sizes) - sizes
        others = starts[len(room) :].reshape(-1, 3)
        others[~are_lists, 1] = -1
        numbers = np.column_stack([layouts[:, :5], starts[: len(room)], others])
        is_plain = not are_lists.any() and (layouts[:, 0] > 0).all()
        runs = _runs(table, numbers[:, 5].tolist(), aligned[:, 0].tolist()) if is_plain else None
        return cls(table, numbers, lengths, num_rows, int(sizes.sum()), runs)

    def batch(self, memory: Bytes, results: Int64s, reasons: Sequence[str]) -> pa.RecordBatch | NumberBatch | None:
        """Return the decoded columns, over the memory that the decoder wrote; None if no column was decoded.

        results: Nulls and null lists, int64 [columns, 2]. reasons: Reason why each column was refused; "" for a decoded
        column.
        """
        if self.runs is not None and not any(reasons) and not results.any():
            return NumberBatch(self.table.schema, self.num_rows, self.runs, memory)
        buffer, arrays, fields = pa.py_buffer(memory), [], []
        rows = zip(
            self.table.columns,
            self.numbers[:, 5:].tolist(),
            self.lengths.tolist(),
            results.tolist(),
            reasons,
            strict=True,
        )
        for column, starts, lengths, nulls, reason in rows:
            if not reason:
                count = len(starts) if column.is_list else 2
                content = list(map(buffer.slice, starts[:count], lengths))
                arrays.append(_array(column, content, self.num_rows, *nulls))
                fields.append(column.field)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if arrays else None


def _runs(table: NumberTable, starts: list[int], pitches: list[int]) -> list[NumberRun]:
    runs: list[NumberRun] = []
    for index, (column, start, pitch) in enumerate(zip(table.columns, starts, pitches, strict=True)):
        data_type = column.field.type
        kind = "f" if pa.types.is_floating(data_type) else "u" if pa.types.is_unsigned_integer(data_type) else "i"
        dtype = np.dtype(f"{kind}{column.width}")
        if runs and runs[-1].dtype == dtype:
            runs[-1] = runs[-1]._replace(num_columns=runs[-1].num_columns + 1)
        else:
            runs.append(NumberRun(index, 1, dtype, start, pitch))
    return runs


def _array(column: NumberColumn, content: Sequence[pa.Buffer], num_rows: int, nulls: int, null_lists: int) -> pa.Array:
    """Return a column; content: Buffers of values, their validity, and for lists offsets and validity of lists."""
    values, validity = content[0], content[1] if nulls else None
    data_type = column.field.type
    if not column.is_list:
        return pa.Array.from_buffers(data_type, num_rows, [validity, values], null_count=nulls)
    ends = np.frombuffer(content[2], np.int32)
    items = pa.Array.from_buffers(data_type.value_type, int(ends[num_rows]), [validity, values], null_count=nulls)
    offsets = pa.py_buffer(ends.astype(np.int64)) if pa.types.is_large_list(data_type) else content[2]
    of_lists = [content[3] if null_lists else None, offsets]
    return pa.Array.from_buffers(data_type, num_rows, of_lists, null_count=null_lists, children=[items])


def _read_pages(source: TaskSource, chunks: _Chunks) -> _Pages:
    """Return the pages of chunks, in memory that is used again. Neighbours come by one read."""
    whole = source.whole()
    if whole is not None:
        return _Pages(whole, chunks.numbers)
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
    return _Pages(buffer, placed)
