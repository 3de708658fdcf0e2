"""From the scans of single files to one table of row groups."""

from collections.abc import Sequence

import numpy as np

from torch_dataloader_utils._core.inventory import UNKNOWN, GroupTable, Int64s
from torch_dataloader_utils.discover.file_scan import Verdict


def assemble_groups(files: Sequence[int], groups: Sequence[Int64s], verdicts: Sequence[Int64s]) -> GroupTable:
    """The row groups of all scanned files, without those that surely hold no live row.

    files: index into the file table of each scan, ascending. groups: `FileScan.groups` of each. verdicts: one
    `Verdict` a row group, IN where there is no filter.

    A group that is left out keeps its ordinal and its rows' place: the next group starts where it starts in the
    file. Nothing reads it, so nothing plans it.

        rows (3, 0, 2) of one file      ordinals (0, 2), first rows (0, 3)
    """
    counts = np.array([len(each) for each in groups], dtype=np.int64)
    rows, weights, offsets, lengths = np.concatenate([np.zeros((0, 4), dtype=np.int64), *groups]).T.copy()
    verdict = np.concatenate([np.zeros(0, dtype=np.int64), *verdicts])
    starts = np.cumsum(counts) - counts  # of each file's groups
    ordinal = np.arange(len(rows), dtype=np.int64) - np.repeat(starts, counts)
    live = np.where(verdict == Verdict.IN, rows, UNKNOWN)
    live[(verdict == Verdict.OUT) | (rows == 0)] = 0
    table = GroupTable(
        file=np.repeat(np.array(files, dtype=np.int32), counts),
        ordinal=ordinal.astype(np.int32),
        first_row=_first_rows(rows, starts, counts),
        physical_rows=rows,
        live_rows=live,
        # A projection of partition columns alone has no bytes, but its rows still have to be dealt out evenly.
        projected_bytes=np.where(weights > 0, weights, np.maximum(rows, 0)),
        byte_offset=offsets,
        byte_length=lengths,
    )
    return table.take(np.flatnonzero(live != 0))


def _first_rows(rows: Int64s, starts: Int64s, counts: Int64s) -> Int64s:
    """Rows of the file before each group; UNKNOWN after a group that was not counted."""
    unknown = rows == UNKNOWN
    before = np.cumsum(np.where(unknown, 0, rows)) - np.where(unknown, 0, rows)
    unknown_before = np.cumsum(unknown) - unknown
    first = np.repeat(starts, counts)
    return np.where(unknown_before > unknown_before[first], UNKNOWN, before - before[first])
