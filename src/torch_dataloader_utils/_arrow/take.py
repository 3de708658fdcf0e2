"""Takes rows in any order, also of run-end encoded columns, which pyarrow cannot (seen with 26.0.1)."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._arrow.fixed_lists import array_for_take, for_take
from torch_dataloader_utils.errors import UnsupportedFeatureError

_Int64s = npt.NDArray[np.int64]


def take_rows(rows: pa.RecordBatch, order: _Int64s) -> pa.RecordBatch:
    """Row order[i] of the rows, for all i; columns keep their types.

    Raises:
        UnsupportedFeatureError: a column of a type without a take, such as run ends inside of a struct.
    """
    try:
        return for_take(rows).take(pa.array(order))
    except pa.ArrowNotImplementedError:  # column by column, to give run ends another way, or to say which it is
        columns = [_take(name, array, order) for name, array in zip(rows.schema.names, rows.columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def decode_runs(array: pa.RunEndEncodedArray) -> pa.Array:
    """A run-end encoded array decoded, for any type of values (pyarrow's own function: only numbers and strings)."""
    return array_for_take(array.values).take(pa.array(_run_of(array, np.arange(len(array)))))


def no_take(column: str, error: pa.ArrowException) -> UnsupportedFeatureError:
    """The error for a column whose rows pyarrow cannot give in another order."""
    return UnsupportedFeatureError(
        f"column {column!r}: pyarrow {pa.__version__} cannot give its rows in another order ({error}). Write it as "
        "plain values, leave it out with columns=, or read rows in the order of the files."
    )


def _take(column: str, array: pa.Array, order: _Int64s) -> pa.Array:
    try:
        if pa.types.is_run_end_encoded(array.type):
            return _take_runs(array, order)
        return array_for_take(array).take(pa.array(order))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:  # the latter: more rows than run ends can say
        raise no_take(column, error) from error


def _take_runs(array: pa.RunEndEncodedArray, order: _Int64s) -> pa.RunEndEncodedArray:
    """The taken rows, run-end encoded; neighbouring rows of one run become one run.

    rows [0, 2, 1, 0] of the runs aa, b      the runs a, b, aa
    """
    runs = _run_of(array, order)
    lasts = np.flatnonzero(np.diff(runs, append=-1))
    run_ends = pa.array(lasts + 1, array.type.run_end_type)
    values = array_for_take(array.values).take(pa.array(runs[lasts]))
    return pa.RunEndEncodedArray.from_arrays(run_ends, values, array.type)


def _run_of(array: pa.RunEndEncodedArray, rows: _Int64s) -> _Int64s:
    """Which run each of these rows lies in."""
    runs: _Int64s = np.searchsorted(array.run_ends.to_numpy(), rows + array.offset, side="right")
    return runs
