"""Discovery of data: from paths to an inventory of data files and row groups.

In: a file, list, glob or directory, local or any fsspec URL, and a format. Out: an `Inventory`, sorted by path, the
same for any listing order and number of threads. `paths` lists files, `first_scan` learns the columns, `scan` asks the
format for the row groups of each file, and `group_table` joins them. `saved_inventory` keeps an inventory in a
`sealed_parquet` file.

Only metadata is read; text has none, so its lines are counted. Counts are checked where possible, and again on reading.
`tables` finds tables, with `roots` (where their files may lie) and `group_table` from here. `table_directories` refuses
directories of tables that are read as plain files.

Not for: ranks, workers or order; that is `plan`.
"""

from torch_dataloader_utils.discover.group_table import with_live_rows
from torch_dataloader_utils.discover.hive import Hive
from torch_dataloader_utils.discover.saved_inventory import load_inventory, save_inventory
from torch_dataloader_utils.discover.scan import scan_files
from torch_dataloader_utils.formats.file_scan import TextOptions

__all__ = ["Hive", "TextOptions", "load_inventory", "save_inventory", "scan_files", "with_live_rows"]
