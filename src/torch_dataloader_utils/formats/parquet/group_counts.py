"""Rows, bytes and nulls of row groups, as the footer of a Parquet file counts them.

The compiled parser's numbers give them; pyarrow's metadata do where the footer is not of its kind.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.schema import column_names, flat_schema, leaf_ranges
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._store import Buffer, Span, redact
from torch_dataloader_utils.formats.errors import corrupt
from torch_dataloader_utils.formats.parquet.footer_numbers import FooterNumbers, OfChunk, chunk_starts, footer_numbers
from torch_dataloader_utils.formats.parquet.trailer import chunk_start

_NULLS_AND_VALUES = [OfChunk.NULLS, OfChunk.VALUES]

# A sum over all leaves fits into 64 bits.
_MOST_SANE = 1 << 40

_log = logging.getLogger(__name__)


class CountedColumns(NamedTuple):
    """Columns of a file, with what its scan has to know of them.

    leaves: Leaf columns of the projection. num_leaves: Number of all leaf columns. fields: Number of fields of
    `flat_schema`. nullable: Places of the fields with counted nulls. counted: The leaf column of each of these fields.
    """

    schema: pa.Schema
    leaves: list[int]
    num_leaves: int
    fields: int
    nullable: list[int]
    counted: Int64s

    @classmethod
    def of(cls, metadata: pq.FileMetaData, schema: pa.Schema, columns: tuple[str, ...] | None) -> Self:
        """Return the columns of a parsed footer; columns: Projection, None for all."""
        flat = flat_schema(schema)
        ranges = leaf_ranges(flat)
        # Writers count empty lists as nulls, except in lists of a fixed size.
        nullable = [
            place
            for place, (field, leaves) in enumerate(zip(flat, ranges, strict=True))
            if field.nullable and len(leaves) == 1 and _has_own_nulls(field.type)
        ]
        return cls(
            schema=schema,
            leaves=_projected_leaves(metadata, schema, leaf_ranges(schema), columns),
            num_leaves=metadata.num_columns,
            fields=len(flat),
            nullable=nullable,
            counted=np.array([ranges[place].start for place in nullable], dtype=np.int64),
        )

    def fit(self, numbers: FooterNumbers) -> bool:
        """Return whether the numbers are of these columns, and no sum of them is too large for 64 bits."""
        shape = numbers.chunks.shape
        return shape[1] == self.num_leaves > 0 and all(
            not each.size or (each.min() > -_MOST_SANE and each.max() < _MOST_SANE)
            for each in (numbers.groups, numbers.chunks)
        )

    def counted_rows(self, numbers: FooterNumbers) -> tuple[Int64s, Int64s]:
        """Return the results of `group_rows`, unchecked."""
        rows, projected_bytes = numbers.groups.T
        if len(self.leaves) != self.num_leaves:
            projected_bytes = numbers.chunks[:, self.leaves, OfChunk.UNCOMPRESSED].sum(axis=1)
        ends = numbers.chunks[:, [0, -1]]
        starts = chunk_starts(ends)
        start = starts.min(axis=1)
        length = (starts + ends[..., OfChunk.COMPRESSED]).max(axis=1) - start
        groups = np.empty((len(rows), 4), dtype=np.int64)
        groups[:, 0], groups[:, 1], groups[:, 2], groups[:, 3] = rows, projected_bytes, start, length
        return groups, self.nulls(numbers.chunks[:, self.counted][..., _NULLS_AND_VALUES])

    def nulls(self, counted: Int64s) -> Int64s:
        """Return the second result of `group_rows`; an impossible count becomes 0.

        counted: Nulls and values of the leaf columns `self.counted`, int64 [row groups, leaves, 2].
        """
        found, values = counted[..., 0], counted[..., 1]
        nulls = np.zeros((len(counted), self.fields), dtype=np.int64)
        nulls[:, self.nullable] = np.where((found > 0) & (found <= values), found, 0)
        return nulls


def group_rows(
    path: str, metadata: pq.FileMetaData, schema: pa.Schema, columns: tuple[str, ...] | None, tail: Buffer
) -> tuple[Int64s, Int64s]:
    """Return the numbers of all row groups of a footer, int64 each.

    The bytes of a row group run from the start of its first column chunk to the end of its last one.

    path: File, for messages. columns: Projection, None for all. tail: End of the file, parsed as `metadata`.

    Returns:
        [row groups, 4]: physical rows, projected bytes, byte offset, byte length (as in `FileScan.groups`).
        [row groups, fields of `flat_schema`]: nulls, 0 where the footer does not count them.

    Raises:
        CorruptFileError: the rows do not add up to the number of rows of the file.
    """
    return count_groups(path, metadata, CountedColumns.of(metadata, schema, columns), footer_numbers(tail))


def count_groups(
    path: str, metadata: pq.FileMetaData, columns: CountedColumns, numbers: FooterNumbers | None
) -> tuple[Int64s, Int64s]:
    """Return the results of `group_rows`. numbers: Numbers of the same footer, if they are known."""
    if numbers is not None and len(numbers.groups) == metadata.num_row_groups and columns.fit(numbers):
        rows, nulls = columns.counted_rows(numbers)
    else:
        rows = _rows_by_pyarrow(metadata, columns.leaves)
        nulls = columns.nulls(_nulls_by_pyarrow(metadata, columns.counted))
    check_total(path, int(rows[:, 0].sum()), metadata.num_rows)
    return rows, nulls


def _nulls_by_pyarrow(metadata: pq.FileMetaData, leaves: Int64s) -> Int64s:
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(leaf) for group in groups for leaf in leaves.tolist())
    found = [(_null_count(chunk.statistics), chunk.num_values) for chunk in chunks]
    return np.array(found, dtype=np.int64).reshape(metadata.num_row_groups, len(leaves), 2)


def _null_count(statistics: pq.Statistics | None) -> int:
    return statistics.null_count if statistics is not None and statistics.has_null_count else 0


def _has_own_nulls(data_type: pa.DataType) -> bool:
    """Return whether each null of the only leaf is a null row, or a missing number in a row of fixed size."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_own_nulls(data_type.storage_type)
    if not pa.types.is_fixed_size_list(data_type):
        return bool(data_type.num_fields == 0)
    while pa.types.is_fixed_size_list(data_type) and data_type.list_size:
        data_type = data_type.value_type
    return bool(pa.types.is_primitive(data_type))


