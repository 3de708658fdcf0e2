"""Finds the data: from a path to an inventory of data files and row groups.

In: a file, list, glob or directory, local or any fsspec URL, and the format. Out: an `Inventory`, sorted by path, the
same for any listing order and number of threads. Only metadata is read: Parquet footers, ORC tails, Arrow IPC block
headers; text has none, so its lines are counted. Counts are checked where possible, and again on reading. Not for:
ranks, workers or order; that is `plan`.
"""

from torch_dataloader_utils.discover.assemble import with_live_rows
from torch_dataloader_utils.discover.file_scan import TextOptions
from torch_dataloader_utils.discover.saved_inventory import load_inventory, save_inventory
from torch_dataloader_utils.discover.scan import scan_files

__all__ = ["TextOptions", "load_inventory", "save_inventory", "scan_files", "with_live_rows"]
