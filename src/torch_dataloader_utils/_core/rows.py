"""Plan rows: the numbering of all live rows, row group after row group, and their projected bytes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import UNKNOWN, GroupTable, Int32s, Int64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSpace:
    """Where each row group lies in plan rows.

    group_start: int64 [groups + 1], group g holds plan rows [group_start[g], group_start[g + 1]).
    byte_start: int64 [groups + 1], the same for projected bytes.
    file: int32 [groups], the file of each group.
    exact: False when some group's live rows are unknown. Then a group counts its physical rows, or one row if not
        even those are known, and is never cut.
    """

    group_start: Int64s
    byte_start: Int64s
    file: Int32s
    exact: bool

    @classmethod
    def of(cls, groups: GroupTable) -> "RowSpace":
        """The numbering of these groups' rows."""
        exact = bool((groups.live_rows != UNKNOWN).all())
        rows = groups.live_rows
        if not exact:
            known = np.where(groups.physical_rows == UNKNOWN, 1, groups.physical_rows)
            rows = np.where(groups.live_rows == UNKNOWN, known, groups.live_rows)
        return cls(
            group_start=_running_total(rows),
            byte_start=_running_total(groups.projected_bytes),
            file=groups.file,
            exact=exact,
        )

    @property
    def num_rows(self) -> int:
        """How many plan rows there are."""
        return int(self.group_start[-1])

    def bytes_between(self, start: Int64s, stop: Int64s) -> Int64s:
        """Projected bytes of plan rows [start, stop), a group's bytes spread evenly over its rows."""
        return np.rint(self._bytes_before(stop) - self._bytes_before(start)).astype(np.int64)

    def _bytes_before(self, row: Int64s) -> npt.NDArray[np.float64]:
        group = self.group_of(row)
        begin, end = self.group_start[group], self.group_start[group + 1]
        share = (row - begin) / np.maximum(end - begin, 1)
        low, high = self.byte_start[group], self.byte_start[group + 1]
        before: npt.NDArray[np.float64] = low + share * (high - low)
        return before

    def group_of(self, row: Int64s) -> Int64s:
        """The group that holds each plan row; the end of all rows belongs to the last group."""
        last = max(len(self.group_start) - 2, 0)
        found = self.group_start.searchsorted(row, side="right") - 1
        return np.minimum(found, last).astype(np.int64)


def _running_total(values: Int64s) -> Int64s:
    total = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=total[1:])
    return total
