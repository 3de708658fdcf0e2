"""Columns of numbers, or of lists of numbers, which the compiled decoder reads into memory that is used again.

    row group → bytes of its chunks of numbers → one call of the decoder → one RecordBatch over one piece of memory

Columns that the decoder does not fully understand (an encoding, a codec, a damaged page) are left to pyarrow, column by
column. Rows, errors and verdicts do not depend on the decoder.

Source: parquet-format, "Types" and "Logical Types".
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.batches import MAX_OFFSET
from torch_dataloader_utils._arrow.process_memory import RECYCLED, ProcessMemory
from torch_dataloader_utils._arrow.schema import leaf_ranges
from torch_dataloader_utils._core.inventory import GroupRows, Int64s
from torch_dataloader_utils._observe.counters import count_chunks
from torch_dataloader_utils._runtime.reused_memory import Bytes
from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.formats.parquet.footer_numbers import OfChunk, chunk_starts
from torch_dataloader_utils.formats.task_source import TaskSource

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

# Arrow wants columns to begin at multiples of this.
_ALIGNED_BYTES = 64

# A footer may claim any number of values. Before pages are looked at, no more memory is taken than this, or than so
# many times the stored bytes.
_UNSEEN_BYTES = 32 << 20
_UNSEEN_RATIO = 16

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


def read_numbers(
    source: TaskSource, chunks: Int64s, columns: Sequence[NumberColumn], group_rows: int, rows: GroupRows
) -> pa.RecordBatch | None:
    """Return rows of a row group of `group_rows` rows, with the columns that the decoder reads; None without any.

    chunks: Chunks of the row group; see `FooterNumbers`.

    Raises:
        FileChangedError, StoreError: the bytes of the chunks are not the planned bytes.
    """
    start, stop = rows.of(group_rows)
    num_rows = stop - start
    taken = _Chunks.known(source, chunks, columns, group_rows)
    if not taken.columns:
        return None
    counts = zip(taken.columns, taken.values.tolist(), strict=True)
    rooms = [values if column.is_list else num_rows for column, values in counts]
    places = Places.of(taken.columns, rooms, num_rows)
    results = np.empty((len(taken.columns), 2), np.int64)
    with _pages(source, taken, places.num_bytes) as pages:
        if pages is None:
            count_chunks("damaged", len(taken.columns))
            return None
        memory = RECYCLED.take(places.num_bytes)
        reasons = _engine.decode(
            pages.buffer,
            memory,
            places.numbers,
            np.stack([taken.codecs, pages.starts, taken.lengths, taken.values], axis=1),
            np.array([start, num_rows], np.int64),
            results,
            source.max_row_group_bytes,
            source.page_checksums,
            pages.file,
        )
    if "not read" in reasons:
        _read_pages(source, taken)  # raises the reason; without an error, pyarrow reads them
    for reason, number in Counter(reasons).items():
        count_chunks(reason or "compiled", number)
    return places.batch(memory, results, reasons)


class _Chunks(NamedTuple):
    """Chunks of one row group that are decoded: one number for each column.

    values: Number of values by the footer; for lists, number of levels. starts: Offsets in the file.
    """

    columns: list[NumberColumn]
    codecs: Int64s
    values: Int64s
    starts: Int64s
    lengths: Int64s

    @classmethod
    def known(cls, source: TaskSource, chunks: Int64s, columns: Sequence[NumberColumn], group_rows: int) -> "_Chunks":
        """Return the columns that the decoder may read by the footer, with their chunks. Other columns are counted."""
        columns = sorted(columns, key=NumberColumn.kind)
        numbers = chunks[[column.leaf for column in columns]]
        codecs, values, lengths = (numbers[:, each] for each in (OfChunk.CODEC, OfChunk.VALUES, OfChunk.COMPRESSED))
        starts = chunk_starts(numbers)
        are_lists = np.array([column.is_list for column in columns])
        are_there = (starts >= 0) & (lengths >= 0) & (starts <= source.task.file_size - lengths)
        fit = are_there & np.where(are_lists, (group_rows <= values) & (values <= MAX_OFFSET), values == group_rows)
        known = set(filter(_engine.has_codec, set(codecs.tolist())))
        kept, room_bytes = [], source.max_row_group_bytes
        facts = zip(columns, codecs.tolist(), values.tolist(), fit.tolist(), strict=True)
        for index, (column, codec, count, fits) in enumerate(facts):
            # Lists that are larger than the plan allows are left to pyarrow, which takes memory as it goes.
            num_bytes = count * column.value_bits // 8
            if not fits:
                count_chunks("damaged")
            elif codec not in known:
                count_chunks("codec")
            elif num_bytes > room_bytes:
                count_chunks("too large")
            else:
                room_bytes -= num_bytes
                kept.append(index)
        return cls([columns[index] for index in kept], codecs[kept], values[kept], starts[kept], lengths[kept])


class _Pages(NamedTuple):
    """Pages of chunks.

    starts: First byte of each chunk in `buffer`, or in `file`, which is read one chunk after the other.
    """

    buffer: Buffer
    starts: Int64s
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
            yield _Pages(PAGES.take(int(chunks.lengths.max())).data, chunks.starts, file)
            return
        pages = _read_pages(source, chunks)
        view, ends = memoryview(pages.buffer), pages.starts + chunks.lengths
        spans = zip(pages.starts.tolist(), ends.tolist(), chunks.values.tolist(), strict=True)
        lacks_values = any(_engine.count_values(view[start:stop]) < values for start, stop, values in spans)
        yield None if lacks_values else pages


class Places(NamedTuple):
    """Places of columns in one piece of memory: values one column after the other, everything else behind all values.

    numbers: Places as the decoder takes them, int64 [columns, 9]. lengths: Bytes of values, their validity, offsets,
    and validity of lists, int64 [columns, 4].
    """

    columns: Sequence[NumberColumn]
    numbers: Int64s
    lengths: Int64s
    num_rows: int
    num_bytes: int

    @classmethod
    def of(cls, columns: Sequence[NumberColumn], rooms: Sequence[int], num_rows: int) -> "Places":
        """Return places for columns. rooms: Number of values that each column has room for.

        Only decoding counts the items of lists.
        """
        layouts = np.array([column.layout for column in columns], np.int64)
        are_lists = np.array([column.is_list for column in columns])
        room, (are_optional, lists_are_optional, bits) = np.array(rooms, np.int64), layouts[:, 3:].T
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
        others = starts[len(columns) :].reshape(-1, 3)
        others[~are_lists, 1] = -1
        numbers = np.column_stack([layouts[:, :5], starts[: len(columns)], others])
        return cls(columns, numbers, lengths, num_rows, int(sizes.sum()))

    def batch(self, memory: Bytes, results: Int64s, reasons: Sequence[str]) -> pa.RecordBatch | None:
        """Return the decoded columns, over the memory that the decoder wrote; None if no column was decoded.

        results: Nulls and null lists, int64 [columns, 2]. reasons: Reason why each column was refused; "" for a decoded
        column.
        """
        buffer, arrays, fields = pa.py_buffer(memory), [], []
        rows = zip(
            self.columns, self.numbers[:, 5:].tolist(), self.lengths.tolist(), results.tolist(), reasons, strict=True
        )
        for column, starts, lengths, nulls, reason in rows:
            if not reason:
                count = len(starts) if column.is_list else 2
                content = list(map(buffer.slice, starts[:count], lengths))
                arrays.append(_array(column, content, self.num_rows, *nulls))
                fields.append(column.field)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if arrays else None


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
        return _Pages(whole, chunks.starts)
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
    return _Pages(buffer, chunks.starts - firsts[read] + places[read])
