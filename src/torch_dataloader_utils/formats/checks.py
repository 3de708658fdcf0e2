"""Checks of scans, row counts, sizes and column names against the plan and the file."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import CorruptFileError, RowCountError, SchemaError, UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_scan import FileScan

# No writer makes row groups of more rows than a 32-bit count holds; wrong footers claim them.
_MOST_GROUP_ROWS = (1 << 31) - 1


def checked(path: str, scan: FileScan) -> FileScan:
    """Return the scan, once its column names and row groups are checked.

    Raises:
        CorruptFileError: a column name is not UTF-8, or see `check_places`.
    """
    with decoding(path, "schema"):
        _ = scan.schema.names
    check_places(path, scan.size, scan.groups)
    return scan


def check_places(path: str, size: int, groups: Int64s) -> None:
    """Raise CorruptFileError for impossible row counts and places, with file and row group.

    groups: int64 [row groups, 4] as in `FileScan.groups`.

        5 rows in bytes 90 to 120 of a file of 100 bytes      CorruptFileError
    """
    # Sums of Python numbers do not overflow; most files have one row group.
    for ordinal, (rows, weight, start, length) in enumerate(groups.tolist()):
        if not UNKNOWN <= rows <= _MOST_GROUP_ROWS or min(weight, start, length) < 0 or start + length > size:
            raise corrupt(
                path,
                f"its metadata says that row group {ordinal} has {rows} rows in {length} bytes at {start}, of a file "
                f"of {size} bytes",
            )


def check_stored_rows(task: RowGroupTask, decoded_rows: int) -> None:
    """Raise RowCountError unless the row group has the planned rows. Do nothing if the plan has no count."""
    if task.physical_rows not in (UNKNOWN, decoded_rows):
        raise _row_count_error(task, decoded_rows, task.physical_rows, "stored")


def check_live_rows(task: RowGroupTask, live_rows: int) -> None:
    """Raise RowCountError unless the planned live rows are left. Do nothing if the plan has no count."""
    if task.live_rows not in (UNKNOWN, live_rows):
        raise _row_count_error(task, live_rows, task.live_rows, "planned")


def _row_count_error(task: RowGroupTask, seen_rows: int, wanted_rows: int, kind: str) -> RowCountError:
    return RowCountError(
        f"{task.where} gave {seen_rows} of {wanted_rows} {kind} rows. The file changed, or its footer or the "
        "_metadata file beside it has wrong counts; in JSON a line is one object. "
        f'Plan the data set again, or run "tdu verify {redact(task.path)}".'
    )


def no_such_group(task: RowGroupTask, num_groups: int) -> CorruptFileError:
    """Return the error for a row group that the file does not have."""
    return CorruptFileError(
        f"{task.where} does not exist: the footer has {num_groups} row groups. Plan the data set again."
    )


def check_decoded_size(task: RowGroupTask, decoded_bytes: int, budget_bytes: int) -> None:
    """Raise UnsupportedFeatureError for a row group that would decode to more than the budget."""
    if decoded_bytes > budget_bytes:
        raise UnsupportedFeatureError(
            f"{task.where} would decode to at least {decoded_bytes} bytes (the file has {task.file_size}); the limit "
            f"is {budget_bytes}. Read fewer columns, write smaller row groups, or raise max_row_group_bytes."
        )


def check_all_decoded(task: RowGroupTask, columns: Sequence[str], batch: pa.RecordBatch) -> None:
    """Raise UnsupportedFeatureError if the decoder left out a column that the file has.

    Decoders silently drop columns that they do not find, or that have no leaves. The reader would make them null.
    """
    left_out = set(columns).difference(batch.schema.names) if batch.num_rows else None
    if left_out:
        raise UnsupportedFeatureError(
            f"{task.where}: pyarrow {pa.__version__} does not decode column {min(left_out)}, which the file has. "
            "Rename it, or leave it out."
        )


def repeated_names(names: Sequence[str]) -> frozenset[str]:
    """Return the names that occur more than once."""
    if len(names) == len(set(names)):
        return frozenset()
    return frozenset(name for name, count in Counter(names).items() if count > 1)


def check_unique(task: RowGroupTask, repeated: frozenset[str], columns: Sequence[str]) -> None:
    """Raise SchemaError if the file's schema repeats the name of a column."""
    twice = [name for name in columns if name in repeated] if repeated else []
    if twice:
        raise SchemaError(
            f"{task.where} has more than one column named {', '.join(twice)}; it is not clear which one is meant. "
            "Rename them in the file, or do not ask for them."
        )
