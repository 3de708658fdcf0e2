"""Scan of JSON lines and CSV: blocks of whole lines, their row counts, and the keys of JSON, by one read of the file.

A CSV header belongs to the file and is in no block: a CSV group that starts at byte 0 is a whole file with its header.
A file is one group if it is compressed (.gz, .zst, .bz2, .lz4), and a CSV file also if its lines end in carriage
returns, or if it has quoted values, which may hold line ends, unless the caller rules them out.
"""

import csv
import io
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
from torch_dataloader_utils.errors import ConfigError, SchemaError, UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.text.json_schema import JsonSchema, check_keys, infer_schema, learn_schema
from torch_dataloader_utils.formats.text.line_counter import LineCounter
from torch_dataloader_utils.formats.whole_reads import KEPT_DIGEST, ContentDigest, kept_results

# Bytes of the columns that a kept result was made for, and bytes of its schema.
_LENGTHS = struct.Struct("<qq")

_PIECE_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20
_MOST_HEAD_BYTES = 32 << 20
_CSV_PARSE_BYTES = 1 << 20
_MOST_CSV_PARSE_BYTES = 1 << 30
# A line end to pyarrow's CSV parser, as in files of old Macs.
_LONE_RETURN = re.compile(rb"\r(?!\n)")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_JSON_BLANKS = b" \t\r"
_CSV_BLANKS = b"\r"
# A line end between two quotes ends no row.
_CSV_ROW = rb'[^"\r\n]*(?:"[^"]*"[^"\r\n]*)*[\r\n]'
_LINE = re.compile(rb"[^\r\n]+[\r\n]")
_CSV_HEADER_AND_ROW = re.compile(_CSV_ROW + rb"[\r\n]*(?=[^\r\n])" + _CSV_ROW)


# Separator of columns, and names of a file's columns.
_Columns = tuple[str, Sequence[str]]

SEPARATED = {",": "csv", "\t": "tsv", ";": "csv-semicolon", "|": "csv-pipe"}
"""Name of the format for each separator of columns."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


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
        UnsupportedFeatureError: text in UTF-16, or JSON that is no JSON lines. ConfigError: see `_check_header`.
    """
    entry = item.entry
    with decoding(entry.path, "text"):
        head, is_cut = _head(store, entry, delimiter is not None)
        if not head:
            return _blank(entry, request)
        _check_start(entry.path, head, is_json=delimiter is None)
        if delimiter is None and request.count_rows:
            schema, groups = _json_lines(store, entry, request)
        else:
            schema = _schema(entry.path, head, request, delimiter, is_cut=is_cut)
            groups = _whole(entry, UNKNOWN)
            if delimiter is not None and request.count_rows:
                groups = _csv_groups(store, entry, head, (delimiter, schema.names), request)
    return FileScan(groups=groups, size=entry.stat.size, identity=entry.stat.identity, schema=schema)


def _check_start(path: str, head: bytes, *, is_json: bool) -> None:
    if head.startswith(_UTF16_MARKS):
        raise UnsupportedFeatureError(
            f"{redact(path)} begins as UTF-16, and text is read as UTF-8. Write it again, as by iconv -f UTF-16 -t "
            "UTF-8."
        )
    if is_json and _after_blanks(head, _JSON_BLANKS).split(b"\n", 1)[0].strip() == b"{":
        raise UnsupportedFeatureError(
            f"{redact(path)} begins with a JSON object over several lines. JSON lines are needed: one object a line. "
            "Write it again in that form, as by jq -c, or leave it out."
        )


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
    counter = _counted(store, entry, request, start=0, blank=_JSON_BLANKS, hear=learned.feed)
    learned.finish()
    return _counted_groups(entry, counter)


def _csv_groups(store: Store, entry: FileEntry, head: bytes, columns: _Columns, request: ScanRequest) -> Int64s:
    """Return the blocks of a file. The host keeps them for a large file."""

    def read() -> bytes:
        return np.ascontiguousarray(_counted_csv(store, entry, head, columns, request)).tobytes()

    kept = kept_results(store, entry.path, entry.stat).once(f"CSV{columns[0]} {request.text}", read)
    return np.frombuffer(kept, dtype=np.int64).reshape(-1, 4)


