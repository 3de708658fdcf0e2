"""Counts the values of a list column by the Parquet footer alone, without reading data."""

from typing import Any

import numpy as np

from torch_dataloader_utils._core.iceberg import IcebergFile, field_id
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.read.field_ids import identify
from torch_dataloader_utils.read.parquet_footer import parquet_footer
from torch_dataloader_utils.read.source import TaskSource


def list_items(source: TaskSource, field: Any) -> Int64s | None:
    """(rows, level entries, entries without a value) of column `field` in each row group of a file, int64 [groups, 3].

    Entries without a value are empty lists, null lists and null items; 0 where the footer does not count them. None
    if the footer cannot tell: the file lacks the column, or it is more than one leaf.
    """
    footer = parquet_footer(source)
    name = field.name
    extra = source.task.extra
    if isinstance(extra, IcebergFile):
        column = identify(footer.columns.schema, extra.table).get(field_id(field))
        name = "" if column is None else column.name
    leaves = footer.columns.leaves.get(name, ())
    if len(leaves) != 1:
        return None
    items = np.zeros((footer.metadata.num_row_groups, 3), dtype=np.int64)
    for ordinal in range(len(items)):
        group = footer.metadata.row_group(ordinal)
        chunk = group.column(leaves[0])
        statistics = chunk.statistics
        nulls = statistics.null_count if statistics is not None and statistics.has_null_count else 0
        items[ordinal] = (group.num_rows, chunk.num_values, nulls or 0)
    return items
