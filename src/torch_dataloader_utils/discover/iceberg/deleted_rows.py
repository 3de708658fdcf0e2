"""Applies deletes by position to the row counts of an inventory."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory
from torch_dataloader_utils.discover.faults import corrupt
from torch_dataloader_utils.discover.file_scan import FileScan
from torch_dataloader_utils.discover.iceberg.data_files import DataFile
from torch_dataloader_utils.discover.live_rows import with_live_rows


def check_positions(data: Sequence[DataFile], scans: Sequence[FileScan], positions: Sequence[Int64s]) -> None:
    """Raises CorruptFileError for a deleted row that its file does not have.

    positions: of each file's deleted rows, ascending.
    """
    for file, scan, deleted in zip(data, scans, positions, strict=True):
        rows = int(scan.groups[:, 0].sum())
        if len(deleted) and not (deleted[0] >= 0 and deleted[-1] < rows):
            wrong = int(deleted[0] if deleted[0] < 0 else deleted[-1])
            raise corrupt(file.path, f"row {wrong} is deleted, and the file has {rows} rows")


def without_deleted_rows(inventory: Inventory) -> Inventory:
    """The inventory with deleted rows subtracted from live rows; UNKNOWN where equality deletes apply."""
    groups, extras = inventory.groups, inventory.files.extras
    counts = np.full(len(groups), UNKNOWN, dtype=np.int64)
    starts = np.searchsorted(groups.file, np.arange(inventory.num_files + 1))
    live = groups.live_rows.copy()
    for file, extra in enumerate(extras):
        span = slice(int(starts[file]), int(starts[file + 1]))
        if extra.equality_deletes:
            live[span] = UNKNOWN
        if len(extra.positions):
            first, rows = groups.first_row[span], groups.physical_rows[span]
            deleted = np.searchsorted(extra.positions, first + rows) - np.searchsorted(extra.positions, first)
            # A group whose rows are all deleted is known, whatever else applies.
            known = (live[span] != UNKNOWN) | (deleted == rows)
            counts[span] = np.where(known, rows - deleted, UNKNOWN)
    return with_live_rows(replace(inventory, groups=replace(groups, live_rows=live)), counts)
