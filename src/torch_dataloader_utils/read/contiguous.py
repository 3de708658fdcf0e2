"""Joins record batches to one contiguous RecordBatch."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

# 32-bit offsets of string and binary columns end here; a whole row group may need more.
MAX_OFFSET = (1 << 31) - 1


def contiguous(batches: Sequence[Any]) -> Any:
    """The rows of all batches in one; a single batch is given as it is, without a copy.

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


def rows_only(num_rows: int) -> Any:
    """A RecordBatch with rows but no columns."""
    return pa.RecordBatch.from_arrays([pa.nulls(num_rows)], names=["rows"]).select([])


def _large(data_type: Any) -> Any:
    if pa.types.is_string(data_type):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(data_type) else None
