"""Counting the rows that only reading can count: those a row filter keeps."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory
from torch_dataloader_utils.discover import with_live_rows
from torch_dataloader_utils.discover.parallel import watched
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.read.reader import Reader

Exchange = Callable[[Int64s], Int64s]
"""Adds up what all processes found: arrays of one shape, zero where another one looked."""


def alone(counts: Int64s) -> Int64s:
    """The exchange of a process that works on everything itself."""
    return counts


def count_live_rows(
    inventory: Inventory,
    reader: Reader,
    exchange: Exchange,
    *,
    threads: int,
    part: tuple[int, int],
    on_progress: Callable[[int, int], None] | None = None,
) -> Inventory:
    """The inventory with every row group counted; reads the filter's columns of the groups that need it, once.

    part: (index, count): this process counts every count-th of those groups, and `exchange` adds up what all
        processes counted (arrays of the same shape, zero where another one counts).
    on_progress: called here after each row group with (row groups done, row groups of this process).
    """
    unknown = np.flatnonzero(inventory.groups.live_rows == UNKNOWN)
    if len(unknown) == 0:
        return inventory
    index, count = part
    mine = unknown[index::count]
    counted = np.zeros(len(inventory.groups), dtype=np.int64)
    with ThreadPoolExecutor(threads, thread_name_prefix="tdu-count") as pool:
        counts = pool.map(lambda group: reader.count_rows(inventory.task(group)), mine.tolist())
        counted[mine] = list(watched(counts, len(mine), on_progress))
    found = np.full(len(inventory.groups), UNKNOWN, dtype=np.int64)
    found[unknown] = exchange(counted)[unknown]
    return with_live_rows(inventory, found)


def under_filter(inventory: Inventory, filters: Any) -> Inventory:
    """An inventory given by the user, for use with `filters`: its counts must be those of the same filter.

    An inventory scanned without a filter is usable with any; its rows are then to be counted.

    Raises:
        ConfigError: the inventory was scanned with another filter.
    """
    text = "" if filters is None else str(filters)
    if inventory.row_filter == text:
        return inventory
    if inventory.row_filter:
        raise ConfigError(
            f"The inventory was scanned with filters={inventory.row_filter}, this call has filters={text or None}. "
            "Scan with the same filter, or without one."
        )
    unknown = np.full(len(inventory.groups), UNKNOWN, dtype=np.int64)
    return replace(inventory, row_filter=text, groups=replace(inventory.groups, live_rows=unknown))
