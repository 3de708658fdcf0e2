"""Join, flatten and reorder RecordBatches, also where pyarrow's take and filter give wrong rows."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._arrow.number_batch import as_arrow
from torch_dataloader_utils.errors import UnsupportedFeatureError

# Limit of the 32-bit offsets of string and binary columns; a whole row group may need more.
MAX_OFFSET = (1 << 31) - 1


def side_by_side(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch with the columns of all parts (at least one), which have the same rows; nothing is copied."""
    if len(parts) == 1:
        return as_arrow(parts[0])
    arrays = [array for part in parts for array in part.columns]
    if not arrays:
        return parts[0]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field for part in parts for field in part.schema]))


def one_after_other(groups: Sequence[Sequence[pa.RecordBatch]]) -> pa.RecordBatch:
    """Return one batch with the rows of all groups (at least one), one after the other.

    A group is RecordBatches of different columns with the same rows. All groups have the same columns, in any order;
    the result has the order of the first group.

    Raises:
        KeyError: a group lacks a column.
        pyarrow.ArrowException: a group has more columns or other types; text is too long for 32-bit offsets; the index
            type allows fewer categories.
    """
    first, *others = map(side_by_side, groups)
    return pa.concat_batches([first, *(_in_order(rows, first.schema.names) for rows in others)])


def without_categories(parts: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the parts with dictionary-encoded columns decoded."""
    return [_decoded(part) if any(map(pa.types.is_dictionary, part.schema.types)) else part for part in parts]


def _decoded(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _in_order(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    seen = rows.schema.names
    return rows if seen == names or len(seen) > len(names) else rows.select(names)


def for_take(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows, safe for take and filter: a column that would give wrong rows is copied."""
    columns = rows.columns
    taken = list(map(array_for_take, columns))
    if all(new is old for new, old in zip(taken, columns, strict=True)):
        return rows
    return pa.RecordBatch.from_arrays(taken, schema=rows.schema)


def array_for_take(array: pa.Array) -> pa.Array:
    """Return the same rows of one column, safe for take and filter; see `for_take`."""
    if not _nests(array.type) or not _is_sliced(array):
        return array
    return pa.concat_arrays([array, array.slice(0, 0)])


def _nests(data_type: pa.DataType, *, is_inside: bool = False) -> bool:
    """Return whether a fixed-size list lies inside another fixed-size list."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _nests(data_type.storage_type, is_inside=is_inside)
    is_fixed = pa.types.is_fixed_size_list(data_type)
    if is_fixed and is_inside:
        return True
    children = [data_type.field(index).type for index in range(data_type.num_fields)]
    return any(_nests(child, is_inside=is_inside or is_fixed) for child in children)


def _is_sliced(array: pa.Array) -> bool:
    if array.offset:
        return True
    if isinstance(array, pa.ExtensionArray):
        return _is_sliced(array.storage)
    if pa.types.is_struct(array.type):
        return any(_is_sliced(array.field(index)) for index in range(array.type.num_fields))
    return hasattr(array, "values") and _is_sliced(array.values)


_Int64s = npt.NDArray[np.int64]


def take_rows(rows: pa.RecordBatch, order: _Int64s) -> pa.RecordBatch:
    """Return row order[i] of the rows, for all i; columns keep their types.

    Raises:
        UnsupportedFeatureError: a column of a type without a take, such as run ends inside a struct.
    """
    try:
        return for_take(rows).take(pa.array(order))
    except pa.ArrowNotImplementedError:  # column by column, to take run ends another way, or to name the column
        columns = [_take(name, array, order) for name, array in zip(rows.schema.names, rows.columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def decode_runs(array: pa.RunEndEncodedArray) -> pa.Array:
    """Return a run-end encoded array decoded, for any type of values (pyarrow's function: only numbers and strings)."""
    return array_for_take(array.values).take(pa.array(_run_of(array, np.arange(len(array)))))


def no_take(column: str, error: pa.ArrowException) -> UnsupportedFeatureError:
    """Return the error for a column that pyarrow cannot reorder."""
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
    """Return the taken rows, run-end encoded; neighbouring rows of one run become one run.

    rows [0, 2, 1, 0] of the runs aa, b      the runs a, b, aa
    """
    runs = _run_of(array, order)
    lasts = np.flatnonzero(np.diff(runs, append=-1))
    run_ends = pa.array(lasts + 1, array.type.run_end_type)
    values = array_for_take(array.values).take(pa.array(runs[lasts]))
    return pa.RunEndEncodedArray.from_arrays(run_ends, values, array.type)


def _run_of(array: pa.RunEndEncodedArray, rows: _Int64s) -> _Int64s:
    """Return the number of the run of each of these rows."""
    runs: _Int64s = np.searchsorted(array.run_ends.to_numpy(), rows + array.offset, side="right")
    return runs


def contiguous(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all batches in one batch; a single batch is returned unchanged, without a copy.

    Top-level string and binary columns of more than 2 GiB become large_string and large_binary. Without batches, the
    result has no rows and no columns.
    """
    match batches:
        case []:
            return rows_only(0)
        case [batch]:
            return batch
    table = pa.Table.from_batches(batches)
    if table.num_columns == 0:
        return rows_only(table.num_rows)
    for index, field in enumerate(table.schema):
        if table.column(index).nbytes > MAX_OFFSET and (large := _large(field.type)) is not None:
            table = table.set_column(index, field.with_type(large), table.column(index).cast(large))
    return table.combine_chunks().to_batches()[0] if table.num_rows else batches[0]


def rows_only(num_rows: int) -> pa.RecordBatch:
    """Return a RecordBatch with rows but no columns."""
    return pa.RecordBatch.from_arrays([pa.nulls(num_rows)], names=["rows"]).select([])


def _large(data_type: pa.DataType) -> pa.DataType | None:
    if pa.types.is_string(data_type):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(data_type) else None
