"""Formats of text files: CSV with each separator, and JSON, which means JSON lines, one object a line.

The separator of a CSV file is part of its format, so inventories and states keep the separator, and nothing guesses it.
"""

from functools import partial

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils.formats.file_format import Format
from torch_dataloader_utils.formats.text.decode import decode_csv, decode_json
from torch_dataloader_utils.formats.text.head import SEPARATED
from torch_dataloader_utils.formats.text.json_schema import join_schemas
from torch_dataloader_utils.formats.text.scan import scan_csv, scan_json


def _separated(number: FileFormat, delimiter: str, *endings: str) -> Format:
    return Format(
        number=number,
        names=(SEPARATED[delimiter],),
        endings=endings,
        scan=partial(scan_csv, delimiter=delimiter),
        decode=partial(decode_csv, delimiter=delimiter),
        is_text=True,
    )


CSV = _separated(FileFormat.CSV, ",")
TSV = _separated(FileFormat.TSV, "\t", "tab")
CSV_SEMICOLON = _separated(FileFormat.CSV_SEMICOLON, ";")
CSV_PIPE = _separated(FileFormat.CSV_PIPE, "|", "psv")
JSON = Format(
    number=FileFormat.JSON,
    names=("json", "jsonl"),
    endings=("ndjson",),
    scan=scan_json,
    decode=decode_json,
    join_schemas=join_schemas,
    is_text=True,
)