def _counted_csv(store: Store, entry: FileEntry, head: bytes, columns: _Columns, request: ScanRequest) -> Int64s:
    header = _header(head)
    counter = _counted(store, entry, request, start=len(header), blank=_CSV_BLANKS)
    may_hold_line_ends = counter.has_quotes or not _closes(header)
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
    stream = _stream(store, entry, content)
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
    # A row after the last one, with more columns than the file has. Inside an open quote the parser does not find it.
    end, ends = delimiter.join(["end of file"] * (len(names) + 1)), []

    def judge(row: pa_csv.InvalidRow) -> str:
        ends.append(row.text == end)
        return "skip" if ends[-1] else "error"

    # One column as bytes is cheap, and no inferred type can fail.
    reader = pa_csv.open_csv(
        pa.PythonFile(_LongerFile(_stream(store, entry), f"\n{end}\n".encode()), mode="r"),
        read_options=pa_csv.ReadOptions(block_size=parse_bytes),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=judge),
        convert_options=pa_csv.ConvertOptions(
            include_columns=names[:1], column_types={names[0]: pa.binary()}, include_missing_columns=True
        ),
    )
    rows: int = sum(batch.num_rows for batch in reader)
    if not any(ends):
        raise corrupt(entry.path, f"a quote that begins in row {rows:,} never ends, and takes the rest of the text")
    return rows


def _schema(path: str, head: bytes, request: ScanRequest, delimiter: str | None, *, is_cut: bool) -> pa.Schema:
    if delimiter is None:
        return request.schema or _json_schema(path, _whole_lines(head) if is_cut else head, request.columns)
    if request.schema is None:
        _check_header(path, head, delimiter)
        return _csv_schema(head, delimiter, is_cut=is_cut)
    header = _header(head)
    is_line = header.endswith(b"\n") and _closes(header)
    text, is_cut = (header, False) if is_line else (head, is_cut)
    names = _csv_schema(text, delimiter, is_cut=is_cut).names
    wanted = request.schema.names
    is_part = request.missing == "null" and len(set(names)) == len(names) and set(names) <= set(wanted)
    if not is_part and sorted(names) != sorted(wanted):
        advice = "If this line is a row, write a line of names before it. " if _are_numbers(names) else ""
        raise SchemaError(
            f"{redact(path)}: the CSV header is {', '.join(names)}; wanted {', '.join(wanted)}, as in the first file "
            f"or the schema. {advice}Write it again with the same columns, scan it alone, or pass a schema with all "
            'columns and missing="null" to scan_files.'
        )
    return request.schema


def _json_schema(path: str, head: bytes, columns: tuple[str, ...] | None) -> pa.Schema:
    try:
        return infer_schema([head])
    except pa.ArrowInvalid as error:
        if head.lstrip(b" \t\r\n").startswith(b"["):
            raise UnsupportedFeatureError(
                f"{redact(path)} begins with a JSON array. JSON lines are needed: one object a line, without brackets "
                "around them and commas between them. Write it again in that form, or leave it out."
            ) from error
        if "changed from" not in str(error):
            raise
    return learn_schema(head, redact(path), columns)


def _csv_schema(text: bytes, delimiter: str, *, is_cut: bool) -> pa.Schema:
    """Return the types of the rows of `text`. If more text follows, the last row is left out: it may not be whole."""
    options = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    if is_cut:
        # The types come from the first block. The parser ends the block with the block's last row.
        cut = pa_csv.ReadOptions(use_threads=False, block_size=len(text) - 1)
        return pa_csv.open_csv(pa.BufferReader(text), read_options=cut, parse_options=options).schema
    text = text.rstrip(b"\r\n") + b"\n"
    whole = pa_csv.ReadOptions(block_size=len(text) + 1)
    return pa_csv.read_csv(io.BytesIO(text), read_options=whole, parse_options=options).schema


def _check_header(path: str, head: bytes, delimiter: str) -> None:
    """Refuse a header that may be no header of this separator. A schema from the user rules the doubt out.

        a;b       as csv: one name with a separator in it             1,2.5      names that are all numbers

    Raises:
        ConfigError: such a header.
    """
    text = re.split(rb"[\r\n]", _after_blanks(head, _CSV_BLANKS), maxsplit=1)[0].decode("utf-8", "replace")
    names = next(csv.reader([text], delimiter=delimiter), [])
    others = (
        [SEPARATED[each] for each in SEPARATED if each != delimiter and each in names[0]] if len(names) == 1 else []
    )
    if others:
        formats = " or ".join(f'format="{each}"' for each in others)
        raise ConfigError(
            f"{redact(path)}: read as {SEPARATED[delimiter]}, the header has one column, {names[0]!r}. If there are "
            f"several, pass {formats}. If this is one name, pass it in a schema: inventory=scan_files(path, "
            f'"{SEPARATED[delimiter]}", schema=pyarrow.schema([...])).'
        )
    if _are_numbers(names):
        raise ConfigError(
            f"{redact(path)}: the first line is {text[:200]!r}, which is numbers and no names. The first line of a CSV "
            "file has to name its columns: write such a line before it. If these numbers are names, pass them in a "
            f'schema: inventory=scan_files(path, "{SEPARATED[delimiter]}", schema=pyarrow.schema([...])).'
        )


