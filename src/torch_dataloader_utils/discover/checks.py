"""What every scan of a file must satisfy before it is believed; the rest is verified on reading."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._core.inventory import UNKNOWN, Int32s, Int64s
from torch_dataloader_utils.discover.faults import corrupt, decoding

# More rows than a 32-bit count in one row group: no writer makes them, lying footers do.
_MOST_GROUP_ROWS = (1 << 31) - 1


def check_names(path: str, schema: pa.Schema) -> None:
    """Raises CorruptFileError if a column name is no UTF-8 text."""
    with decoding(path, "schema"):
        _ = schema.names


def check_places(paths: Sequence[str], sizes: Int64s, file: Int32s, groups: Int64s) -> None:
    """Raises CorruptFileError for counts and places that cannot be, naming the file and the row group.

    paths and sizes: of each file. file: index of the file that each row group lies in. groups: int64 [row groups,
    4] as in `FileScan.groups`.

        5 rows in bytes 90 to 120 of a file of 100 bytes      CorruptFileError
    """
    rows, weights, starts, lengths = groups.T
    bad = (rows < UNKNOWN) | (rows > _MOST_GROUP_ROWS) | (weights < 0) | (starts < 0) | (lengths < 0)
    # As a difference: the sum of two huge numbers would wrap around.
    bad |= starts > sizes[file] - lengths
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        ordinal = index - int(np.searchsorted(file, file[index]))
        raise corrupt(
            paths[int(file[index])],
            f"its metadata says that row group {ordinal} has {rows[index]} rows in {lengths[index]} bytes at "
            f"{starts[index]}, of a file of {sizes[file[index]]} bytes",
        )
