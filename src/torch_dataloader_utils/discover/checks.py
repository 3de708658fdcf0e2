"""What every scan of a file must satisfy before it is believed; the rest is verified on reading."""

import numpy as np

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.discover.file_scan import FileScan

# More rows than a 32-bit count in one row group: no writer makes them, lying footers do.
_MOST_GROUP_ROWS = (1 << 31) - 1


def checked(path: str, scan: FileScan) -> FileScan:
    """The scan of a file; CorruptFileError if it says what cannot be.

    names: of its columns, which must be UTF-8 text. groups: see `check_places`.
    """
    with decoding(path, "schema"):
        _ = scan.schema.names
    check_places(path, scan.size, scan.groups)
    return scan


def check_places(path: str, size: int, groups: Int64s) -> None:
    """Raises CorruptFileError for counts and places that cannot be, naming the file and the row group.

    groups: int64 [row groups, 4] as in `FileScan.groups`.

        5 rows in bytes 90 to 120 of a file of 100 bytes      CorruptFileError
    """
    rows, weights, starts, lengths = groups.T
    bad = (rows < UNKNOWN) | (rows > _MOST_GROUP_ROWS) | (weights < 0) | (starts < 0) | (lengths < 0)
    # As a difference: the sum of two huge numbers would wrap around.
    bad |= starts > size - lengths
    if bad.any():
        ordinal = int(np.flatnonzero(bad)[0])
        raise corrupt(
            path,
            f"its metadata says that row group {ordinal} has {rows[ordinal]} rows in {lengths[ordinal]} bytes at "
            f"{starts[ordinal]}, of a file of {size} bytes",
        )
