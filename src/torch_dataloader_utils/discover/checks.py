"""What every scan of a file must satisfy before it is believed; the rest is verified on reading."""

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.discover.file_scan import FileScan

# More rows than a 32-bit count in one row group: no writer makes them, lying footers do.
_MOST_GROUP_ROWS = (1 << 31) - 1


def checked(path: str, scan: FileScan) -> FileScan:
    """The scan of a file; CorruptFileError if names of columns are no UTF-8 text, or as of `check_places`."""
    with decoding(path, "schema"):
        _ = scan.schema.names
    check_places(path, scan.size, scan.groups)
    return scan


def check_places(path: str, size: int, groups: Int64s) -> None:
    """Raises CorruptFileError for counts and places that cannot be, naming the file and the row group.

    groups: int64 [row groups, 4] as in `FileScan.groups`.

        5 rows in bytes 90 to 120 of a file of 100 bytes      CorruptFileError
    """
    # Numbers of Python: most files have one row group, and sums of huge ones do not wrap around.
    for ordinal, (rows, weight, start, length) in enumerate(groups.tolist()):
        if not UNKNOWN <= rows <= _MOST_GROUP_ROWS or min(weight, start, length) < 0 or start + length > size:
            raise corrupt(
                path,
                f"its metadata says that row group {ordinal} has {rows} rows in {length} bytes at {start}, of a file "
                f"of {size} bytes",
            )
