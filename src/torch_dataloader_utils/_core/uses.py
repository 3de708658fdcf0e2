"""Units to row groups: which rows of which row group each unit of a lane needs, in reading order."""

from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.units import Units, ranges


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupUses:
    """One entry for each (unit, row group) that a lane reads, in reading order; all int64 of shape [uses].

    unit: index of the unit. group: index of the row group. start, stop: rows inside the row group.
    """

    unit: Int64s
    group: Int64s
    start: Int64s
    stop: Int64s

    def __len__(self) -> int:
        return len(self.unit)


def group_uses(units: Units, group_start: Int64s, group_stop: Int64s) -> GroupUses:
    """The row groups that `units` read.

    group_start, group_stop: plan rows of the row groups at hand, ascending; they must hold every row of the units.
    Row groups without rows are never used. A window unit uses all its pieces, whatever span of it is asked for.
    """
    unit, start, stop = _pieces(units)
    first = np.searchsorted(group_stop, start, side="right")
    last = np.searchsorted(group_start, stop, side="left")
    counts = last - first
    piece = np.repeat(np.arange(len(unit)), counts)
    group = ranges(first, counts)
    filled = group_stop[group] > group_start[group]
    piece, group = piece[filled], group[filled]
    return GroupUses(
        unit=unit[piece],
        group=group,
        start=np.maximum(start[piece], group_start[group]) - group_start[group],
        stop=np.minimum(stop[piece], group_stop[group]) - group_start[group],
    )


def _pieces(units: Units) -> tuple[Int64s, Int64s, Int64s]:
    """(unit, first plan row, end) of every piece, in reading order."""
    is_plain = units.is_plain
    window = np.where(is_plain, 0, units.window)
    offsets = units.windows.offsets
    if len(units.windows) == 0:
        return np.arange(len(units)), units.start, units.stop
    counts = np.where(is_plain, 1, offsets[window + 1] - offsets[window])
    unit = np.repeat(np.arange(len(units)), counts)
    piece = ranges(np.where(is_plain, 0, offsets[window]), counts)
    start = np.where(is_plain[unit], units.start[unit], units.windows.piece_start[piece])
    stop = np.where(is_plain[unit], units.stop[unit], units.windows.piece_stop[piece])
    return unit, start, stop
