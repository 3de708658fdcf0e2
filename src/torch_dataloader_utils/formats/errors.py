"""Errors of decoders and of files, as errors of this package that name the file.

pyarrow raises OSError and ArrowInvalid for damage, missing memory, unknown features, limits and storage alike. Only the
text of the error tells them apart. The texts here are of pyarrow 26: its own messages, and messages of its libraries
(Parquet, ORC, IPC, codecs).
"""

import errno
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import (
    CorruptFileError,
    FileChangedError,
    LoaderError,
    NoDataError,
    NullValueError,
    SchemaError,
    StoreError,
    UnsupportedFeatureError,
)

FOREIGN = (pa.ArrowException, OSError, UnicodeError, MemoryError, OverflowError)
"""Every error that Arrow's readers raise on foreign files (501 were probed). A TypeError or KeyError is our own bug."""

# Metadata is decoded by code of this package too.
_OF_METADATA = (*FOREIGN, ValueError, IndexError, NotImplementedError, struct.error)

# Damage, whatever else the text says: it quotes rows, names of columns, or a codec's view of a damaged head.
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

# Texts of pyarrow's CSV and JSON readers for a value that is not of the column's type.
_MISFITS = ("In CSV column #", "Failed to convert JSON", "is not a valid decimal", "changed from")

# Text of pyarrow's CSV reader for bytes in a column of text.
_NOT_UTF8 = "CSV conversion error to string: invalid UTF8 data"

# Text of pyarrow's ORC reader, from 25 on, for times that nanoseconds do not hold.
_FAR_TIME = "is out of range for nanosecond resolution"

# Text of pyarrow's JSON reader for a line that is not an object.
_ARRAY = "Column() changed from object to array"
# Texts of pyarrow for deltas that are wider than their numbers. Pages that were cut can give the same texts.
_WIDE_DELTAS = ("InitBlock EOF", "InitHeader EOF")
# Text of pyarrow for a list that is not as long as all lists of its type, and for a list that is not there.
_NO_LIST = "Expected all lists to be of size="


