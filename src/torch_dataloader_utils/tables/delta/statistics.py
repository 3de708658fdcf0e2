"""Statistics of a Delta log against a filter: files are ruled out. Source: Delta protocol, "Per-file Statistics"."""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.formats.file_scan import Verdict
from torch_dataloader_utils.formats.statistics import counts_contradict, judge_guarantees, may_be_true_for_nan
from torch_dataloader_utils.tables.delta.actions import AddedFile
from torch_dataloader_utils.tables.delta.schema import scalar

_log = logging.getLogger(__name__)

# Statistics cut times to milliseconds.
_TIME_SLACK = timedelta(milliseconds=1)


def judge_statistics(
    row_filter: pc.Expression,
    fields: Sequence[pa.Field],
    physical: Mapping[str, str],
    files: Sequence[AddedFile],
    *,
    is_widened: bool,
) -> Int64s:
    """Return one Verdict for each file: OUT if its statistics rule out every row that the filter keeps, else MAYBE.

    fields: Columns of the filter. physical: Names of the columns in the log. is_widened: Whether types of columns may
    have been widened: a double that was a float32 has bounds that were rounded.

    Only statistics of numbers, texts, days and times are used, and only if they fit the type of the column and do not
    contradict each other. To leave statistics out costs pruning, never rows.
    """
    uses_doubles = not is_widened and not may_be_true_for_nan(row_filter)
    known = [field for field in fields if _has_bounds(field.type, uses_doubles=uses_doubles)]
    guarantees, wrong = [], []
    for file in files:
        try:
            guarantees.append(_guarantee(file, known, physical))
        except _ContradictionError as error:
            guarantees.append(None)
            wrong.append(f"{redact(file.path)} ({error})")
    if wrong:
        _log.warning(
            "statistics of %d files contradict themselves and are not used; the first: %s", len(wrong), wrong[0]
        )
    if any(each is not None for each in guarantees):
        with suppress(pa.ArrowException):  # a filter that does not compare with the statistics
            return judge_guarantees(row_filter, pa.schema(fields), guarantees)
    return np.full(len(files), Verdict.MAYBE, dtype=np.int64)


def _has_bounds(data_type: pa.DataType, *, uses_doubles: bool) -> bool:
    types = pa.types
    if types.is_float64(data_type):
        return uses_doubles
    return any(is_kind(data_type) for is_kind in (types.is_integer, types.is_string, types.is_date, types.is_timestamp))


class _ContradictionError(Exception):
    """Statistics that cannot all be right. The text of the error names them."""


def _guarantee(file: AddedFile, fields: Sequence[pa.Field], physical: Mapping[str, str]) -> pc.Expression | None:
    """Return an expression that is true for all rows of the file; None if nothing is known.

    Raises:
        _ContradictionError: no rows can have these statistics.
    """
    statistics = _parsed(file.statistics)
    rows = statistics.get("numRecords")
    if file.vector is not None and _is_count(rows) and file.vector.cardinality > rows:
        raise _ContradictionError("more rows are deleted than there are")
    terms = [_bounds(statistics, field, physical[field.name]) for field in fields]
    found = [term for term in terms if term is not None]
    return reduce(and_, found) if found else None


def _parsed(statistics: Any) -> Mapping[str, Any]:
    if isinstance(statistics, str):
        try:
            statistics = json.loads(statistics)
        except (ValueError, RecursionError):
            return {}
    return statistics if isinstance(statistics, dict) else {}


def _bounds(statistics: Mapping[str, Any], field: pa.Field, name: str) -> pc.Expression | None:
    """Return an expression that is true for a column in all rows; None if nothing is known.

    Bounds may be wide: rows were deleted since, or texts cut.
    """
    nulls, rows = _entry(statistics, "nullCount", name), statistics.get("numRecords")
    low, high = (_value(_entry(statistics, kind, name), field.type) for kind in ("minValues", "maxValues"))
    has_bounds = low is not None or high is not None
    if _is_count(nulls) and _is_count(rows) and counts_contradict(rows, nulls, has_bounds=has_bounds):
        raise _ContradictionError(f"{field.name} has {nulls} nulls in {rows} rows{' and bounds' if has_bounds else ''}")
    column = pc.field(field.name)
    if nulls is not None and nulls == rows:
        return column.is_null() if rows else None
    if low is None or high is None:
        return None
    if pc.greater(low, high).as_py():
        raise _ContradictionError(f"the least {field.name} is above the greatest")
    if pa.types.is_timestamp(field.type):
        try:
            low = pa.scalar(low.as_py() - _TIME_SLACK, field.type)
            high = pa.scalar(high.as_py() + _TIME_SLACK, field.type)
        except (pa.ArrowException, ValueError, OverflowError):
            return None
    within = (column >= low) & (column <= high)
    return within if nulls == 0 else within | column.is_null()


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _entry(statistics: Mapping[str, Any], kind: str, name: str) -> Any:
    entries = statistics.get(kind)
    return entries.get(name) if isinstance(entries, dict) else None


def _value(value: Any, data_type: pa.DataType) -> pa.Scalar | None:
    """Return a bound as a value of the column; None if it is missing or of another type."""
    types = pa.types
    try:
        if isinstance(value, str) and not types.is_string(data_type):
            value = scalar(value, data_type).as_py()
        if isinstance(value, datetime):
            return pa.scalar(value.replace(tzinfo=None)).cast(data_type)
        wanted = {"string": (str,), "double": (int, float), "date32[day]": (date,)}.get(str(data_type), (int,))
        if not isinstance(value, wanted) or isinstance(value, bool) or value != value:
            return None
        return pa.scalar(value, data_type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
