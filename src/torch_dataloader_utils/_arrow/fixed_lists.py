"""Works around a fault of pyarrow: take and filter give wrong rows for slices of nested fixed-size lists.

Seen with pyarrow 26.0.1: the offset of the inner list is counted twice. The first row of a slice that begins at row 3
is then row 6.
"""

import pyarrow as pa


def for_take(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, safe for take and filter: a column that would give wrong rows is copied."""
    columns = rows.columns
    taken = list(map(array_for_take, columns))
    if all(new is old for new, old in zip(taken, columns, strict=True)):
        return rows
    return pa.RecordBatch.from_arrays(taken, schema=rows.schema)


def array_for_take(array: pa.Array) -> pa.Array:
    """The same rows of one column, safe for take and filter; see `for_take`."""
    if not _nests(array.type) or not _is_sliced(array):
        return array
    return pa.concat_arrays([array, array.slice(0, 0)])


def _nests(data_type: pa.DataType, *, is_inside: bool = False) -> bool:
    """Whether there is a fixed-size list inside of another one."""
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
