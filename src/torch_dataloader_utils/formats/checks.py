"""Checks of row groups, and the one place where errors of pyarrow and the system become errors of ours."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from torch_dataloader_utils._core.inventory import UNKNOWN, RowGroupTask
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import (
    CorruptFileError,
    FileChangedError,
    LoaderError,
    NoDataError,
    NullValueError,
    RowCountError,
    SchemaError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.formats.damage import error_unless_damage

FOREIGN = (pa.ArrowException, OSError, UnicodeError, MemoryError, OverflowError)
"""Everything that Arrow's readers raise on foreign files (501 of them were probed), and no more.

A TypeError or KeyError of our own stays what it is.
"""

# How pyarrow's CSV and JSON readers say that a value is not of the column's type.
_MISFITS = ("In CSV column #", "Failed to convert JSON", "is not a valid decimal", "changed from")

# What pyarrow's ORC reader, from 25 on, says of times that nanoseconds do not hold.
_FAR_TIME = "is out of range for nanosecond resolution"

# What pyarrow's JSON reader says of a line that is no object.
_ARRAY = "Column() changed from object to array"
# What pyarrow says of deltas that are wider than their numbers. Pages that were cut can give it, too.
_WIDE_DELTAS = ("InitBlock EOF", "InitHeader EOF")


@contextmanager
def foreign_errors(
    task: RowGroupTask, file_is_planned: Callable[[], bool], refused_columns: Callable[[], Sequence[str]] = tuple
) -> Iterator[None]:
    """Turns the errors of decoding one row group into errors of ours, with the cause chained.

    refused_columns: finds the columns that use what is not supported, for the message.
    `file_is_planned` looks the file up again: if it was replaced, bytes that do not decode and values that do not fit
    become a FileChangedError, not a CorruptFileError or SchemaError.
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
            "brackets around them and commas between them. Write the file again so, or leave it out."
        )
    if _FAR_TIME in text:
        return SchemaError(
            f"{task.where} has timestamps outside of 1677 to 2262, and pyarrow reads those of ORC as nanoseconds, "
            f"which hold no others ({text}). Leave the column out, or write the file again, as Parquet."
        )
    if any(part in text for part in _MISFITS) and "UTF8" not in text:
        return SchemaError(
            f"{task.where} does not fit the data set's schema ({text}). Correct the file, or name types that hold "
            "its values: inventory=scan_files(..., schema=). Without it they are guessed from the first file."
        )
    if any(part in text for part in _WIDE_DELTAS):
        return UnsupportedFeatureError(
            f"{task.where} does not decode ({text}). Either its numbers are DELTA_BINARY_PACKED as DuckDB "
            "(PARQUET_VERSION v2) and arrow-go write them, which pyarrow cannot read and the compiled decoder can, in "
            "flat columns and lists (it may be off, or not built), or it is damaged. "
            f"{_way_round(refused_columns())} Another encoding will do (in DuckDB PARQUET_VERSION v1)."
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


def _gone(task: RowGroupTask) -> FileChangedError:
    where = f"{redact(task.path)} is gone; it was there when the plan was made."
    if not task.table:
        return FileChangedError(f"{where} Plan the data set again.")
    return FileChangedError(
        f"{where} It is of {task.table}: the snapshot has expired, or its version was vacuumed, so the rest of this "
        "epoch cannot be read. Resume from the state at the end of an epoch, which loads with the table's current "
        "snapshot. Keep snapshots for longer than an epoch takes (a tag protects one)."
    )


def changed(task: RowGroupTask) -> FileChangedError:
    """The error for a file whose identity is not the planned one."""
    return FileChangedError(
        f"{redact(task.path)} is not the file that was planned, {task.identity}. It was replaced or written to; plan "
        "the data set again."
    )


def check_stored_rows(task: RowGroupTask, decoded_rows: int) -> None:
    """Raises RowCountError unless the row group held the rows that were planned (where they were counted)."""
    if task.physical_rows not in (UNKNOWN, decoded_rows):
        raise _row_count_error(task, decoded_rows, task.physical_rows, "stored")


def check_live_rows(task: RowGroupTask, live_rows: int) -> None:
    """Raises RowCountError unless as many rows are left as were planned (where they were counted)."""
    if task.live_rows not in (UNKNOWN, live_rows):
        raise _row_count_error(task, live_rows, task.live_rows, "planned")


def _row_count_error(task: RowGroupTask, seen_rows: int, wanted_rows: int, kind: str) -> RowCountError:
    """The error for another number of rows than planned."""
    return RowCountError(
        f"{task.where} gave {seen_rows} of {wanted_rows} {kind} rows. The file changed, or its counts are wrong: "
        "those of its footer or the _metadata file beside it; in JSON a line is one object. "
        f'Plan the data set again, or run "tdu verify {redact(task.path)}".'
    )


def no_such_group(task: RowGroupTask, num_groups: int) -> CorruptFileError:
    """The error for an ordinal that the file does not have."""
    return CorruptFileError(
        f"{task.where} does not exist: the footer has {num_groups} row groups. Plan the data set again."
    )


def check_decoded_size(task: RowGroupTask, decoded_bytes: int, budget_bytes: int) -> None:
    """Raises UnsupportedFeatureError for a row group that would decode to more than the budget."""
    if decoded_bytes > budget_bytes:
        raise UnsupportedFeatureError(
            f"{task.where} would decode to at least {decoded_bytes} bytes (the file has {task.file_size}); the limit "
            f"is {budget_bytes}. Read fewer columns, write smaller row groups, or raise max_row_group_bytes."
        )


def check_all_decoded(task: RowGroupTask, columns: Sequence[str], batch: pa.RecordBatch) -> None:
    """Raises UnsupportedFeatureError if the decoder left out a column that the file has.

    Decoders silently drop columns that they do not find, or that have no leaves; these would become nulls.
    """
    left_out = set(columns).difference(batch.schema.names) if batch.num_rows else None
    if left_out:
        raise UnsupportedFeatureError(
            f"{task.where}: pyarrow {pa.__version__} does not decode column {min(left_out)}, which the file has. "
            "Rename it, or leave it out."
        )


def repeated_names(names: Sequence[str]) -> frozenset[str]:
    """The names that occur more than once."""
    if len(names) == len(set(names)):
        return frozenset()
    return frozenset(name for name, count in Counter(names).items() if count > 1)


def check_unique(task: RowGroupTask, repeated: frozenset[str], columns: Sequence[str]) -> None:
    """Raises SchemaError if one of these columns has a name that the file's schema repeats."""
    twice = [name for name in columns if name in repeated]
    if twice:
        raise SchemaError(
            f"{task.where} has more than one column named {', '.join(twice)}; it is not clear which one is meant. "
            "Rename them in the file, or do not ask for them."
        )
