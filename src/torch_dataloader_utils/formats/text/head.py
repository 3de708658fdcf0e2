"""The first lines of a text file: how far they are read, what a CSV header says, and the types of the columns."""

import csv
import io
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv as pa_csv

from torch_dataloader_utils._store import FileEntry, Store, redact
from torch_dataloader_utils.errors import ConfigError, SchemaError, UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt
from torch_dataloader_utils.formats.file_scan import ScanRequest
from torch_dataloader_utils.formats.text.json_schema import infer_schema, learn_schema
from torch_dataloader_utils.formats.text.text_stream import text_stream

SEPARATED = {",": "csv", "\t": "tsv", ";": "csv-semicolon", "|": "csv-pipe"}
"""Name of the format for each separator of columns."""

_HEAD_BYTES = 1 << 20
_MOST_HEAD_BYTES = 32 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
JSON_BLANKS = b" \t\r"
CSV_BLANKS = b"\r"
# A line end between two quotes ends no row.
_CSV_ROW = rb'[^"\r\n]*(?:"[^"]*"[^"\r\n]*)*[\r\n]'
_LINE = re.compile(rb"[^\r\n]+[\r\n]")
_CSV_HEADER_AND_ROW = re.compile(_CSV_ROW + rb"[\r\n]*(?=[^\r\n])" + _CSV_ROW)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def read_head(store: Store, entry: FileEntry, *, is_csv: bool) -> tuple[bytes, bool]:
    """Return the first MiB of text, and whether more follows; no text if all lines are blank.

    The text is longer if its first line ends later, or the first row after a CSV header: a type needs a value.
    """
    blanks, start = (CSV_BLANKS, _CSV_HEADER_AND_ROW) if is_csv else (JSON_BLANKS, _LINE)
    stream = text_stream(store, entry)
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


def check_start(path: str, head: bytes, *, is_json: bool) -> None:
    """Refuse a file that begins as UTF-16, or as a JSON object over several lines.

    Raises:
        UnsupportedFeatureError: the file begins like this.
    """
    if head.startswith(_UTF16_MARKS):
        raise UnsupportedFeatureError(
            f"{redact(path)} begins as UTF-16, and text is read as UTF-8. Convert the file to UTF-8: iconv -f UTF-16 "
            "-t UTF-8 old > new."
        )
    if is_json and _after_blanks(head, JSON_BLANKS).split(b"\n", 1)[0].strip() == b"{":
        raise UnsupportedFeatureError(
            f"{redact(path)} begins with a JSON object over several lines. JSON lines are needed: one object a line. "
            "Write it again in that form, as by jq -c, or leave it out."
        )


def schema_of_head(path: str, head: bytes, request: ScanRequest, delimiter: str | None, *, is_cut: bool) -> pa.Schema:
    """Return the request's schema or, without one, the schema that the first lines show.

    delimiter: Separator of CSV columns; None for JSON lines. is_cut: Whether more text follows.

    Raises:
        SchemaError: a CSV header has other names than the request's schema. ConfigError: see `_check_header`.
        UnsupportedFeatureError: JSON that is not JSON lines.
    """
    if delimiter is None:
        return request.schema or _json_schema(path, _whole_lines(head) if is_cut else head, request.columns)
    if request.schema is None:
        _check_header(path, head, delimiter)
        return _csv_schema(head, delimiter, is_cut=is_cut)
    header = csv_header(head)
    is_line = header.endswith(b"\n") and closes_quotes(header)
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
    text = re.split(rb"[\r\n]", _after_blanks(head, CSV_BLANKS), maxsplit=1)[0].decode("utf-8", "replace")
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


def csv_header(head: bytes) -> bytes:
    """Return the first line that is not blank, with its line end and the mark and blank lines before it."""
    text = _after_blanks(head, CSV_BLANKS)
    stop = text.find(b"\n") + 1
    return head[: len(head) - len(text) + stop] if stop else head


def closes_quotes(header: bytes) -> bool:
    """Return whether all quotes of a CSV header close on its own line. Most writers quote the names."""
    return header.count(b'"') % 2 == 0


def _whole_lines(head: bytes) -> bytes:
    stop = max(head.rfind(b"\n"), head.rfind(b"\r")) + 1
    return head[:stop] if stop else head


def _after_blanks(head: bytes, blanks: bytes) -> bytes:
    """Return the text without the byte order mark and blank lines at its start."""
    return head.removeprefix(_BYTE_ORDER_MARK).lstrip(blanks + b"\n")
