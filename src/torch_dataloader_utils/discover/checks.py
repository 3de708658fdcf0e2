"""What every scan of a file must satisfy before it is believed; the rest is verified on reading."""

import numpy as np

from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.discover.file_scan import FileScan

# More rows than a 32-bit count in one row group: no writer makes them, lying footers do.
_MOST_GROUP_ROWS = (1 << 31) - 1


def check_scan(path: str, scan: FileScan) -> None:
    """Raises CorruptFileError for counts and places that cannot be, and for column names that are no text.

    5 rows in bytes 90 to 120 of a file of 100 bytes      CorruptFileError
    """
    with decoding(path, "schema"):
        _ = scan.schema.names
    rows, weights, starts, lengths = scan.groups.T
    bad = (rows < UNKNOWN) | (rows > _MOST_GROUP_ROWS) | (weights < 0) | (starts < 0) | (lengths < 0)
    # As a difference: the sum of two huge numbers would wrap around.
    bad |= starts > scan.size - lengths
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        raise corrupt(
            path,
            f"its metadata says that row group {index} has {rows[index]} rows in {lengths[index]} bytes at "
            f"{starts[index]}, of a file of {scan.size} bytes",
        )
