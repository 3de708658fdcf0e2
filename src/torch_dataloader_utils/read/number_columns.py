"""Columns of numbers, or of lists of them, which the compiled decoder reads into memory that is used again.

    row group → bytes of its chunks of numbers → one call of the decoder → one RecordBatch over one piece of memory

Whatever it does not understand wholly (an encoding, a codec, a damaged page) is pyarrow's, column by column, so that
rows, errors and verdicts do not depend on who decodes.

Source: parquet-format, "Types" and "Logical Types".
"""

import itertools
import json
from bisect import bisect_right
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_dataloader_utils import _decoder
from torch_dataloader_utils._core.inventory import Int64s, RowRange
from torch_dataloader_utils._formats.footer_numbers import OfChunk
from torch_dataloader_utils._formats.parquet_trailer import chunk_start
from torch_dataloader_utils._formats.process_memory import RECYCLED, ProcessMemory
from torch_dataloader_utils._formats.record_batches import MAX_OFFSET
from torch_dataloader_utils._observe.counters import count_chunks
from torch_dataloader_utils._runtime.reused_memory import Bytes
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.read.source import TaskSource

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

# As parquet.thrift numbers them.
_PHYSICAL_TYPES = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "FIXED_LEN_BYTE_ARRAY": 7}

# Columns begin at multiples of this, as Arrow wants it.
_ALIGNED_BYTES = 64

# As much memory is taken before pages are looked at, or so many times their stored bytes.
_SURE_BYTES = 32 << 20
_SURE_RATIO = 16

PAGES = ProcessMemory()
"""The memory of stored pages, which nobody but this process sees."""


class NumberColumn(NamedTuple):
    """A top-level column of one number a row, or of one list of numbers.

    leaf: its number among the leaf columns. physical_type: as parquet.thrift numbers it.
    stored, width: bytes of a value in the file, and in memory; a bit: 0, 1.
    is_optional: whether values, or items of lists, may be null; the field says whether lists may.
    """

    leaf: int
    physical_type: int
    field: pa.Field
    stored: int
    width: int
    is_integer: bool
    is_optional: bool
    is_list: bool

    def kind(self) -> tuple[bool, int, int, bool]:
        """Columns are sorted by this: side by side, at even distances, those of one kind are a matrix as they lie."""
        return self.is_list, self.stored, self.width, self.is_integer

    @property
    def declared(self) -> tuple[int, int, int, int]:
        """What the metadata of a chunk say of it, from `OfChunk.TYPE` on."""
        definitions = 1 + self.is_optional + (1 + self.field.nullable if self.is_list else 0)
        return self.physical_type, -1, 1 + self.is_list, definitions

    @property
    def layout(self) -> tuple[int, int, bool, bool]:
        """What the decoder has to know of the values."""
        return self.stored, self.width, self.is_integer, self.is_optional

    @property
    def value_bits(self) -> int:
        """Bits of a decoded value."""
        return 8 * self.width if self.stored else 1