def error_unless_damage(
    error: BaseException, where: str, text: str, way_round: Callable[[], str]
) -> LoaderError | None:
    """Return the error to raise if the bytes are not damaged; None if they are damaged.

    where: File and part, for the message. text: Text of the error, without secrets. way_round: Returns advice about a
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
        # Arrow's own "IOError" has no errno. It is about the bytes, not about the disk.
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


@contextmanager
def decoding(path: str, what: str) -> Iterator[None]:
    """Turn errors of decoding metadata into errors of this package with the path.

    what: Name of the part, for the message: a footer, a stripe list.

    Raises:
        CorruptFileError: the bytes are damaged. Other errors: see `error_unless_damage`.
    """
    try:
        yield
    except LoaderError:
        raise
    except _OF_METADATA as error:
        text = f"{type(error).__name__}: {error}".rstrip(". \n")
        way_round = "Write the file again without it, or leave the file out."
        other = error_unless_damage(error, f"{redact(path)}: the {what}", text, lambda: way_round)
        raise other or corrupt(path, f"the {what} does not decode ({text})") from error


@contextmanager
def foreign_errors(
    task: RowGroupTask, file_is_planned: Callable[[], bool], refused_columns: Callable[[], Sequence[str]] = tuple
) -> Iterator[None]:
    """Turn errors of decoding one row group into errors of this package, with the cause chained.

    file_is_planned: Looks the file up again. If the file was replaced, bytes that do not decode and values that do not
    fit become a FileChangedError, not a CorruptFileError or SchemaError. refused_columns: Finds the columns that use a
    feature that is not supported, for the message.
    """
    try:
        yield
    except NoDataError as error:
        raise _gone(task) from error
    except (SchemaError, NullValueError) as error:
        if not file_is_planned():
            raise changed(task) from error
        raise
    except FileChangedError as error:
        if task.table and isinstance(error.__cause__, FileNotFoundError):
            raise _gone(task) from error
        raise
    except LoaderError:
        raise
    except FOREIGN as error:
        if isinstance(error, FileNotFoundError):
            raise _gone(task) from error
        if not file_is_planned():
            raise changed(task) from error
        raise _translated(error, task, refused_columns) from error


def _translated(error: BaseException, task: RowGroupTask, refused_columns: Callable[[], Sequence[str]]) -> LoaderError:
    text = f"{type(error).__name__}: {error}".replace(task.path, redact(task.path)).rstrip(". \n")
    other = error_unless_damage(error, task.where, text, lambda: _way_round(refused_columns()))
    if other is not None:
        return other
    if _ARRAY in text:
        return UnsupportedFeatureError(
            f"{task.where} begins with a JSON array ({text}). JSON lines are needed: one object a line, without "
            "brackets around them and commas between them. Write the file again in that form, or leave it out."
        )
    if _FAR_TIME in text:
        return SchemaError(
            f"{task.where} has timestamps outside of 1677 to 2262, and pyarrow reads timestamps of ORC as nanoseconds, "
            f"which cannot hold them ({text}). Leave the column out, or write the file again as Parquet."
        )
    if any(part in text for part in _MISFITS) and "UTF8" not in text:
        return SchemaError(
            f"{task.where} does not fit the data set's schema ({text}). Correct the file, or name types that hold "
            "its values: inventory=scan_files(..., schema=). Without a schema, types are guessed from the first file."
        )
    if _NOT_UTF8 in text:
        return CorruptFileError(
            f"{task.where} has text that is not UTF-8 ({text}). Convert the file to UTF-8 (from Latin-1: iconv -f "
            "LATIN1 -t UTF-8 old > new), or name the column as pyarrow.binary() in a schema: "
            "inventory=scan_files(..., schema=)."
        )
    if any(part in text for part in _WIDE_DELTAS):
        return UnsupportedFeatureError(
            f"{task.where} does not decode ({text}). Either its numbers are DELTA_BINARY_PACKED as DuckDB "
            "(PARQUET_VERSION v2) and arrow-go write them, which pyarrow cannot read and the compiled decoder can, in "
            "flat columns and lists (it may be off, or not built), or it is damaged. "
            f"{_way_round(refused_columns())} Another encoding will do (in DuckDB PARQUET_VERSION v1)."
        )
    if _NO_LIST in text:
        return UnsupportedFeatureError(
            f"{task.where} does not decode ({text}). Either a struct is null around a fixed-size list that may not be "
            "null itself, which pyarrow cannot read, or the file is damaged. "
            f"{_way_round(refused_columns())} Lists that may be null will do, and so will lists of any length."
        )
    return CorruptFileError(
        f"{task.where} does not decode ({text}). The file is damaged or is not what its name says; write it "
        "again or leave it out."
    )


def _way_round(columns: Sequence[str]) -> str:
    if not columns:
        return "Read other columns (columns=), or write the file again without it."
    are = "column is" if len(columns) == 1 else "columns are"
    return f"The {are} {', '.join(columns)}: read others with columns=[...], or write the file again without it."


def corrupt(path: str, what: str) -> CorruptFileError:
    """Return the error for a file with wrong bytes."""
    return CorruptFileError(
        f"{redact(path)}: {what}. The file is damaged, incomplete or of another format; write it again or leave it out."
    )


def empty(path: str) -> CorruptFileError:
    """Return the error for a data file of no bytes."""
    return CorruptFileError(
        f"{redact(path)} is empty (0 bytes); a write or upload probably did not finish. Write it again or remove it."
    )


def changed(task: RowGroupTask) -> FileChangedError:
    """Return the error for a file that has another identity than planned."""
    return FileChangedError(
        f"{redact(task.path)} is not the file that was planned, {task.identity}. It was replaced or written to; plan "
        "the data set again."
    )


def _gone(task: RowGroupTask) -> FileChangedError:
    where = f"{redact(task.path)} is gone; it was there when the plan was made."
    if not task.table:
        return FileChangedError(f"{where} Plan the data set again.")
    return FileChangedError(
        f"{where} It belongs to {task.table}: the snapshot has expired, or its version was vacuumed, so the rest of "
        "this epoch cannot be read. Resume from the state at the end of an epoch, which loads with the table's current "
        "snapshot. Keep snapshots for longer than an epoch takes (a tag protects one)."
    )
