"""Scan of Parquet files: row groups from the footer, with one read of each file's tail."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.schema import all_nullable
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._store import TAIL_BYTES, BegunTail, Buffer, FileEntry, FileStat, Store, Tail, redact
from torch_dataloader_utils.cache.kept_values import once_each
from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.formats.errors import decoding
from torch_dataloader_utils.formats.file_scan import FileScan, Int96Unit, ScanItem, ScanRequest, kept_nulls
from torch_dataloader_utils.formats.parquet.footer import KEPT, checked_footer, kept_footer
from torch_dataloader_utils.formats.parquet.footer_numbers import (
    footer_numbers,
)
from torch_dataloader_utils.formats.parquet.group_counts import (
    CountedColumns,
    check_total,
    count_groups,
    group_rows,
)
from torch_dataloader_utils.formats.parquet.statistics import judge_groups
from torch_dataloader_utils.formats.parquet.trailer import (
    check_metadata,
    checked_footer_length,
)
from torch_dataloader_utils.formats.statistics import guarantee

# A LogicalType of UUID in the Thrift of a footer: field 14, an empty struct, and the ends of both structs.
_UUID = b"\xec\x00\x00"

# Limit for large footers that are requested together: a batch of files holds its footers until they are decoded.
_MOST_BYTES_TOGETHER = 16 << 20

# Files of one table have few schemas, and to parse one takes longer than all else in a scan.
_MOST_KNOWN = 16
_known_columns: Recent[tuple[bytes, bytes, tuple[str, ...] | None, Int96Unit], CountedColumns] = Recent(_MOST_KNOWN)


def scan_parquet(store: Store, item: ScanItem, request: ScanRequest) -> FileScan:
    """Return the scan of the row groups that the footer lists, with the filter judged by their statistics.

    projected_bytes are uncompressed.

    Raises:
        CorruptFileError: no footer, or counts that do not add up.
        UnsupportedFeatureError: an encrypted file, or column chunks in other files.
    """
    return _scan_footer(read_footer(store, item.entry), item, request)


def scan_together(store: Store, items: Sequence[ScanItem], request: ScanRequest) -> list[Callable[[], FileScan]]:
    """Return a function for each file that returns its scan, or raises as `scan_parquet`.

    Footers that this host does not have are requested at once. Footers larger than TAIL_BYTES take a second request
    each, at once too. Where one attempt does not bring a sound footer, the function of the file goes on as
    `read_footer`.
    """
    entries = [item.entry for item in items]
    begun: dict[int, BegunTail] = {}

    def begin(lengths: Mapping[int, int]) -> None:
        tails = store.begin_tails([entries[place] for place in lengths], list(lengths.values()))
        begun.update(zip(lengths, tails, strict=True))

    def read(places: Sequence[int]) -> dict[int, Buffer]:
        begin(dict.fromkeys(places, TAIL_BYTES))
        lengths = {place: _footer_bytes(begun[place], entries[place]) for place in places}
        large = {place: length for place, length in lengths.items() if length > TAIL_BYTES}
        if sum(large.values()) <= _MOST_BYTES_TOGETHER:
            begin(large)
        footers = ((place, _footer_in(begun[place], entries[place])) for place in places)
        return {place: footer for place, footer in footers if footer is not None}

    kept = once_each([store.values(entry.path, entry.stat.identity) for entry in entries], KEPT, read)

    def scan(place: int) -> FileScan:
        stat = entries[place].stat
        if place in kept:
            tail = Tail(data=kept[place], size=stat.size, identity=stat.identity)
        else:
            tail = read_footer(store, entries[place], begun.get(place))
        return _scan_footer(tail, items[place], request)

    return [partial(scan, place) for place in range(len(items))]


def _footer_bytes(tail: BegunTail, entry: FileEntry) -> int:
    """Return the length of the footer that ends a begun tail; 0 if the bytes are not there or end in no footer."""
    if tail.data is None:
        return 0
    try:
        return checked_footer_length(memoryview(tail.data), entry.stat.size, redact(entry.path))
    except DataError:
        return 0


def _footer_in(tail: BegunTail, entry: FileEntry) -> Buffer | None:
    """Return the footer in a begun tail; None if the footer is not there, not whole or not sound."""
    if tail.data is None or not 0 < _footer_bytes(tail, entry) <= len(tail.data):
        return None
    try:
        return checked_footer(tail.data, entry.path)
    except DataError:
        return None


def _scan_footer(tail: Tail, item: ScanItem, request: ScanRequest) -> FileScan:
    """Return the scan of a file with this footer, as `scan_parquet`."""
    path, verdict = item.entry.path, None
    with decoding(path, "Parquet footer"):
        if request.row_filter is None:
            schema, rows, nulls = _counted_footer(tail, path, request)
        else:
            # The fragment parses the statistics too.
            fragment = _fragment(tail, request, item.partition)
            check_metadata(tail.data, fragment.metadata, redact(path))
            schema = with_uuids(fragment.physical_schema, tail.data, request.int96_unit)
            rows, nulls = group_rows(path, fragment.metadata, schema, request.columns, tail.data)
            if (known := _known_values(schema, item, request)) is not None:
                if len(known) > len(item.partition):
                    fragment = _fragment(tail, request, known)
                verdict = judge_groups(
                    fragment, known, request.row_filter, request.filter_columns, tail=tail.data, where=redact(path)
                )
    return scan_of_footer(tail, schema, rows, nulls, verdict)


def _counted_footer(tail: Tail, path: str, request: ScanRequest) -> tuple[pa.Schema, Int64s, Int64s]:
    """Return the schema of a file and the results of `group_rows`; pyarrow parses one of the footers that are alike."""
    numbers, kind = footer_numbers(tail.data), None
    if numbers is not None and len(tail.data) <= TAIL_BYTES:
        kind = (numbers.head, numbers.tail, request.columns, request.int96_unit)
        known = _known_columns.find(kind)
        if known is not None and known.fit(numbers):
            rows, nulls = known.counted_rows(numbers)
            check_total(path, int(rows[:, 0].sum()), numbers.rows)
            return known.schema, rows, nulls
    # A ParquetFile would look at every column, which takes half of the time of small files.
    reader = pq.ParquetReader()
    reader.open(pa.BufferReader(tail.data), coerce_int96_timestamp_unit=request.int96_unit)
    check_metadata(tail.data, reader.metadata, redact(path))
    schema = with_uuids(reader.schema_arrow, tail.data, request.int96_unit)
    columns = CountedColumns.of(reader.metadata, schema, request.columns)
    if kind is not None:
        _known_columns.keep(kind, columns)
    return schema, *count_groups(path, reader.metadata, columns, numbers)


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


def read_footer(store: Store, entry: FileEntry, begun: BegunTail | None = None) -> Tail:
    """Return the footer of the file, by one read; a second read fetches a larger footer.

    The footer of a remote file is kept on this host; if it is kept, nothing is read.

    begun: A read that was begun.
    """
    seen = entry.stat

    def read() -> Buffer:
        nonlocal seen
        tail = store.tail(entry.path, TAIL_BYTES, entry.stat) if begun is None else begun.end()
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
