"""Checks of every scan of a file: possible row counts and places. The rest is checked on reading."""

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.discover.file_scan import FileScan

# No writer makes row groups of more rows than a 32-bit count holds; wrong footers claim them.
_MOST_GROUP_ROWS = (1 << 31) - 1


def checked(path: str, scan: FileScan) -> FileScan:
    """The scan; raises CorruptFileError for column names that are not UTF-8, and as `check_places` does."""
    with decoding(path, "schema"):
        _ = scan.schema.names
    check_places(path, scan.size, scan.groups)
    return scan


def check_places(path: str, size: int, groups: Int64s) -> None:
    """Raises CorruptFileError, with file and row group, for impossible row counts and places.

    groups: int64 [row groups, 4] as in `FileScan.groups`.

        5 rows in bytes 90 to 120 of a file of 100 bytes      CorruptFileError
    """
    # As Python numbers, whose sums do not overflow; most files have one row group.
    for ordinal, (rows, weight, start, length) in enumerate(groups.tolist()):
        if not UNKNOWN <= rows <= _MOST_GROUP_ROWS or min(weight, start, length) < 0 or start + length > size:
            raise corrupt(
                path,
                f"its metadata says that row group {ordinal} has {rows} rows in {length} bytes at {start}, of a file "
                f"of {size} bytes",
            )