def number_columns(metadata: Any, schema: pa.Schema) -> dict[str, NumberColumn]:
    """The columns of numbers of a file that the decoder knows, by name.

    metadata: its footer (pyarrow.parquet.FileMetaData). schema: its Arrow schema.
    """
    if not _decoder.IS_BUILT:
        return {}
    found = {}
    for leaf in range(metadata.num_columns):
        column = metadata.schema.column(leaf)
        field = _field_of(column, schema)
        stored = None if field is None else _stored_type(column)
        if field is None or stored is None or not _is_same(stored, _value_field(field).type):
            continue
        found[field.name] = NumberColumn(
            leaf=leaf,
            physical_type=_PHYSICAL_TYPES[column.physical_type],
            field=field,
            stored={"BOOLEAN": 0, "INT32": 4, "FLOAT": 4, "FIXED_LEN_BYTE_ARRAY": 2}.get(column.physical_type, 8),
            width=max(1, stored.bit_width // 8),
            is_integer=column.physical_type in ("INT32", "INT64"),
            is_optional=_value_field(field).nullable,
            is_list=bool(column.max_repetition_level),
        )
    return found


def _field_of(column: Any, schema: pa.Schema) -> pa.Field | None:
    """The field of a leaf column, if it holds one value a row, or one list of values that are no lists or structs.

    Levels say which: of lists one for each of what may be null, and one more.
    """
    if not column.max_repetition_level:
        names = [column.path] if column.max_definition_level <= 1 else []
    else:  # "a.list.element", and other forms; a name may itself hold dots
        names = list(accumulate(column.path.split("."), "{}.{}".format))
    fields = [schema.field(name) for name in names if schema.get_field_index(name) >= 0]
    if len(fields) != 1 or not column.max_repetition_level:
        return fields[0] if fields else None
    (field,) = fields
    is_one = _is_list(field.type) and column.max_repetition_level == 1
    return (
        field if is_one and column.max_definition_level == 1 + field.nullable + _value_field(field).nullable else None
    )


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _value_field(field: pa.Field) -> pa.Field:
    return field.type.value_field if _is_list(field.type) else field


def _stored_type(column: Any) -> pa.DataType | None:
    """The Arrow type that a column's values have without a conversion; None if they need one."""
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


def are_as_declared(columns: Collection[NumberColumn], chunks: Int64s) -> bool:
    """Whether the chunks of a file (see `FooterNumbers`) are of the type, and have the levels, of their columns.

    pyarrow refuses others. Levels that are not counted (-1, 0) may be any.
    """
    leaves, declared = [column.leaf for column in columns], [column.declared for column in columns]
    if not leaves or not len(chunks):
        return True
    if chunks.shape[1] <= max(leaves):
        return False
    found = chunks[:, leaves, OfChunk.TYPE :]
    are_same = found == np.array(declared)
    are_same[:, :, 2:] |= found[:, :, 2:] <= 0
    return bool(are_same.all())


def read_numbers(
    source: TaskSource, chunks: Int64s, columns: Sequence[NumberColumn], group_rows: int, rows: RowRange
) -> pa.RecordBatch | None:
    """Rows of a row group of `group_rows` rows, of those columns that the decoder reads; None if it reads none.

    chunks: of the row group, see `FooterNumbers`.

    Raises:
        FileChangedError, StoreError: the bytes of the chunks are not those that were planned.
    """
    start, stop = rows.of(group_rows)
    num_rows = stop - start
    taken = _known_chunks(source, chunks, columns, group_rows)
    if not taken:
        return None
    rooms = [chunk.values if chunk.column.is_list else num_rows for chunk in taken]
    places, num_bytes = place_columns([chunk.column for chunk in taken], rooms, num_rows)
    spans = [chunk.span for chunk in taken]
    is_sure = num_bytes <= max(_SURE_BYTES, _SURE_RATIO * sum(length for _, length in spans))
    with source.local_file() if is_sure else nullcontext() as file:
        pages = _read_pages(source, spans) if file is None else _pages_in_turn(spans)
        # A footer may claim any number of values: memory is taken only for those that pages say they have.
        if file is None and any(map(_lacks_values, taken, pages)):
            count_chunks("damaged", len(taken))
            return None
        memory = RECYCLED.take(num_bytes)
        jobs = [_job(*each, memory, start, num_rows) for each in zip(taken, pages, places, strict=True)]
        budget, checks = source.max_row_group_bytes, source.page_checksums
        results = _decoder.decode(jobs, budget, checks, -1 if file is None else file)
    buffer, arrays, fields = pa.py_buffer(memory), [], []
    for chunk, place, result in zip(taken, places, results, strict=True):
        nulls, _, reason, null_lists = result
        if reason == "not read":
            _read_pages(source, [chunk.span])  # raises why not
        if reason:
            count_chunks(reason)
            continue
        arrays.append(_array(chunk.column, place, buffer, num_rows, nulls, null_lists))
        fields.append(chunk.column.field)
    count_chunks("compiled", len(arrays))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if arrays else None


class _Chunk(NamedTuple):
    """A chunk that is decoded; values: by the footer, of lists levels."""

    column: NumberColumn
    codec: int
    values: int
    span: Span


def _known_chunks(source: TaskSource, chunks: Int64s, columns: Sequence[NumberColumn], group_rows: int) -> list[_Chunk]:
    """The chunks of these columns that the decoder may read, by what the footer says; the others are counted."""
    columns = sorted(columns, key=NumberColumn.kind)
    known = {codec for codec in set(chunks[:, OfChunk.CODEC].tolist()) if _decoder.has_codec(codec)}
    taken, room_bytes = [], source.max_row_group_bytes
    of_columns = chunks[[column.leaf for column in columns], : OfChunk.TYPE].tolist()
    for column, (codec, values, _, length, data, dictionary) in zip(columns, of_columns, strict=True):
        begin = chunk_start(data, dictionary)
        is_there = begin >= 0 and length >= 0 and begin + length <= source.task.file_size
        fits = group_rows <= values <= MAX_OFFSET if column.is_list else values == group_rows
        # Lists that are larger than the plan allows are pyarrow's, which takes memory as it goes.
        num_bytes = values * column.value_bits // 8
        if not is_there or not fits:
            count_chunks("damaged")
        elif codec not in known:
            count_chunks("codec")
        elif num_bytes > room_bytes:
            count_chunks("too large")
        else:
            room_bytes -= num_bytes
            taken.append(_Chunk(column, codec, values, (begin, length)))
    return taken


def _lacks_values(chunk: _Chunk, pages: memoryview) -> bool:
    return _decoder.count_values(pages) < chunk.values


class Place(NamedTuple):
    """Where a column lies in memory; `offsets` and `list_validity` are empty for columns that are no lists."""

    values: slice
    validity: slice
    offsets: slice
    list_validity: slice


def place_columns(columns: Sequence[NumberColumn], rooms: Sequence[int], num_rows: int) -> tuple[list[Place], int]:
    """A place for each column, one after the other, what is not values behind all values; and the bytes of all.

    rooms: the values that each column has room for. How many items lists have is known only once they are decoded.
    """
    lengths = [-(-room * column.value_bits // 8) for room, column in zip(rooms, columns, strict=True)]
    *starts, end = itertools.accumulate(map(_aligned, lengths), initial=0)
    places = []
    for column, room, start, length in zip(columns, rooms, starts, lengths, strict=True):
        slices = [slice(start, start + length)]
        for num_bits in (
            room * column.is_optional,
            (num_rows + 1) * 32 * column.is_list,
            num_rows * (column.is_list and column.field.nullable),
        ):
            slices.append(slice(end, end + -(-num_bits // 8)))
            end = _aligned(slices[-1].stop)
        places.append(Place(*slices))
    return places, end


def _job(chunk: _Chunk, pages: memoryview, place: Place, memory: Bytes, start: int, num_rows: int) -> tuple[Any, ...]:
    column = chunk.column
    job = (
        pages,
        chunk.span[0],
        chunk.codec,
        *column.layout,
        chunk.values,
        start,
        num_rows,
        memory[place.values],
        memory[place.validity],
    )
    if not column.is_list:
        return job
    return (*job, memory[place.offsets], memory[place.list_validity], column.field.nullable)


def _array(
    column: NumberColumn, place: Place, memory: pa.Buffer, num_rows: int, nulls: int, null_lists: int
) -> pa.Array:
    """The array over what the decoder wrote."""

    def values(value_type: pa.DataType, count: int) -> pa.Array:
        validity = memory[place.validity] if nulls else None
        return pa.Array.from_buffers(value_type, count, [validity, memory[place.values]], null_count=nulls)

    list_type = column.field.type
    if not column.is_list:
        return values(list_type, num_rows)
    ends = np.frombuffer(memory[place.offsets], np.int32)
    items = values(list_type.value_type, int(ends[num_rows]))
    offsets = pa.py_buffer(ends.astype(np.int64)) if pa.types.is_large_list(list_type) else memory[place.offsets]
    content = [memory[place.list_validity] if null_lists else None, offsets]
    return pa.Array.from_buffers(list_type, num_rows, content, null_count=null_lists, children=[items])


def _aligned(number: int) -> int:
    return -(-number // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _pages_in_turn(spans: Sequence[Span]) -> list[memoryview]:
    """Memory for the bytes of chunks that are read in turn: the same for all, so that a core's cache holds it."""
    memory = PAGES.take(max(length for _, length in spans)).data
    return [memory[:length] for _, length in spans]


def _read_pages(source: TaskSource, spans: Sequence[Span]) -> list[memoryview]:
    """The bytes of chunks, in memory that is used again; neighbours come by one read."""
    whole = source.whole()
    if whole is not None:
        return [memoryview(whole)[start : start + length] for start, length in spans]
    merged: list[tuple[int, int]] = []
    for start, length in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], start + length))
        else:
            merged.append((start, start + length))
    buffers = [PAGES.take(stop - start).data[: stop - start] for start, stop in merged]
    source.read_into([(start, stop - start) for start, stop in merged], buffers)
    firsts = [start for start, _ in merged]
    pages = []
    for start, length in spans:
        index = bisect_right(firsts, start) - 1
        place = start - firsts[index]
        pages.append(buffers[index][place : place + length])
    return pages
