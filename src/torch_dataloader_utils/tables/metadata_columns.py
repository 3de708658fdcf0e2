"""Metadata columns of the rows of a row group: file, position, and the row lineage of Iceberg tables."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.metadata_columns import FILE, LINEAGE_IDS, POSITION, ROW_ID, metadata_columns
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._core.table_file import FIELD_ID, TableFile
from torch_dataloader_utils.errors import ConfigError, InternalError
from torch_dataloader_utils.formats.conform import constant


def with_metadata_columns(schema: pa.Schema, wanted: Iterable[str]) -> pa.Schema:
    """Return the schema with the wanted metadata columns at its end, without names that the data has itself."""
    for name in metadata_columns(wanted, frozenset(schema.names)):
        schema = schema.append(_field(name))
    return schema


def _field(name: str) -> pa.Field:
    if name == FILE:
        return pa.field(name, pa.string())
    number = LINEAGE_IDS.get(name)
    return pa.field(name, pa.int64(), metadata=None if number is None else {FIELD_ID: str(number).encode()})


def place_column(task: RowGroupTask, name: str, first_row: int, num_rows: int) -> pa.Array:
    """Return `_file` or `_pos` of stored rows. first_row: First of the rows, counted from the row group's first row.

    Raises:
        ConfigError: the rows before the row group were not counted.
    """
    match name:
        case "_file":
            return constant(task.path, _field(name), num_rows)
        case "_pos":
            first = _first_position(task, name) + first_row
            return pa.array(np.arange(first, first + num_rows, dtype=np.int64))
    raise InternalError(f"{task.where} carries no value of partition column {name}; please report this.")


def with_lineage(
    task: RowGroupTask, extra: TableFile, fields: Sequence[pa.Field], arrays: Sequence[pa.Array], first_row: int
) -> list[pa.Array]:
    """Return the columns of an Iceberg file, with inherited row ids and sequence numbers in place of nulls.

    fields: One field for each array. first_row: First stored row in the arrays, counted from the row group's first row.
    """
    filled = list(arrays)
    for index, field in enumerate(fields):
        number = LINEAGE_IDS.get(field.name)
        if number is not None and (field.metadata or {}).get(FIELD_ID) == str(number).encode():
            filled[index] = _inherited(task, extra, field, filled[index], first_row)
    return filled


def _inherited(task: RowGroupTask, extra: TableFile, field: pa.Field, stored: pa.Array, first_row: int) -> pa.Array:
    if not stored.null_count:
        return stored
    if field.name != ROW_ID:
        return pc.fill_null(stored, pa.scalar(extra.sequence_number, pa.int64()))
    if extra.first_row_id is None:  # a snapshot from before the table had row ids
        return stored
    positions = place_column(task, POSITION, first_row, len(stored))
    return pc.coalesce(stored, pc.add_checked(positions, pa.scalar(extra.first_row_id, pa.int64())))


def _first_position(task: RowGroupTask, name: str) -> int:
    if task.first_row < 0:
        raise ConfigError(
            f"{task.where}: the position of its first row is not known, since rows before it were not counted; "
            f"columns names {name!r}. Leave it out, or scan with count_rows=True."
        )
    return task.first_row
