"""Columns of plain numbers, which the compiled decoder reads into memory that is used again.

    row group → bytes of its chunks of numbers → one call of the decoder → one RecordBatch over one piece of memory

Whatever it does not understand wholly (an encoding, a codec, a damaged page) is pyarrow's, column by column, so that
rows, errors and verdicts do not depend on who decodes.

Source: parquet-format, "Types" and "Logical Types".
"""

import itertools
import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from torch_dataloader_utils import _decoder
from torch_dataloader_utils._core.inventory import Int64s, RowRange
from torch_dataloader_utils._formats.parquet_trailer import chunk_start
from torch_dataloader_utils._formats.process_memory import RECYCLED, ProcessMemory
from torch_dataloader_utils._observe.counters import count_chunks
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.read.source import TaskSource

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

# Columns begin at multiples of this, as Arrow wants it.
_ALIGNED_BYTES = 64

# Of stored pages, which nobody but this process sees.
_PAGES = ProcessMemory()


class NumberColumn(NamedTuple):
    """A top-level column of one number a row.

    leaf: its number among the leaf columns. stored, width: bytes of a value in the file, and in memory; a bit: 0, 1.
    """

    leaf: int
    field: pa.Field
    stored: int
    width: int
    is_integer: bool
    is_optional: bool

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
        if column.max_repetition_level or column.max_definition_level > 1 or schema.get_field_index(column.path) < 0:
            continue
        stored = _stored_type(column)
        field = schema.field(column.path)
        if stored is None or not _is_same(stored, field.type):
            continue
        found[column.path] = NumberColumn(
            leaf=leaf,
            field=field,
            stored={"BOOLEAN": 0, "INT32": 4, "FLOAT": 4, "FIXED_LEN_BYTE_ARRAY": 2}.get(column.physical_type, 8),
            width=max(1, stored.bit_width // 8),
            is_integer=column.physical_type in ("INT32", "INT64"),
            is_optional=column.max_definition_level == 1,
        )
    return found


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


def chunk_numbers(footer: bytes, num_groups: int, num_leaves: int) -> Int64s | None:
    """Codec, values, uncompressed and stored bytes, first data page and dictionary page (-1: none) of every chunk.

    int64 [groups, leaves, 6]; None where the compiled decoder is not there or does not understand the footer.
    """
    if not _decoder.IS_BUILT:
        return None
    numbers = np.empty((num_groups, num_leaves, 6), np.int64)
    return numbers if _decoder.read_chunks(footer, num_groups, num_leaves, numbers) else None


def read_numbers(
    source: TaskSource, chunks: Int64s, columns: Sequence[NumberColumn], group_rows: int, rows: RowRange
) -> pa.RecordBatch | None:
    """Rows of a row group of `group_rows` rows, of those columns that the decoder reads; None if it reads none.

    chunks: of the row group, from `chunk_numbers`.

    Raises:
        FileChangedError, StoreError: the bytes of the chunks are not those that were planned.
    """
    start, stop = rows.of(group_rows)
    num_rows = stop - start
    # Side by side and at even distances, numbers of one kind are a matrix [columns, rows] as they lie.
    columns = sorted(columns, key=lambda column: (column.stored, column.width, column.is_integer))
    taken = []
    known = {codec for codec in set(chunks[:, 0].tolist()) if _decoder.has_codec(codec)}
    of_columns = chunks[[column.leaf for column in columns]].tolist()
    for column, (codec, values, _, length, data, dictionary) in zip(columns, of_columns, strict=True):
        begin = chunk_start(data, dictionary)
        is_there = begin >= 0 and length >= 0 and begin + length <= source.task.file_size
        if not is_there or values != group_rows:
            count_chunks("damaged")
        elif codec not in known:
            count_chunks("codec")
        else:
            taken.append((column, codec, (begin, length)))
    pages = _read_pages(source, [span for *_, span in taken]) if taken else []
    # A footer may claim any number of rows: memory is taken only for those that pages say they have.
    if not taken or min(map(_decoder.count_rows, pages)) < group_rows:
        count_chunks("damaged", len(taken))
        return None
    places, num_bytes = _places([column for column, *_ in taken], num_rows)
    memory = RECYCLED.take(num_bytes)
    jobs = [
        (
            part,
            codec,
            column.stored,
            column.width,
            column.is_integer,
            column.is_optional,
            group_rows,
            start,
            num_rows,
            memory[place.values : place.values_end],
            memory[place.validity : place.end],
        )
        for (column, codec, _), part, place in zip(taken, pages, places, strict=True)
    ]
    results = _decoder.decode(jobs, source.max_row_group_bytes, source.page_checksums)
    buffer, arrays, fields = pa.py_buffer(memory), [], []
    for (column, *_), place, (nulls, _, reason) in zip(taken, places, results, strict=True):
        if reason:
            count_chunks(reason)
            continue
        validity = buffer[place.validity : place.end] if nulls else None
        content = [validity, buffer[place.values : place.values_end]]
        arrays.append(pa.Array.from_buffers(column.field.type, num_rows, content, null_count=nulls))
        fields.append(column.field)
    count_chunks("compiled", len(arrays))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)) if arrays else None


class _Place(NamedTuple):
    """Where a column lies in memory: values in [values, values_end), which bits are no nulls in [validity, end)."""

    values: int
    values_end: int
    validity: int
    end: int


def _places(columns: Sequence[NumberColumn], num_rows: int) -> tuple[list[_Place], int]:
    """A place for each column, one after the other, bits of nulls behind all values; and the bytes of all of them."""
    bits_bytes = -(-num_rows // 8)
    lengths = [-(-num_rows * column.value_bits // 8) for column in columns]
    *starts, bits = itertools.accumulate(map(_aligned, lengths), initial=0)
    places = []
    for column, start, length in zip(columns, starts, lengths, strict=True):
        end = bits + (bits_bytes if column.is_optional else 0)
        places.append(_Place(start, start + length, bits, end))
        bits = _aligned(end)
    return places, bits


def _aligned(number: int) -> int:
    return -(-number // _ALIGNED_BYTES) * _ALIGNED_BYTES


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
    buffers = [_PAGES.take(stop - start).data[: stop - start] for start, stop in merged]
    source.read_into([(start, stop - start) for start, stop in merged], buffers)
    firsts = [start for start, _ in merged]
    pages = []
    for start, length in spans:
        index = bisect_right(firsts, start) - 1
        place = start - firsts[index]
        pages.append(buffers[index][place : place + length])
    return pages
