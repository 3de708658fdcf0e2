"""Deals units in turn: share k of n gets units k, k + n, k + 2n, ..."""

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.units import Units


def slice_units(units: Units, share: int, num_shares: int) -> Units:
    """The units of one share, `units[share::num_shares]`."""
    return units.take(slice(share, None, num_shares))


def rows_per_share(units: Units, num_shares: int) -> Int64s:
    """Rows of every share of `slice_units`, int64 [num_shares], without building the shares."""
    rows = np.zeros(num_shares, dtype=np.int64)
    np.add.at(rows, np.arange(len(units)) % num_shares, units.rows)
    return rows