def _are_numbers(names: Sequence[str]) -> bool:
    return all(not name or _NUMBER.fullmatch(name.strip()) for name in names) and any(names)


def _closes(header: bytes) -> bool:
    # Quotes in pairs close on the header's own line. Most writers quote the names.
    return header.count(b'"') % 2 == 0


def _header(head: bytes) -> bytes:
    """Return the first line that is not blank, with its line end and the mark and blank lines before it."""
    text = _after_blanks(head, _CSV_BLANKS)
    stop = text.find(b"\n") + 1
    return head[: len(head) - len(text) + stop] if stop else head


def _whole_lines(head: bytes) -> bytes:
    stop = max(head.rfind(b"\n"), head.rfind(b"\r")) + 1
    return head[:stop] if stop else head


def _head(store: Store, entry: FileEntry, is_csv: bool) -> tuple[bytes, bool]:
    """Return the first MiB of text, and whether more follows; no text if all lines are blank.

    The text is longer if its first line ends later, or the first row after a CSV header: a type needs a value.
    """
    blanks, start = (_CSV_BLANKS, _CSV_HEADER_AND_ROW) if is_csv else (_JSON_BLANKS, _LINE)
    stream = _stream(store, entry)
    # One byte more shows whether more text follows.
    size, head = _HEAD_BYTES, stream.read(_HEAD_BYTES + 1)
    while len(head) > size and size < _MOST_HEAD_BYTES and not start.match(_after_blanks(head, blanks)):
        head += stream.read(size)
        size *= 2
    line, is_cut = _after_blanks(head, blanks), len(head) > size
    # A row that ends nowhere is left to the parser: its quotes may be no quotes, as in 5" pipe.
    if is_cut and not _LINE.match(line):
        raise corrupt(entry.path, f"the first line does not end in the first {_MOST_HEAD_BYTES} bytes")
    return (head if line else b""), is_cut


def _after_blanks(head: bytes, blanks: bytes) -> bytes:
    """Return the text without the byte order mark and blank lines at its start."""
    return head.removeprefix(_BYTE_ORDER_MARK).lstrip(blanks + b"\n")


def _stream(store: Store, entry: FileEntry, content: ContentDigest | None = None) -> pa.NativeFile:
    """Return the text, decompressed; `content` gets the stored bytes."""
    file = pa.PythonFile(_SequentialFile(store, entry, content), mode="r")
    codec = codec_of(entry.path)
    return file if codec is None else pa.CompressedInputStream(file, codec)


class _LongerFile:
    """Text with more text after its end."""

    def __init__(self, text: pa.NativeFile, more: bytes) -> None:
        self._text = text
        self._more = io.BytesIO(more)
        self.closed = False

    def read(self, length: int) -> bytes:
        """Return the next bytes, empty at the end."""
        return self._text.read(length) or self._more.read(length)

    def close(self) -> None:
        """Close the text."""
        self._text.close()
        self.closed = True


class _SequentialFile:
    """Stored file that is read from its start to its end, in pieces of the asked lengths."""

    def __init__(self, store: Store, entry: FileEntry, content: ContentDigest | None) -> None:
        self._store = store
        self._entry = entry
        self._content = content
        self._position = 0
        self.closed = False

    def read(self, length: int = -1) -> bytes | memoryview:
        """Return the next bytes, empty at the end."""
        left = self._entry.stat.size - self._position
        length = left if length < 0 else min(length, left)
        if length == 0:
            return b""
        (data,) = self._store.ranges(self._entry.path, [(self._position, length)], self._entry.stat.identity)
        if self._content is not None:
            self._content.feed(data)
        self._position += length
        return data

    def tell(self) -> int:
        """Return the position in the stored file."""
        return self._position

    def close(self) -> None:
        """Mark the file as closed. No resource is held."""
        self.closed = True
