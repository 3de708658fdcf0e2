"""Formats of files: one file as a schema, row groups and rows.

    scan        a file's metadata       →  its schema and row groups (`FileScan`)
    decode      one row group           →  RecordBatches of the wanted columns

In: bytes of one file through `_store`. Out: facts of pyarrow and numpy. A format is a `Format`; `registry` finds it by
name, ending or number. Each format has one home here: `parquet/`, `orc`, `arrow/`, `text/`. Several formats share
`file_scan` (the values of a scan), `task_source` (the bytes of a task), `schemas`, `statistics` (filters against
bounds), `checks` (scans, rows and names) and `errors` (damage becomes a `DataError` that names the file).

Not for: finding files (`discover`), tables of several files (`tables`), and deciding which rows are read (`plan`).
"""

from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_format import Format
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.task_source import TaskSource

__all__ = ["FileScan", "Format", "ScanItem", "ScanRequest", "TaskSource", "corrupt", "decoding"]
