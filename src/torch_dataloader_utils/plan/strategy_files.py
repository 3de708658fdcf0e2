"""The files of an inventory as split strategies see them."""

import numpy as np

from torch_dataloader_utils._core.iceberg import IcebergFile
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.splits import DataFileInfo, IcebergDataFileInfo, RowGroups


def describe_files(inventory: Inventory) -> list[DataFileInfo]:
    """One entry per file: with row groups and, for an Iceberg table, partition values."""
    groups, num_files = inventory.groups, inventory.num_files
    bounds = np.searchsorted(groups.file, np.arange(num_files + 1), side="left").tolist()
    files = []
    for file, path in enumerate(inventory.files.paths):
        mine = slice(bounds[file], bounds[file + 1])
        rows = groups.live_rows[mine]
        known = bool((rows >= 0).all())
        row_groups = RowGroups(rows=rows, bytes=groups.projected_bytes[mine]) if known else None
        count = int(rows.sum()) if known else None
        size = int(inventory.files.sizes[file])
        info = DataFileInfo(path=path, file_size=size, record_count=count, row_groups=row_groups)
        extra = inventory.files.extras[file] if inventory.files.extras else None
        files.append(_of_table(info, extra) if isinstance(extra, IcebergFile) else info)
    return files


def _of_table(info: DataFileInfo, extra: IcebergFile) -> IcebergDataFileInfo:
    return IcebergDataFileInfo(
        path=info.path,
        file_size=info.file_size,
        record_count=info.record_count,
        row_groups=info.row_groups,
        partition=dict(extra.partition),
        snapshot_id=extra.table.snapshot_id,
    )
