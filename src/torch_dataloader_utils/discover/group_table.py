"""Table of row groups: joined from the scans of single files, and updated with counts of live rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import (
    UNKNOWN,
    FileTable,
    GroupTable,
    Int32s,
    Int64s,
    Inventory,
    PartitionColumn,
    StringColumn,
)
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.formats.file_scan import FileScan, Verdict


def assemble_groups(file: Int32s, groups: Int64s, verdict: Int64s) -> GroupTable:
    """Return the table of row groups, without row groups that surely hold no live row.

    file: Index into the file table of each row group, ascending; all groups of a file are given, in file order.
    groups: int64 [row groups, 4] as in `FileScan.groups`. verdict: Verdict of each row group; IN without a filter.

    The remaining groups keep the ordinals and first rows that they have in the file.

        rows (3, 0, 2) of one file      ordinals (0, 2), first rows (0, 3)
    """
    rows, weights, offsets, lengths = groups.T.copy()
    first = np.searchsorted(file, file)  # index of the first group of the same file
    live = np.where(verdict == Verdict.IN, rows, UNKNOWN)
    live[(verdict == Verdict.OUT) | (rows == 0)] = 0
    table = GroupTable(
        file=file,
        ordinal=(np.arange(len(rows)) - first).astype(np.int32),
        first_row=_first_rows(rows, first),
        physical_rows=rows,
        live_rows=live,
        # If only partition columns are projected, no bytes are read, and rows serve as weights.
        projected_bytes=np.where(weights > 0, weights, np.maximum(rows, 0)),
        byte_offset=offsets,
        byte_length=lengths,
    )
    return table.take(np.flatnonzero(live != 0))


def join_scans(
    paths: Sequence[str],
    scans: Sequence[FileScan],
    formats: Sequence[int],
    unjudged: Int64s,
    partitions: tuple[PartitionColumn, ...] = (),
    extras: tuple[Any, ...] = (),
) -> tuple[FileTable, GroupTable]:
    """Return the data files of a table, in the order of their paths, and their row groups.

    unjudged: One Verdict for each file, for its row groups if the scan did not judge them.
    """
    files = FileTable(
        paths=StringColumn.of(paths),
        sizes=np.array([scan.size for scan in scans], dtype=np.int64),
        identities=StringColumn.of(scan.identity for scan in scans),
        formats=np.array(formats, dtype=np.uint8),
        partitions=partitions,
        extras=extras,
    )
    counts = [len(scan.groups) for scan in scans]
    verdicts = [
        np.full(len(scan.groups), verdict, dtype=np.int64) if scan.verdict is None else scan.verdict
        for scan, verdict in zip(scans, unjudged.tolist(), strict=True)
    ]
    groups = assemble_groups(
        np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        np.concatenate([np.zeros((0, 4), dtype=np.int64), *(scan.groups for scan in scans)]),
        np.concatenate([np.zeros(0, dtype=np.int64), *verdicts]),
    )
    return files, groups


def _first_rows(rows: Int64s, first: Int64s) -> Int64s:
    """Return the rows of the file before each group; UNKNOWN after a group that was not counted."""
    unknown = rows == UNKNOWN
    before = np.cumsum(np.where(unknown, 0, rows)) - np.where(unknown, 0, rows)
    unknown_before = np.cumsum(unknown) - unknown
    return np.where(unknown_before > unknown_before[first], UNKNOWN, before - before[first])


def with_live_rows(inventory: Inventory, counts: Int64s) -> Inventory:
    """Return the inventory with other live rows, int64 [num_groups]; UNKNOWN keeps the present count.

    Groups without live rows are left out, as in a scan. `row_filter` stays, since the counts are for that filter.

        live_rows (5, UNKNOWN, UNKNOWN), counts (UNKNOWN, 0, 3)      live_rows (5, 3), two groups

    Raises:
        ConfigError: another number of counts than groups, or more live rows than physical rows.
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
