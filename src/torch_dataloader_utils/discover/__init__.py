"""Finds the data: from a path or a table to an inventory of data files and row groups.

In: a file, list, glob or directory, local or any fsspec URL, and its format; or a table. Out: an `Inventory`, sorted by
path, the same for any listing order and number of threads. Only metadata is read: Parquet footers, ORC tails, Arrow
block headers; text has none, so its lines are counted. Counts are checked where possible, and again on reading. Not
for: ranks, workers or order; that is `plan`.

A file format is one module (`parquet`, `orc`, `arrow`, `text`) with a function from a `ScanItem` to a `FileScan`. A new
one is a value of `FileFormat`, such a module, and a line in `formats`; `read/` has its decoder.

A table format is one folder (`iceberg/`, `delta/`) with a function from a table to an `Inventory`, whose files carry
`extras` for the reader. A new one (Hudi) is such a folder beside them. They share `table_paths` (what metadata may
name), the scans of the file formats, `prune` (statistics) and `group_table` (joining the scans), and a data set in
`datasets/` calls it. `table_directories` refuses directories of tables that are read as plain files.
"""

from torch_dataloader_utils.discover.file_scan import TextOptions
from torch_dataloader_utils.discover.group_table import with_live_rows
from torch_dataloader_utils.discover.saved_inventory import load_inventory, save_inventory
from torch_dataloader_utils.discover.scan import scan_files

__all__ = ["TextOptions", "load_inventory", "save_inventory", "scan_files", "with_live_rows"]
