"""Puts counted live rows into an inventory."""

from dataclasses import replace

import numpy as np

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import ConfigError


def with_live_rows(inventory: Inventory, counts: Int64s) -> Inventory:
    """The inventory with these live rows, int64 [num_groups]; UNKNOWN keeps the count that it has.

    Groups without live rows are left out, as in a scan. `row_filter` stays, since the counts are for that filter.

        live_rows (5, UNKNOWN, UNKNOWN), counts (UNKNOWN, 0, 3)      live_rows (5, 3), two groups

    Raises:
        ConfigError: another number of counts than groups, or more live rows than physical ones.
    """
    groups = inventory.groups
    counts = np.asarray(counts, dtype=np.int64)
    if counts.shape != groups.live_rows.shape:
        raise ConfigError(f"{len(counts)} live row counts for {len(groups)} row groups; give one for each.")
    live_rows = np.where(counts == UNKNOWN, groups.live_rows, counts)
    impossible = (live_rows < UNKNOWN) | ((groups.physical_rows != UNKNOWN) & (live_rows > groups.physical_rows))
    if impossible.any():
        index = int(np.flatnonzero(impossible)[0])
        raise ConfigError(
            f"{live_rows[index]} live rows of {groups.physical_rows[index]} in row group {groups.ordinal[index]} of "
            f"{redact(inventory.files.paths[int(groups.file[index])])}; count them with the filter of this inventory."
        )
    counted = replace(groups, live_rows=live_rows)
    return replace(inventory, groups=counted.take(np.flatnonzero(live_rows != 0)))
