"""Scan of Parquet files: row groups from the footer, with one read of each file's tail."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.schema import all_nullable, column_names, flat_schema, leaf_ranges
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._store import TAIL_BYTES, Buffer, FileEntry, FileStat, Span, Store, Tail, redact
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_scan import FileScan, Int96Unit, ScanItem, ScanRequest, kept_nulls
from torch_dataloader_utils.formats.parquet.footer import kept_footer
from torch_dataloader_utils.formats.parquet.footer_numbers import FooterNumbers, OfChunk, footer_numbers
from torch_dataloader_utils.formats.parquet.statistics import judge_groups
from torch_dataloader_utils.formats.parquet.trailer import (
    check_metadata,
    checked_footer_length,
    chunk_start,
)
from torch_dataloader_utils.formats.statistics import guarantee

# A LogicalType of UUID in the Thrift of a footer: field 14, an empty struct, and the ends of both structs.
_UUID = b"\xec\x00\x00"

_NULLS_AND_VALUES = [OfChunk.NULLS, OfChunk.VALUES]

# A sum over all leaves fits into 64 bits.
_MOST_SANE = 1 << 40

_log = logging.getLogger(__name__)


def scan_parquet(store: Store, item: ScanItem, request: ScanRequest) -> FileScan:
    """Return the scan of the row groups that the footer lists, with the filter judged by their statistics.

    projected_bytes are uncompressed.

    Raises:
        CorruptFileError: no footer, or counts that do not add up.
        UnsupportedFeatureError: an encrypted file, or column chunks in other files.
    """
    tail = read_footer(store, item.entry)
    path = item.entry.path
    with decoding(path, "Parquet footer"):
        fragment = None
        if request.row_filter is not None:
            # The fragment parses the statistics too.
            fragment = _fragment(tail, request, item.partition)
            metadata, schema = fragment.metadata, fragment.physical_schema
        else:
            # A ParquetFile would look at every column, which takes half of the time of small files.
            reader = pq.ParquetReader()
            reader.open(pa.BufferReader(tail.data), coerce_int96_timestamp_unit=request.int96_unit)
            metadata, schema = reader.metadata, reader.schema_arrow
        check_metadata(tail.data, metadata, redact(path))
        schema = with_uuids(schema, tail.data, request.int96_unit)
        rows, nulls = group_rows(path, metadata, schema, request.columns, tail.data)
        verdict = None
        if fragment is not None and (known := _known_values(schema, item, request)) is not None:
            if len(known) > len(item.partition):
                fragment = _fragment(tail, request, known)
            verdict = judge_groups(
                fragment, known, request.row_filter, request.filter_columns, tail=tail.data, where=redact(path)
            )
    return scan_of_footer(tail, schema, rows, nulls, verdict)


def _fragment(tail: Tail, request: ScanRequest, known: Sequence[tuple[pa.Field, Any]]) -> ds.ParquetFileFragment:
    file_format = ds.ParquetFileFormat(coerce_int96_timestamp_unit=request.int96_unit)
    return file_format.make_fragment(pa.BufferReader(tail.data), partition_expression=guarantee(known))


def _known_values(schema: pa.Schema, item: ScanItem, request: ScanRequest) -> tuple[tuple[pa.Field, Any], ...] | None:
    """Return values of the filter's columns that are known without statistics; None if statistics do not compare.

    Known values are partition values, and nulls for columns that the file lacks. Statistics do not compare if the file
    has a column in another type than the data set.
    """
    of_path = {field.name for field, _ in item.partition}
    known = list(item.partition)
    for name in request.filter_columns:
        if name in of_path or request.schema is None:
            continue
        wanted, index = request.schema.field(name), schema.get_field_index(name)
        if index < 0:
            known.append((wanted, None))
        elif all_nullable(schema.field(index).type) != all_nullable(wanted.type):
            return None
    return tuple(known)


def read_footer(store: Store, entry: FileEntry) -> Tail:
    """Return the footer of the file, by one read; a second read fetches a larger footer.

    The footer of a remote file is kept on this host; if it is kept, nothing is read.
    """
    seen = entry.stat

    def read() -> Buffer:
        nonlocal seen
        tail = store.tail(entry.path, TAIL_BYTES, entry.stat)
        need = checked_footer_length(tail.data, tail.size, redact(entry.path))
        if need > len(tail.data):
            tail = store.tail(entry.path, need, entry.stat)
        seen = FileStat(size=tail.size, identity=tail.identity)
        return tail.data

    footer = kept_footer(store, entry.path, entry.stat.identity, read)
    return Tail(data=footer, size=seen.size, identity=seen.identity)


def with_uuids(schema: pa.Schema, footer: Buffer, int96_unit: Int96Unit) -> pa.Schema:
    """Return the schema of a footer with its UUIDs as `arrow.uuid`.

    By default pyarrow gives this type only for files that pyarrow wrote. Other extension types stay as pyarrow gives
    them by default: most compute functions refuse extension types.
    """
    if _UUID not in bytes(footer):
        return schema
    reader = pq.ParquetReader()
    reader.open(pa.BufferReader(footer), coerce_int96_timestamp_unit=int96_unit, arrow_extensions_enabled=True)
    fields = [
        typed if _holds_uuid(typed.type) else plain for plain, typed in zip(schema, reader.schema_arrow, strict=True)
    ]
    return pa.schema(fields, schema.metadata)


def _holds_uuid(data_type: pa.DataType) -> bool:
    inner = (data_type.field(i).type for i in range(data_type.num_fields))
    return isinstance(data_type, pa.UuidType) or any(map(_holds_uuid, inner))


def _projected_leaves(
    metadata: pq.FileMetaData, schema: pa.Schema, fields: Sequence[range], columns: tuple[str, ...] | None
) -> list[int]:
    """Return the numbers of the leaf columns of the projected fields; names that the file lacks are left out.

    fields: Leaf columns of each field.
    """
    if columns is None:
        return list(range(metadata.num_columns))
    wanted = set(column_names(schema, columns))
    return [
        leaf
        for name, leaves in zip(schema.names, fields, strict=True)
        if name in wanted
        for leaf in leaves
        if leaf < metadata.num_columns
    ]


def scan_of_footer(tail: Tail, schema: pa.Schema, rows: Int64s, nulls: Int64s, verdict: Int64s | None) -> FileScan:
    """Return the scan of a file from its footer.

    rows, nulls: See `group_rows`. verdict: See `judge_groups`; None if nothing was judged.
    """
    return FileScan(
        groups=rows,
        size=tail.size,
        identity=tail.identity,
        schema=schema,
        verdict=verdict,
        nulls=kept_nulls(nulls, verdict),
    )


def group_rows(
    path: str, metadata: pq.FileMetaData, schema: pa.Schema, columns: tuple[str, ...] | None, tail: Buffer
) -> tuple[Int64s, Int64s]:
    """Return the numbers of all row groups of a footer, int64 each.

    The bytes of a row group run from the start of its first column chunk to the end of its last one.

    path: File, for messages. columns: Projection, None for all. tail: End of the file, parsed as `metadata`.

    Returns:
        [row groups, 4]: physical rows, projected bytes, byte offset, byte length (as in `FileScan.groups`).
        [row groups, fields of `flat_schema`]: nulls, 0 where the footer does not count them.

    Raises:
        CorruptFileError: the rows do not add up to the number of rows of the file.
    """
    rows, nulls = _counted_rows(metadata, schema, columns, tail)
    check_total(path, int(rows[:, 0].sum()), metadata.num_rows)
    return rows, nulls


def _counted_rows(
    metadata: pq.FileMetaData, schema: pa.Schema, columns: tuple[str, ...] | None, tail: Buffer
) -> tuple[Int64s, Int64s]:
    numbers = footer_numbers(tail)
    shape = (metadata.num_row_groups, metadata.num_columns)
    leaves = _projected_leaves(metadata, schema, leaf_ranges(schema), columns)
    flat = flat_schema(schema)
    fields = leaf_ranges(flat)
    if numbers is None or numbers.chunks.shape[:2] != shape or not shape[1] or not _are_sane(numbers):
        return _rows_by_pyarrow(metadata, leaves), _null_counts(partial(_nulls_by_pyarrow, metadata), flat, fields)
    rows, projected_bytes = numbers.groups.T
    if len(leaves) != metadata.num_columns:
        projected_bytes = numbers.chunks[:, leaves, OfChunk.UNCOMPRESSED].sum(axis=1)
    starts = numbers.starts[:, [0, -1]]
    stops = starts + numbers.chunks[:, [0, -1], OfChunk.COMPRESSED]
    start = starts.min(axis=1)
    groups = np.stack([rows, projected_bytes, start, stops.max(axis=1) - start], axis=1)
    return groups, _null_counts(lambda leaves: numbers.chunks[:, leaves][..., _NULLS_AND_VALUES], flat, fields)


def _null_counts(counted: Callable[[Int64s], Int64s], schema: pa.Schema, fields: Sequence[range]) -> Int64s:
    """Return the nulls of each field, int64 [row groups, fields]; an impossible count becomes 0.

    counted: Returns the nulls and values of leaf columns, int64 [row groups, leaves, 2]. fields: Leaf columns of each
    field.
    """
    # Writers count empty lists as nulls, except in lists of a fixed size.
    places = [
        place
        for place, (field, leaves) in enumerate(zip(schema, fields, strict=True))
        if field.nullable and len(leaves) == 1 and _has_own_nulls(field.type)
    ]
    found = counted(np.array([fields[place].start for place in places], dtype=np.int64))
    nulls = np.zeros((len(found), len(schema)), dtype=np.int64)
    nulls[:, places] = np.where((found[..., 0] > 0) & (found[..., 0] <= found[..., 1]), found[..., 0], 0)
    return nulls


def _nulls_by_pyarrow(metadata: pq.FileMetaData, leaves: Int64s) -> Int64s:
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(leaf) for group in groups for leaf in leaves.tolist())
    found = [(_null_count(chunk.statistics), chunk.num_values) for chunk in chunks]
    return np.array(found, dtype=np.int64).reshape(metadata.num_row_groups, len(leaves), 2)


def _null_count(statistics: pq.Statistics | None) -> int:
    return statistics.null_count if statistics is not None and statistics.has_null_count else 0


def _has_own_nulls(data_type: pa.DataType) -> bool:
    """Return whether each null of the only leaf is a null row, or a missing number in a row of fixed size."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_own_nulls(data_type.storage_type)
    if not pa.types.is_fixed_size_list(data_type):
        return bool(data_type.num_fields == 0)
    while pa.types.is_fixed_size_list(data_type) and data_type.list_size:
        data_type = data_type.value_type
    return bool(pa.types.is_primitive(data_type))