def _rows_by_pyarrow(metadata: pq.FileMetaData, leaves: list[int]) -> Int64s:
    last = metadata.num_columns - 1
    rows = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        ends = [_span(group.column(leaf)) for leaf in ((0, last) if last >= 0 else ())]
        if len(leaves) == metadata.num_columns:
            projected_bytes = group.total_byte_size
        else:
            projected_bytes = sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
        rows.append((group.num_rows, projected_bytes, *_around(ends)))
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def check_total(path: str, group_rows: int, file_rows: int) -> None:
    """Raise CorruptFileError unless the rows of the row groups add up to the file's own count.

    A file count of 0 beside row groups with rows is only logged: some writers make it in good files.
    """
    if file_rows == 0 and group_rows:
        _log.warning("%s: the footer says 0 rows, its row groups %d; the groups count", redact(path), group_rows)
    elif file_rows != group_rows:
        raise corrupt(path, f"the footer says {file_rows} rows, its row groups add up to {group_rows}")


def _span(chunk: pq.ColumnChunkMetaData) -> Span:
    return chunk_start(chunk.data_page_offset, chunk.dictionary_page_offset), chunk.total_compressed_size


def _around(spans: Sequence[Span]) -> Span:
    """Return the smallest span that holds all spans."""
    start = min((start for start, _ in spans), default=0)
    return start, max(map(sum, spans), default=0) - start


def _projected_leaves(
    metadata: pq.FileMetaData, schema: pa.Schema, fields: Sequence[range], columns: tuple[str, ...] | None
) -> list[int]:
    """Return the numbers of the leaf columns of the projected fields; names that the file lacks are left out.

    fields: Leaf columns of each field.
    """
    if columns is None:
        return list(range(metadata.num_columns))
    wanted = set(column_names(schema, columns))
    return [
        leaf
        for name, leaves in zip(schema.names, fields, strict=True)
        if name in wanted
        for leaf in leaves
        if leaf < metadata.num_columns
    ]
