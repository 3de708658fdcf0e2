"""Plan rows, and units of work: spans of rows that can be cut anywhere, as arrays.

A *plan row* is the number of a live row in the whole inventory, row group after row group (`RowSpace`). A unit has one
of two kinds, and all code that assigns, balances or cuts rows treats both kinds alike:

    plain unit    window == -1   rows [start, stop) in plan-row numbers
    window unit   window == w    positions [start, stop) of window w's rows in their permuted order

A window is a list of pieces (plan-row ranges); the rows of its pieces are permuted together (`Windows`). The
permutation is a pure function of (seed, epoch, first plan row of the first piece), so finding a position takes
arithmetic and never a replay.

Plans without row counts have window units only; if rows are not shuffled, one unit for each row group (`permuted`
False). `start` then counts delivered rows and `stop` is not used: the unit ends where its rows end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import UNKNOWN, GroupTable, Int32s, Int64s

PLAIN = -1


def _empty() -> Int64s:
    return np.zeros(0, dtype=np.int64)


def ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the concatenation of range(starts[i], starts[i] + lengths[i])."""
    total = int(lengths.sum())
    if total == 0:
        return _empty()
    before = np.cumsum(lengths) - lengths
    offset: Int64s = np.repeat(starts - before, lengths)
    return offset + np.arange(total, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSpace:
    """Place of each row group in plan rows, and in projected bytes.

    group_start: int64 [groups + 1], group g holds plan rows [group_start[g], group_start[g + 1]).
    byte_start: int64 [groups + 1], the same for projected bytes.
    file: int32 [groups], the file of each group.
    exact: False when the live rows of some group are unknown. Such a group counts its physical rows, or one row if the
        physical rows are unknown too, and is never cut.
    """

    group_start: Int64s
    byte_start: Int64s
    file: Int32s
    exact: bool

    @classmethod
    def of(cls, groups: GroupTable) -> "RowSpace":
        """Return the numbering of the rows of these groups."""
        is_unknown = groups.live_rows == UNKNOWN
        substitute = np.where(groups.physical_rows == UNKNOWN, 1, groups.physical_rows)
        return cls(
            group_start=_running_total(np.where(is_unknown, substitute, groups.live_rows)),
            byte_start=_running_total(groups.projected_bytes),
            file=groups.file,
            exact=not is_unknown.any(),
        )

    @property
    def num_rows(self) -> int:
        """Number of plan rows."""
        return int(self.group_start[-1])

    def bytes_between(self, start: Int64s, stop: Int64s) -> Int64s:
        """Return the projected bytes of plan rows [start, stop), a group's bytes spread evenly over its rows."""
        return np.rint(self._bytes_before(stop) - self._bytes_before(start)).astype(np.int64)

    def _bytes_before(self, row: Int64s) -> npt.NDArray[np.float64]:
        group = self.group_of(row)
        begin, end = self.group_start[group], self.group_start[group + 1]
        fraction = (row - begin) / np.maximum(end - begin, 1)
        low, high = self.byte_start[group], self.byte_start[group + 1]
        before: npt.NDArray[np.float64] = low + fraction * (high - low)
        return before

    def group_of(self, row: Int64s) -> Int64s:
        """Return the group that holds each plan row; the end of all rows belongs to the last group."""
        last = max(len(self.group_start) - 2, 0)
        found = self.group_start.searchsorted(row, side="right") - 1
        return np.minimum(found, last).astype(np.int64)


def _running_total(values: Int64s) -> Int64s:
    total = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=total[1:])
    return total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Windows:
    """Windows as arrays: window w holds pieces [offsets[w], offsets[w + 1]), each rows [piece_start, piece_stop).

    permuted: Whether the rows of a window are delivered permuted, or in stored order.
    """

    piece_start: Int64s
    piece_stop: Int64s
    offsets: Int64s
    permuted: bool = True

    @classmethod
    def none(cls) -> "Windows":
        """Return an empty table of windows."""
        return cls(piece_start=_empty(), piece_stop=_empty(), offsets=np.zeros(1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def keys(self) -> Int64s:
        """Permutation key of each window: the first plan row of its first piece. Shape [windows]."""
        return self.piece_start[self.offsets[:-1]]

    def pieces(self, window: int) -> tuple[Int64s, Int64s]:
        """Return starts and stops of one window's pieces."""
        span = slice(int(self.offsets[window]), int(self.offsets[window + 1]))
        return self.piece_start[span], self.piece_stop[span]

    def take(self, indices: Int64s) -> "Windows":
        """Return the windows at `indices`, in that order."""
        lengths = self.offsets[indices + 1] - self.offsets[indices]
        pieces = ranges(self.offsets[indices], lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Windows(
            piece_start=self.piece_start[pieces],
            piece_stop=self.piece_stop[pieces],
            offsets=offsets,
            permuted=self.permuted,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """Ordered list of units: start, stop, window int64 of shape [units]; `window` points into `windows`."""

    start: Int64s
    stop: Int64s
    window: Int64s
    windows: Windows

    @classmethod
    def plain(cls, start: Int64s, stop: Int64s) -> "Units":
        """Return units that are plain row ranges."""
        return cls(start=start, stop=stop, window=np.full(len(start), PLAIN, dtype=np.int64), windows=Windows.none())

    @classmethod
    def none(cls) -> "Units":
        """Return an empty list of units."""
        return cls.plain(_empty(), _empty())

    @classmethod
    def concat(cls, parts: Sequence["Units"]) -> "Units":
        """Return the units of all parts, in order; windows shared by all parts stay shared."""
        parts = [part for part in parts if len(part)]
        if len(parts) <= 1:
            return parts[0] if parts else cls.none()
        windows, shifts = _merge_windows([part.windows for part in parts])
        window = [
            np.where(part.is_plain, PLAIN, part.window + shift) for part, shift in zip(parts, shifts, strict=True)
        ]
        return cls(
            start=np.concatenate([part.start for part in parts]),
            stop=np.concatenate([part.stop for part in parts]),
            window=np.concatenate(window),
            windows=windows,
        )

    def __len__(self) -> int:
        return len(self.start)

    @property
    def is_plain(self) -> npt.NDArray[np.bool_]:
        """Whether each unit is a plain unit. Shape [units]."""
        plain: npt.NDArray[np.bool_] = self.window == PLAIN
        return plain

    @property
    def rows(self) -> Int64s:
        """Number of rows of each unit."""
        return self.stop - self.start

    @property
    def num_rows(self) -> int:
        """Number of rows of all units."""
        return int(self.stop.sum() - self.start.sum())

    def take(self, index: Int64s | slice) -> "Units":
        """Return the units at `index`, in that order; windows stay shared."""
        return Units(start=self.start[index], stop=self.stop[index], window=self.window[index], windows=self.windows)

    def split_at(self, row: int) -> tuple["Units", "Units"]:
        """Return the first `row` rows, and the rest; a unit that is cut appears, cut, in both.

            units of 5 and 4 rows, row=7      (5, 2) and (2,)

        Rows beyond the last row are not an error: the rest is then empty.
        """
        ends = self.rows.cumsum()
        at = int(ends.searchsorted(row, side="right"))
        if at >= len(self):
            return self, self.take(slice(0, 0))
        inside = row - int(ends[at] - self.rows[at])
        if inside == 0:
            return self.take(slice(0, at)), self.take(slice(at, None))
        head, tail = self.take(slice(0, at + 1)), self.take(slice(at, None))
        cut = int(self.start[at]) + inside
        return (
            Units(start=head.start, stop=_with_entry(head.stop, -1, cut), window=head.window, windows=self.windows),
            Units(start=_with_entry(tail.start, 0, cut), stop=tail.stop, window=tail.window, windows=self.windows),
        )

    def spans(self, begin: Int64s, stop: Int64s) -> "Units":
        """Return the rows numbered [begin[i], stop[i]) in the order of the list, one span after the other.

        units of 5 and 4 rows, begin=[0, 7], stop=[6, 9]      (5, 1) and (2,)
        """
        ends = self.rows.cumsum()
        first, last = ends.searchsorted(begin, side="right"), ends.searchsorted(stop, side="left")
        counts = np.where(stop > begin, last + 1 - first, 0)
        span, unit = np.repeat(np.arange(len(begin)), counts), ranges(first, counts)
        shift = self.stop[unit] - ends[unit]
        return Units(
            start=np.maximum(self.start[unit], begin[span] + shift),
            stop=np.minimum(self.stop[unit], stop[span] + shift),
            window=self.window[unit],
            windows=self.windows,
        )

    def compact(self) -> "Units":
        """Return the same units with only the windows that they use, to be sent to a worker."""
        used = np.unique(self.window[~self.is_plain])
        window = np.where(self.is_plain, PLAIN, np.searchsorted(used, self.window))
        return Units(start=self.start, stop=self.stop, window=window, windows=self.windows.take(used))


def _with_entry(values: Int64s, index: int, value: int) -> Int64s:
    changed = values.copy()
    changed[index] = value
    return changed


def _merge_windows(tables: Sequence[Windows]) -> tuple[Windows, list[int]]:
    """Return one table for all, and the shift of each table's window numbers."""
    distinct = list({id(table): table for table in tables if len(table)}.values())
    if not distinct:
        return Windows.none(), [0] * len(tables)
    before = dict(zip([id(table) for table in distinct], np.cumsum([0, *map(len, distinct)]).tolist(), strict=False))
    piece_base = np.cumsum([0, *(len(table.piece_start) for table in distinct)])
    offsets = [table.offsets[:-1] + base for table, base in zip(distinct, piece_base[:-1], strict=True)]
    merged = Windows(
        piece_start=np.concatenate([table.piece_start for table in distinct]),
        piece_stop=np.concatenate([table.piece_stop for table in distinct]),
        offsets=np.concatenate([*offsets, piece_base[-1:]]).astype(np.int64),
        permuted=distinct[0].permuted,
    )
    return merged, [before.get(id(table), 0) for table in tables]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupSlices:
    """One entry for each (unit, row group) that a lane reads, in reading order; all int64 of shape [slices].

    unit: Index of the unit. group: Index of the row group. start, stop: Rows inside the row group.
    """

    unit: Int64s
    group: Int64s
    start: Int64s
    stop: Int64s

    def __len__(self) -> int:
        return len(self.unit)


def group_slices(units: Units, group_start: Int64s, group_stop: Int64s) -> GroupSlices:
    """Return the row groups that `units` read.

    group_start, group_stop: Plan rows of the present row groups, ascending; they must hold every row of the units.
    Row groups without rows are left out. A window unit reads all its pieces, even if it is only a part of its window.
    """
    unit, start, stop = _pieces(units)
    first = np.searchsorted(group_stop, start, side="right")
    last = np.searchsorted(group_start, stop, side="left")
    counts = last - first
    piece = np.repeat(np.arange(len(unit)), counts)
    group = ranges(first, counts)
    filled = group_stop[group] > group_start[group]
    piece, group = piece[filled], group[filled]
    return GroupSlices(
        unit=unit[piece],
        group=group,
        start=np.maximum(start[piece], group_start[group]) - group_start[group],
        stop=np.minimum(stop[piece], group_stop[group]) - group_start[group],
    )


def _pieces(units: Units) -> tuple[Int64s, Int64s, Int64s]:
    """Return (unit, first plan row, end) of every piece, in reading order."""
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
