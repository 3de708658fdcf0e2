"""RecordBatches put together: columns beside columns, and rows after rows."""

from collections.abc import Sequence

import pyarrow as pa


def side_by_side(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The columns of all parts (at least one), which hold the same rows, in one batch; nothing is copied."""
    arrays = [array for part in parts for array in part.columns]
    if len(parts) == 1 or not arrays:
        return parts[0]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field for part in parts for field in part.schema]))


def one_after_other(groups: Sequence[Sequence[pa.RecordBatch]]) -> pa.RecordBatch:
    """The rows of all groups (at least one) in one batch; a group is RecordBatches of some columns and the same rows.

    All have the same columns, in the order that the first group has them in or in another.

    Raises:
        KeyError: a group lacks a column.
        pyarrow.ArrowException: a group has more columns, or types that differ; more text than 32-bit offsets can say;
            more categories than an index can.
    """
    first, *others = map(side_by_side, groups)
    return pa.concat_batches([first, *(_in_order(rows, first.schema.names) for rows in others)])


def without_categories(groups: Sequence[Sequence[pa.RecordBatch]]) -> Sequence[Sequence[pa.RecordBatch]]:
    """The groups with the values of dictionary-encoded columns; whether there are any, the first group tells of all."""
    if not any(pa.types.is_dictionary(field.type) for part in groups[0] for field in part.schema):
        return groups
    return [list(map(_decoded, parts)) for parts in groups]


def _decoded(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _in_order(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    seen = rows.schema.names
    return rows if seen == names or len(seen) > len(names) else rows.select(names)
