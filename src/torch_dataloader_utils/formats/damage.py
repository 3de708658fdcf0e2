"""Tells damage from everything else that keeps bytes from being decoded: memory, unknown features, limits, storage.

pyarrow raises OSError and ArrowInvalid for all of them, so that only the text tells which. Texts are of pyarrow 26: its
messages for files that use what it lacks, and the strings of its libraries (Parquet, ORC, IPC, codecs).
"""

import errno
import re
from collections.abc import Callable

import pyarrow as pa

from torch_dataloader_utils.errors import LoaderError, StoreError, UnsupportedFeatureError

# No such thing, whatever else the text says: these quote rows or names of columns, or a codec's view of a damaged head.
_DAMAGE = re.compile(
    r"(?:CSV|JSON) parse error|In CSV column #|Failed to convert JSON|Column \d+ named .* expected length|"
    r"decompress\w* failed: (?:Unsupported frame parameter|Version not supported)|"
    r"failed: unknown compression method"  # zlib's: gzip has only one
)
_NO_MEMORY = re.compile(
    r"bad_alloc|out of ?memory|(?:not enough|insufficient) memory|alloc of size|failed to allocate|"
    r"allocation(?: error|[ _]fail)|memory (?:allocation )?error|resource temporarily unavailable",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"not (?:yet |currently )?(?:supported|implemented|built)|n't (?:yet )?supported|unsupported|only supports?\b|"
    r"unrecognized|unhandled|unknown (?:encoding|compression|codec|type)|no support for|cannot read pre-|"
    r"\bencrypted\b|\bdecrypt(?:ion|or)\b|must be annotated as required|precision out of range \[1, \d+\]: [1-9]",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"too much memory|too deeply nested|exceeded size limit|block too large|too many columns|cannot contain more than",
    re.IGNORECASE,
)


def error_unless_damage(
    error: BaseException, where: str, text: str, way_round: Callable[[], str]
) -> LoaderError | None:
    """Return the error to raise where the bytes are not damaged; None if they are.

    where: File and part, for the message. text: Text of the error, without secrets. way_round: Gives advice about a
    feature that is not supported.

        MemoryError, OSError("std::bad_alloc")                 UnsupportedFeatureError, "needs more memory"
        OSError("Unknown encoding type.")                      UnsupportedFeatureError, "uses what pyarrow cannot read"
        OSError("Frame requires too much memory for ...")      UnsupportedFeatureError, "is beyond a limit"
        OSError(EIO, ...)                                      StoreError
        OSError("Unexpected end of stream")                    None
    """
    said = str(error) if isinstance(error, pa.ArrowException | OSError) and not _DAMAGE.search(str(error)) else ""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM or (number is None and _NO_MEMORY.search(said)):
        return UnsupportedFeatureError(
            f"{where} needs more memory than there is ({text}). Read fewer columns (columns=), use fewer threads or "
            "processes, or write smaller row groups. If it asks for far too much, check the file: damage may do that."
        )
    if number is not None:
        # Arrow's own "IOError" has no errno: that one is about the bytes, not about the disk.
        return StoreError(f"{where} cannot be read ({text}). Check the disk or mount and its permissions.")
    if isinstance(error, NotImplementedError) or _UNSUPPORTED.search(said):
        return UnsupportedFeatureError(
            f"{where} uses what pyarrow {pa.__version__} cannot read ({text}). {way_round()}"
        )
    if isinstance(error, pa.ArrowCapacityError) or _LIMIT.search(said):
        return UnsupportedFeatureError(
            f"{where} is beyond a limit of pyarrow {pa.__version__} ({text}). Write it with smaller or flatter parts, "
            "or check the file."
        )
    return None
