"""Turns the errors of decoders into errors of ours, with the file's name, and checks what scans found."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import CorruptFileError, LoaderError
from torch_dataloader_utils.formats.damage import error_unless_damage
from torch_dataloader_utils.formats.file_scan import FileScan

# Seen over 501 foreign files: OSError, ArrowInvalid, UnicodeDecodeError (a ValueError), ArrowNotImplementedError.
_DECODING_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    OverflowError,
    IndexError,
    MemoryError,
    NotImplementedError,
    struct.error,
)
_WAY_ROUND = "Write the file again without it, or leave the file out."


@contextmanager
def decoding(path: str, what: str) -> Iterator[None]:
    """Turn errors of decoding `what` (a footer, a stripe list) into errors of ours with the path.

    See `error_unless_damage` for the errors that are not a CorruptFileError.
    """
    try:
        yield
    except LoaderError:
        raise
    except _DECODING_ERRORS as error:
        text = f"{type(error).__name__}: {error}".rstrip(". \n")
        other = error_unless_damage(error, f"{redact(path)}: the {what}", text, lambda: _WAY_ROUND)
        raise other or corrupt(path, f"the {what} does not decode ({text})") from error


def corrupt(path: str, what: str) -> CorruptFileError:
    """The error for a file whose bytes are wrong."""
    return CorruptFileError(
        f"{redact(path)}: {what}. The file is damaged, incomplete or of another format; write it again or leave it out."
    )


def empty(path: str) -> CorruptFileError:
    """The error for a data file of no bytes."""
    return CorruptFileError(
        f"{redact(path)} is empty (0 bytes), as a write or upload leaves it that did not get far. Write it again or "
        "remove it."
    )


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
