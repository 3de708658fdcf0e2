"""Scan of JSON lines and CSV: blocks of whole lines, their row counts, and the keys of JSON, by one read of the file.

A CSV header belongs to the file and is in no block: a CSV group that starts at byte 0 is a whole file with its header.
A file is one group if it is compressed (.gz, .zst, .bz2, .lz4), and a CSV file also if its lines end in carriage
returns, or if it has quoted values, which may hold line ends, unless the caller rules them out.
"""

import re
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s
from torch_dataloader_utils._core.paths import codec_of
from torch_dataloader_utils._store import Buffer, FileEntry, Store, redact
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.text.head import (
    CSV_BLANKS,
    JSON_BLANKS,
    check_start,
    closes_quotes,
    csv_header,
    read_head,
    schema_of_head,
)
from torch_dataloader_utils.formats.text.json_schema import JsonSchema, check_keys
from torch_dataloader_utils.formats.text.line_counter import LineCounter
from torch_dataloader_utils.formats.text.text_stream import TextWithEnd, text_stream
from torch_dataloader_utils.formats.whole_reads import KEPT_DIGEST, ContentDigest, kept_results

# Bytes of the columns that a kept result was made for, and bytes of its schema.
_LENGTHS = struct.Struct("<qq")

_PIECE_BYTES = 8 << 20
_CSV_PARSE_BYTES = 1 << 20
_MOST_CSV_PARSE_BYTES = 1 << 30
# A line end to pyarrow's CSV parser, as in files of old Macs.
_LONE_RETURN = re.compile(rb"\r(?!\n)")

# Separator of columns, and names of a file's columns.
_Columns = tuple[str, Sequence[str]]


def scan_csv(store: Store, item: ScanItem, request: ScanRequest, *, delimiter: str) -> FileScan:
    """Return the scan of a CSV file; see `_scan_text`."""
    return _scan_text(store, item, request, delimiter)


def scan_json(store: Store, item: ScanItem, request: ScanRequest) -> FileScan:
    """Return the scan of a file of JSON lines; see `_scan_text`."""
    return _scan_text(store, item, request, None)


def _scan_text(store: Store, item: ScanItem, request: ScanRequest, delimiter: str | None) -> FileScan:
    """Return the scan of a text file in blocks. Without `count_rows`, physical_rows is UNKNOWN.

    delimiter: Separator of CSV columns; None for JSON lines.

    projected_bytes are the stored bytes. The schema is the request's schema or, without one, the file's schema: from
    all lines if JSON lines are counted, else inferred from the first MiB. A file of blank lines has no blocks.

    Raises:
        SchemaError: the names of a CSV header differ from the schema's names (the order may differ, and with
            missing="null" names may be missing), or columns of JSON lines have no common type or are not in the schema.
        UnsupportedFeatureError: text in UTF-16, or JSON that is not JSON lines. ConfigError: see `schema_of_head`.
    """
    entry = item.entry
    with decoding(entry.path, "text"):
        head, is_cut = read_head(store, entry, is_csv=delimiter is not None)
        if not head:
            return _blank(entry, request)
        check_start(entry.path, head, is_json=delimiter is None)
        if delimiter is None and request.count_rows:
            schema, groups = _json_lines(store, entry, request)
        else:
            schema = schema_of_head(entry.path, head, request, delimiter, is_cut=is_cut)
            groups = _whole(entry, UNKNOWN)
            if delimiter is not None and request.count_rows:
                groups = _csv_groups(store, entry, head, (delimiter, schema.names), request)
    return FileScan(groups=groups, size=entry.stat.size, identity=entry.stat.identity, schema=schema)


def _blank(entry: FileEntry, request: ScanRequest) -> FileScan:
    return FileScan(
        groups=np.zeros((0, 4), dtype=np.int64),
        size=entry.stat.size,
        identity=entry.stat.identity,
        schema=request.schema or pa.schema([]),
        is_blank=True,
    )


def _json_lines(store: Store, entry: FileEntry, request: ScanRequest) -> tuple[pa.Schema, Int64s]:
    """Return the columns and blocks of a file. The host keeps the result for a large file: it took a whole read."""

    def read() -> bytes:
        learned = JsonSchema(redact(entry.path), request.columns)
        groups = _json_groups(store, entry, request, learned)
        return _packed(learned.schema, groups, wanted if learned.left_out else "")

    # The needed columns decide which other columns are left out.
    wanted, what, results = str(request.columns), f"JSON {request.text}", kept_results(store, entry.path, entry.stat)
    schema, groups, made_for = _unpacked(results.once(what, read))
    if made_for not in ("", wanted):
        schema, groups, _ = _unpacked(results.once(f"{what} {wanted}", read))
    if request.schema is None:
        _check_is_row(entry.path, schema, groups)
        return schema, groups
    check_keys(schema, request.schema, redact(entry.path), request.columns)
    return request.schema, groups


def _check_is_row(path: str, schema: pa.Schema, groups: Int64s) -> None:
    """Refuse a single row whose columns all have the same numbered fields: pandas writes a data frame like this.

    {"a": {"0": 1, "1": 2}, "b": {"0": "x", "1": "y"}}

    Raises:
        UnsupportedFeatureError: the file is such a row.
    """
    labels = {tuple(each.name for each in field.type) if pa.types.is_struct(field.type) else () for field in schema}
    if int(groups[:, 0].sum()) != 1 or len(labels) != 1:
        return
    (names,) = labels
    if len(schema) * len(names) > 1 and all(map(str.isdecimal, names)):
        raise UnsupportedFeatureError(
            f"{redact(path)} is one JSON object of columns that all have the same numbers as keys, from {names[0]} to "
            f"{names[-1]}, as pandas' to_json() writes it. JSON lines are needed, one object a line: write it with "
            'to_json(..., orient="records", lines=True). If it is one row, name its types: '
            "inventory=scan_files(..., schema=)."
        )


