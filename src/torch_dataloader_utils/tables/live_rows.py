"""Rows of a row group that are deleted by position, and the stored rows that hold the wanted live rows.

Tables give the deletes of a whole file. Each row group takes its part, so that files with deletes are still read row
group by row group. Deletes by value are in `iceberg/equality_deletes`.
"""

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.row_group_task import GroupRows, RowGroupTask
from torch_dataloader_utils._core.table_file import TableFile
from torch_dataloader_utils.errors import InternalError


def group_deletes(task: RowGroupTask) -> Int64s | None:
    """Return the deleted rows of this row group, counted from its first row, ascending; None without deletes.

    positions=[1, 70, 71], rows 64 to 127      [6, 7]

    Deletes by value are not included. They need columns of the data; see `iceberg/equality_deletes`.
    """
    match task.extra:
        case None:
            return None
        case TableFile(positions=positions):
            if len(positions) and (task.first_row < 0 or task.physical_rows < 0):
                raise InternalError(f"{task.where} has deletes but no known first row or length; please report this.")
            span = np.searchsorted(positions, [task.first_row, task.first_row + task.physical_rows])
            return positions[span[0] : span[1]] - task.first_row if span[0] < span[1] else None
        case extra:
            raise InternalError(
                f"{task.where} carries {type(extra).__name__}, which no reader knows; please report this."
            )


def has_unplaced_deletes(task: RowGroupTask) -> bool:
    """Return whether equality deletes apply. Their rows are known only once all rows are read."""
    return isinstance(task.extra, TableFile) and bool(task.extra.equality_deletes)


def rows_to_decode(live_rows: int, deleted: Int64s | None) -> int:
    """Return the number of physical rows, from the first row on, that contain `live_rows` live rows.

    deleted=[1, 2]      1 live row: 1      2 live rows: 4, as rows 0 and 3 are live

    The result may be beyond the end of a row group with fewer live rows.
    """
    if deleted is None:
        return live_rows
    # Before the i-th deleted row lie deleted[i] - i live rows.
    return live_rows + int(np.searchsorted(deleted - np.arange(len(deleted)), live_rows, side="left"))


def stored_range(rows: GroupRows, deleted: Int64s | None) -> GroupRows:
    """Return the stored rows that contain these live rows, and no other live rows.

    deleted=[1, 2], live rows [1, 3)      stored rows [1, 5)
    """
    if deleted is None:
        return rows
    stop = None if rows.stop is None else rows_to_decode(rows.stop, deleted)
    return GroupRows(rows_to_decode(rows.start, deleted), stop)


def live_mask(first_row: int, num_rows: int, deleted: Int64s) -> npt.NDArray[np.bool_]:
    """Return a mask of `num_rows` rows from the first row on: True for each row that is not deleted."""
    mask = np.ones(num_rows, dtype=np.bool_)
    begin, end = np.searchsorted(deleted, [first_row, first_row + num_rows])
    mask[deleted[begin:end] - first_row] = False
    return mask
