"""Turns the errors of decoders into errors of ours, with the file's name."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import CorruptFileError, LoaderError, UnsupportedFeatureError

# Seen over 501 foreign files: OSError, ArrowInvalid, UnicodeDecodeError (a ValueError), ArrowNotImplementedError.
_DECODING_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    OverflowError,
    IndexError,
    MemoryError,
    struct.error,
)


@contextmanager
def decoding(path: str, what: str) -> Iterator[None]:
    """Turns errors of decoding `what` (a footer, a stripe list) into a DataError with the path."""
    try:
        yield
    except LoaderError:
        raise
    except NotImplementedError as error:
        raise UnsupportedFeatureError(
            f"{redact(path)}: the {what} uses what Arrow cannot read ({error}). Write the file again without it, or "
            "leave it out."
        ) from error
    except _DECODING_ERRORS as error:
        raise corrupt(path, f"the {what} does not decode ({type(error).__name__}: {error})") from error


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
