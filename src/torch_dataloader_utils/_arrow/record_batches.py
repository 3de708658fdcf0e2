"""Joins RecordBatches: columns side by side, or rows one after the other."""

from collections.abc import Sequence

import pyarrow as pa


def side_by_side(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the columns of all parts (at least one), which have the same rows; nothing is copied."""
    arrays = [array for part in parts for array in part.columns]
    if len(parts) == 1 or not arrays:
        return parts[0]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field for part in parts for field in part.schema]))


def one_after_other(groups: Sequence[Sequence[pa.RecordBatch]]) -> pa.RecordBatch:
    """One batch with the rows of all groups (at least one); a group is RecordBatches of different columns, same rows.

    All groups have the same columns, in any order; the result has the order of the first group.

    Raises:
        KeyError: a group lacks a column.
        pyarrow.ArrowException: a group has more columns or other types; text is too long for 32-bit offsets; there are
            more categories than the index type allows.
    """
    first, *others = map(side_by_side, groups)
    return pa.concat_batches([first, *(_in_order(rows, first.schema.names) for rows in others)])


def without_categories(groups: Sequence[Sequence[pa.RecordBatch]]) -> Sequence[Sequence[pa.RecordBatch]]:
    """The groups with dictionary-encoded columns decoded; all groups have the types of the first one."""
    if not any(pa.types.is_dictionary(field.type) for part in groups[0] for field in part.schema):
        return groups
    return [list(map(_decoded, parts)) for parts in groups]


def _decoded(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _in_order(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    seen = rows.schema.names
    return rows if seen == names or len(seen) > len(names) else rows.select(names)
