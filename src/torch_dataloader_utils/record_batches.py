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

    Columns come in the order of the first group, and need not in the others.

    Raises:
        KeyError, pyarrow.ArrowInvalid: groups have not the same columns, or more text than 32-bit offsets can say.
    """
    first, *others = map(side_by_side, groups)
    names = first.schema.names
    return pa.concat_batches([first, *(rows if rows.schema.names == names else rows.select(names) for rows in others)])
