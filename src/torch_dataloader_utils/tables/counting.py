"""Counts the rows that a row filter keeps, where only reading can tell."""

from dataclasses import replace
from typing import Any

import numpy as np

from torch_dataloader_utils._arrow.row_filter import filter_text
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import UNKNOWN, Inventory
from torch_dataloader_utils._runtime.parallel import OnProgress, map_watched
from torch_dataloader_utils._runtime.threads import available_cpus
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.discover import with_live_rows
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.read.projection import ReadSpec
from torch_dataloader_utils.read.reader import Reader, make_reader


def count_live_rows(
    inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None
) -> Inventory:
    """The inventory with every row group counted; reads the filter's columns of the groups that need it, once.

    share: which of those groups this process counts.
    on_progress: called in the caller's thread after each row group with (row groups done, row groups of this process).

    Raises:
        DataError, StoreError: see Reader.read and Share.check_alike; all processes of the share raise it.
    """
    unknown = np.flatnonzero(inventory.groups.live_rows == UNKNOWN)
    if len(unknown) == 0:
        return inventory
    share.check_alike(inventory)
    mine = unknown[share.of(len(unknown))]
    counted = np.zeros(len(inventory.groups), dtype=np.int64)
    counted[mine] = share.together(
        lambda: map_watched(
            lambda group: reader.count_rows(inventory.task(group)),
            mine.tolist(),
            threads=share.threads,
            name="tdu-count",
            on_progress=on_progress,
        )
    )
    found = np.full(len(inventory.groups), UNKNOWN, dtype=np.int64)
    found[unknown] = share.exchange(counted)[unknown]
    return with_live_rows(inventory, found)


def count_alone(
    inventory: Inventory,
    filters: Any,
    access: StoreAccess,
    on_progress: OnProgress | None = None,
) -> Inventory:
    """`count_live_rows` by this process alone; filters: those that the inventory was scanned with.

    Raises:
        DataError, StoreError: see Reader.read.
    """
    spec = ReadSpec(
        schema=inventory.schema,
        columns=(),
        row_filter=filters,
        partition_columns=tuple(column.name for column in inventory.files.partitions),
        access=access,
    )
    return count_live_rows(inventory, make_reader(spec), Share(threads=available_cpus()), on_progress)


def under_filter(inventory: Inventory, filters: Any) -> Inventory:
    """The inventory for use with `filters`; with row counts only if it was scanned with the same filter.

    An inventory that was scanned without a filter suits every filter; its rows then have to be counted again.

    Raises:
        ConfigError: the inventory was scanned with another filter.
    """
    text = filter_text(filters)
    if inventory.row_filter == text:
        return inventory
    if inventory.row_filter:
        raise ConfigError(
            f"The inventory was scanned with filters={inventory.row_filter}, this call has filters={text or None}. "
            "Scan with the same filter, or without one."
        )
    unknown = np.full(len(inventory.groups), UNKNOWN, dtype=np.int64)
    return replace(inventory, row_filter=text, groups=replace(inventory.groups, live_rows=unknown))