def _are_sane(numbers: FooterNumbers) -> bool:
    """Return whether no sum of the numbers is too large for 64 bits."""
    arrays = (numbers.groups, numbers.chunks)
    return all(bool(((each > -_MOST_SANE) & (each < _MOST_SANE)).all()) for each in arrays)


def _rows_by_pyarrow(metadata: pq.FileMetaData, leaves: list[int]) -> Int64s:
    last = metadata.num_columns - 1
    rows = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        ends = [_span(group.column(leaf)) for leaf in ((0, last) if last >= 0 else ())]
        if len(leaves) == metadata.num_columns:
            projected_bytes = group.total_byte_size
        else:
            projected_bytes = sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
        rows.append((group.num_rows, projected_bytes, *_around(ends)))
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def check_total(path: str, group_rows: int, file_rows: int) -> None:
    """Raise CorruptFileError unless the rows of the row groups add up to the file's own count.

    A file count of 0 beside row groups with rows is only logged: some writers make it in good files.
    """
    if file_rows == 0 and group_rows:
        _log.warning("%s: the footer says 0 rows, its row groups %d; the groups count", redact(path), group_rows)
    elif file_rows != group_rows:
        raise corrupt(path, f"the footer says {file_rows} rows, its row groups add up to {group_rows}")


def _span(chunk: pq.ColumnChunkMetaData) -> Span:
    return chunk_start(chunk.data_page_offset, chunk.dictionary_page_offset), chunk.total_compressed_size


def _around(spans: Sequence[Span]) -> Span:
    """Return the smallest span that holds all spans."""
    start = min((start for start, _ in spans), default=0)
    return start, max(map(sum, spans), default=0) - start