def _packed(schema: pa.Schema, groups: Int64s, made_for: str) -> bytes:
    parts = [made_for.encode(), schema.serialize().to_pybytes()]
    return b"".join([_LENGTHS.pack(*map(len, parts)), *parts, np.ascontiguousarray(groups).tobytes()])


def _unpacked(data: Buffer) -> tuple[pa.Schema, Int64s, str]:
    packed = bytes(data)
    schema_at = _LENGTHS.size + _LENGTHS.unpack_from(packed)[0]
    stop = schema_at + _LENGTHS.unpack_from(packed)[1]
    groups = np.frombuffer(packed[stop:], dtype=np.int64).reshape(-1, 4)
    return decode_schema(packed[schema_at:stop]), groups, packed[_LENGTHS.size : schema_at].decode()


def _json_groups(store: Store, entry: FileEntry, request: ScanRequest, learned: JsonSchema) -> Int64s:
    counter = _counted(store, entry, request, start=0, blank=JSON_BLANKS, hear=learned.feed)
    learned.finish()
    return _counted_groups(entry, counter)


def _csv_groups(store: Store, entry: FileEntry, head: bytes, columns: _Columns, request: ScanRequest) -> Int64s:
    """Return the blocks of a file. The host keeps them for a large file."""

    def read() -> bytes:
        return np.ascontiguousarray(_counted_csv(store, entry, head, columns, request)).tobytes()

    kept = kept_results(store, entry.path, entry.stat).once(f"CSV{columns[0]} {request.text}", read)
    return np.frombuffer(kept, dtype=np.int64).reshape(-1, 4)


def _counted_csv(store: Store, entry: FileEntry, head: bytes, columns: _Columns, request: ScanRequest) -> Int64s:
    header = csv_header(head)
    counter = _counted(store, entry, request, start=len(header), blank=CSV_BLANKS)
    may_hold_line_ends = counter.has_quotes or not closes_quotes(header)
    has_lone_returns = counter.has_lone_returns or _LONE_RETURN.search(header) is not None
    if has_lone_returns or (may_hold_line_ends and not request.text.csv_has_no_quoted_newlines):
        return _whole(entry, _parsed_csv_rows(store, entry, columns))
    return _counted_groups(entry, counter)


def _counted(
    store: Store,
    entry: FileEntry,
    request: ScanRequest,
    *,
    start: int,
    blank: bytes,
    hear: Callable[[bytes], None] = lambda _: None,
) -> LineCounter:
    """Return the counted lines from byte `start` of the text on; `hear` gets each piece too."""
    counter = LineCounter(start=start, block_bytes=request.text.block_bytes, blank=blank)
    content = ContentDigest(entry.stat.size) if request.identity == "content" else None
    stream = text_stream(store, entry, content)
    stream.read(start)
    while piece := stream.read(_PIECE_BYTES):
        counter.feed(piece)
        hear(piece)
    if content is not None and (digest := content.result()) is not None:
        kept_results(store, entry.path, entry.stat).put(KEPT_DIGEST, digest.encode())
    return counter


def _counted_groups(entry: FileEntry, counter: LineCounter) -> Int64s:
    """Return a row group for each block; one row group for a compressed file, which can only be read from its start."""
    rows, offsets, lengths = counter.blocks().T
    if codec_of(entry.path):
        return _whole(entry, int(rows.sum()))
    return np.stack([rows, lengths, offsets, lengths], axis=1)


def _whole(entry: FileEntry, rows: int) -> Int64s:
    return np.array([[rows, entry.stat.size, 0, entry.stat.size]], dtype=np.int64)


def _parsed_csv_rows(store: Store, entry: FileEntry, columns: _Columns) -> int:
    # Where a quoted value may hold line ends, or lines do not end in a newline, only the parser can find rows. Its
    # blocks must be as long as a row. It reads many blocks ahead, so only files that need large blocks get them.
    parse_bytes = _CSV_PARSE_BYTES
    while True:
        try:
            return _rows_in_blocks(store, entry, columns, parse_bytes)
        except pa.ArrowInvalid as error:
            if "straddles two block boundaries" not in str(error) or parse_bytes >= _MOST_CSV_PARSE_BYTES:
                raise
        parse_bytes *= 8


def _rows_in_blocks(store: Store, entry: FileEntry, columns: _Columns, parse_bytes: int) -> int:
    delimiter, names = columns
    # A row with too many columns follows the text. The parser reports this row, unless an open quote takes it in.
    end, found_end = delimiter.join(["end of file"] * (len(names) + 1)), False

    def judge(row: pa_csv.InvalidRow) -> str:
        nonlocal found_end
        if row.text != end:
            return "error"
        found_end = True
        return "skip"

    # One column as bytes is cheap, and no inferred type can fail.
    reader = pa_csv.open_csv(
        pa.PythonFile(TextWithEnd(text_stream(store, entry), f"\n{end}\n".encode()), mode="r"),
        read_options=pa_csv.ReadOptions(block_size=parse_bytes),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=judge),
        convert_options=pa_csv.ConvertOptions(
            include_columns=names[:1], column_types={names[0]: pa.binary()}, include_missing_columns=True
        ),
    )
    rows: int = sum(batch.num_rows for batch in reader)
    if not found_end:
        raise corrupt(entry.path, f"a quote that begins in row {rows:,} never ends, and takes the rest of the text")
    return rows
