"""Decoding of one block of whole lines of a CSV or JSON-lines file.

    a,b⏎1,2⏎3,4⏎5,6⏎      a,b⏎ | 1,2⏎3,4⏎ | 5,6⏎      header, block 0, block 1

Discovery cuts blocks between rows. A CSV block that starts at byte 0 includes the header. A compressed file is one
block. Values are parsed to the types of the data set's schema. Types are never inferred from the block.
"""

import csv
import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from torch_dataloader_utils._arrow.batches import contiguous, rows_only
from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils._core.paths import codec_of
from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.formats.checks import check_decoded_size, check_unique, repeated_names
from torch_dataloader_utils.formats.file_cache import FileCache
from torch_dataloader_utils.formats.task_source import TaskSource
from torch_dataloader_utils.formats.text.json_schema import check_keys, learn_schema

_HEADER_BYTES = 64 << 10
_MAX_HEADER_BYTES = 32 << 20
_PIECE_BYTES = 8 << 20

_headers: FileCache[tuple[str, ...]] = FileCache()


def decode_csv(source: TaskSource, fields: pa.Schema, *, delimiter: str) -> pa.RecordBatch:
    """Return the rows of one block, with the columns of `fields` that the file has, in the fields' types.

    Names come from the file's own header, read once and kept: two files of a data set may have their columns in
    different orders. Empty text is an empty string in a text column and null in any other column, as in
    pyarrow.dataset. Values may hold quoted line ends.

    Raises:
        CorruptFileError, SchemaError, UnsupportedFeatureError, FileChangedError; and every error of pyarrow.
    """
    data = _block(source)
    if len(data) == 0:
        return rows_only(0)
    has_header = source.task.byte_offset == 0
    if has_header:
        header = _find_header(source, len(data), lambda length: memoryview(data)[:length], delimiter)
    else:
        header = _headers.get(source.key, lambda: _read_header(source, delimiter))
    if not header:
        return rows_only(0)
    known = set(header)
    names = [field.name for field in fields if field.name in known]
    check_unique(source.task, repeated_names(header), names)
    types = {field.name: field.type for field in fields}
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(
            use_threads=False, block_size=len(data) + 1, column_names=None if has_header else list(header)
        ),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        # To count rows, the parser needs a column; bytes are the cheapest type to parse.
        convert_options=pa_csv.ConvertOptions(
            include_columns=names or list(header[:1]), column_types=types if names else {header[0]: pa.binary()}
        ),
    )
    return contiguous(table.to_batches()) if names else rows_only(table.num_rows)


def decode_json(source: TaskSource, fields: pa.Schema) -> pa.RecordBatch:
    """Return the rows of one block of JSON lines, with the columns `fields`, in the fields' types.

    A missing key is null. If the scan did not count lines, keys are checked here: a key that the fields lack is an
    error.

    Raises:
        SchemaError, UnsupportedFeatureError, FileChangedError; and every error of pyarrow.
    """
    data = _block(source)
    if len(data) == 0:
        return rows_only(0)
    if source.task.physical_rows == UNKNOWN and fields:
        _check_keys(source, bytes(data), pa.schema(fields))
    table = pa_json.read_json(
        pa.BufferReader(data),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema([field.with_nullable(True) for field in fields]),
            unexpected_field_behavior="ignore",
        ),
    )
    return contiguous(table.to_batches()) if fields else rows_only(table.num_rows)


def _check_keys(source: TaskSource, data: bytes, fields: pa.Schema) -> None:
    where, names = source.task.where, set(fields.names)
    seen = learn_schema(data, where, None if source.known is not None else fields.names)
    # Columns of the data set that are no fields come from the names of directories.
    check_keys(seen, fields, where, names if source.known is None else set(seen.names) - (source.known - names))


def _block(source: TaskSource) -> Buffer:
    """Return the block's text, decompressed under the memory budget."""
    task, budget = source.task, source.max_row_group_bytes
    check_decoded_size(task, task.byte_length, budget)
    data = source.span((task.byte_offset, task.byte_length))
    codec = codec_of(task.path)
    if codec is None:
        return data
    pieces, size = [], 0
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        while piece := stream.read(_PIECE_BYTES):
            size += len(piece)
            check_decoded_size(task, size, budget)
            pieces.append(piece)
    return b"".join(pieces)


def _read_header(source: TaskSource, delimiter: str) -> tuple[tuple[str, ...], int]:
    """Return the column names of the file, for a task after its first block, and their size in the cache."""
    size = source.task.file_size
    names = _find_header(source, size, lambda length: source.span((0, length)), delimiter)
    return names, sum(map(len, names))


def _find_header(source: TaskSource, size: int, head: Callable[[int], Buffer], delimiter: str) -> tuple[str, ...]:
    """Return the first row of a text of `size` bytes; () if the text is blank. head(n): Returns the first n bytes."""
    length = 0
    while length < min(size, _MAX_HEADER_BYTES):
        length = min(size, max(_HEADER_BYTES, length * 8))
        names = _first_row(head(length), delimiter, is_all=length == size)
        if names is not None:
            return names
    raise CorruptFileError(
        f"{source.task.where}: no header line in the first {length} bytes. Is this a CSV file? Write it again."
    )


def _first_row(head: Buffer, delimiter: str, *, is_all: bool) -> tuple[str, ...] | None:
    # A header may hold quoted line ends. It is whole if another row follows, or if the text ends.
    lines = io.StringIO(bytes(head).decode("utf-8-sig", "replace"), newline="")
    rows = (row for row in csv.reader(lines, delimiter=delimiter) if row)
    try:
        header = next(rows, [])
        return tuple(header) if is_all or next(rows, None) is not None else None
    except csv.Error:
        return None
