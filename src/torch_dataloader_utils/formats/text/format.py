"""`CSV` and `JSON`: the formats of text files. JSON means JSON lines, one object a line."""

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils.formats.file_format import Format
from torch_dataloader_utils.formats.text.decode import decode_csv, decode_json
from torch_dataloader_utils.formats.text.json_schema import join_schemas
from torch_dataloader_utils.formats.text.scan import scan_csv, scan_json

CSV = Format(number=FileFormat.CSV, names=("csv",), scan=scan_csv, decode=decode_csv, is_text=True)
JSON = Format(
    number=FileFormat.JSON,
    names=("json", "jsonl"),
    endings=("ndjson",),
    scan=scan_json,
    decode=decode_json,
    join_schemas=join_schemas,
    is_text=True,
)
