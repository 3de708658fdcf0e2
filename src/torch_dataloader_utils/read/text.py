"""One block of whole lines of a CSV or JSON-lines file, decoded.

    a,b⏎1,2⏎3,4⏎5,6⏎      block 0: a,b⏎1,2⏎      block 1: 3,4⏎5,6⏎

Blocks are cut by whoever made the task, between rows; block 0 of a CSV file starts with the header line.
Text has no types: values are parsed as the data set's schema says, never inferred from the block.
"""

import csv
import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.read.checks import check_decoded_size, check_unique, where
from torch_dataloader_utils.read.contiguous import contiguous, rows_only
from torch_dataloader_utils.read.footers import FooterCache
from torch_dataloader_utils.read.source import TaskSource

_HEADER_BYTES = 64 << 10
_MAX_HEADER_BYTES = 16 << 20

_headers: FooterCache[tuple[str, ...]] = FooterCache()


def decode_csv(source: TaskSource, fields: Sequence[Any]) -> Any:
    """The rows of one block, columns `fields` as far as the file has them, in the fields' types.

    Names come from the header of the file itself, read once and kept: two files of a data set may have their
    columns in different orders. Empty text is an empty string in a text column and null in any other, as in
    pyarrow.dataset; values may hold quoted line ends.

    Raises:
        CorruptFileError, SchemaError, UnsupportedFeatureError, FileChangedError; and whatever pyarrow raises.
    """
    header = _headers.get(source.key, lambda: _read_header(source))
    data = _block(source)
    if len(data) == 0:
        return rows_only(0)
    names = [field.name for field in fields if field.name in header]
    check_unique(source.task, pa.schema([(name, pa.null()) for name in header]), names)
    types = {field.name: field.type for field in fields}
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(
            use_threads=False,
            block_size=len(data) + 1,
            column_names=None if source.task.ordinal == 0 else list(header),
        ),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        # Without a column there are no rows to count; bytes are the cheapest to parse.
        convert_options=pa_csv.ConvertOptions(
            include_columns=names or list(header[:1]), column_types=types if names else {header[0]: pa.binary()}
        ),
    )
    return contiguous(table.to_batches()) if names else rows_only(table.num_rows)


def decode_json(source: TaskSource, fields: Sequence[Any]) -> Any:
    """The rows of one block of JSON lines, columns `fields`, in the fields' types; what a line lacks is null.

    Raises:
        SchemaError, UnsupportedFeatureError, FileChangedError; and whatever pyarrow raises.
    """
    data = _block(source)
    if len(data) == 0:
        return rows_only(0)
    table = pa_json.read_json(
        pa.BufferReader(data),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema([field.with_nullable(True) for field in fields]),
            unexpected_field_behavior="ignore",
        ),
    )
    return contiguous(table.to_batches()) if fields else rows_only(table.num_rows)


def _block(source: TaskSource) -> Any:
    task = source.task
    check_decoded_size(task, task.byte_length, source.max_row_group_bytes)
    return source.span((task.byte_offset, task.byte_length))


def _read_header(source: TaskSource) -> tuple[tuple[str, ...], int]:
    length = _HEADER_BYTES
    while True:
        head = bytes(source.span((0, min(length, source.task.file_size))))
        # A header line may hold quoted line ends; it is whole if another row follows, or the file ends.
        rows = (row for row in csv.reader(io.StringIO(head.decode("utf-8-sig", "replace"), newline="")) if row)
        header = next(rows, [])
        if len(head) == source.task.file_size or next(rows, None) is not None:
            return tuple(header), length
        if length >= _MAX_HEADER_BYTES:
            raise CorruptFileError(
                f"{where(source.task)}: no header line in the first {length} bytes. Is this a CSV file? Write it again."
            )
        length = min(length * 16, _MAX_HEADER_BYTES)
