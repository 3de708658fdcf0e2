"""How the columns of one data file map to the columns of its table, and which of its rows are deleted.

These values are the `extras` of a `FileTable`, also for Delta tables. Scans of tables make them, readers use them, and
plans do not depend on them. Columns are matched by field id, not by name (Iceberg spec, "Column Projection").
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s

FIELD_ID = b"PARQUET:field_id"
"""Metadata key of a field's id, in the Arrow schemas that stages share and in the schemas of Parquet files."""

_STORED_KEYS = (FIELD_ID, b"iceberg.id")  # Parquet, ORC


def field_id(column: Any) -> int:
    """Return the id of an Arrow field of a table's schema."""
    return int(column.metadata[FIELD_ID])


def stored_field_id(column: Any) -> int | None:
    """Return the id that a file gives to an Arrow field of its own schema; None if its writer gave no id."""
    metadata = column.metadata or {}
    text = next((metadata[key] for key in _STORED_KEYS if key in metadata), None)
    return None if text is None else int(text)


def _no_rows() -> Int64s:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFields:
    """Facts that all files of a scan share; one object, so that it is pickled once.

    schema: Scanned Arrow schema as IPC bytes; every field, nested fields too, has its id as metadata
        "PARQUET:field_id".
    keys: Arrow schema as IPC bytes, with one column for each field id that some equality delete uses; the id is the
        name of the column. A key inside a struct is a struct with nothing else in it.
    names: (path of names, id) for files without field ids. List elements are called "element", map entries "key" and
        "value". A path with several ids meant several fields over time.
    is_by_name: Whether these names find the fields of all files, also of files that carry ids.
    defaults: (field id, value) of the fields that have an initial default.
    snapshot_id: Snapshot that is read; None for an Iceberg table without a snapshot, and for tables of other formats.
    """

    schema: bytes
    keys: bytes
    names: tuple[tuple[tuple[str, ...], int], ...] = ()
    is_by_name: bool = False
    defaults: tuple[tuple[int, object], ...] = ()
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualityDeleteFile:
    """File of key values: a row that equals a row of this file in all of `key_ids` is deleted; null equals null."""

    path: str
    file_size: int
    identity: str
    file_format: int
    key_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFile:
    """One data file of a table.

    partition_values: (field id, value) of its identity partition columns, for columns that the file does not hold.
    positions: Physical rows that position deletes or a deletion vector delete; ascending, each once.
    equality_deletes: Delete files that apply to this file (sequence number and partition fit), sorted by path.
    partition: (name of a partition field, value as stored) for all fields of the file's spec.
    first_row_id: Id of its first row, for rows without a stored id; None where rows have no ids.
    sequence_number: Its data sequence number, in tables that have row lineage (Iceberg, version 3); otherwise None.
    """

    table: TableFields
    partition_values: tuple[tuple[int, object], ...] = ()
    positions: Int64s = field(default_factory=_no_rows)
    equality_deletes: tuple[EqualityDeleteFile, ...] = ()
    partition: tuple[tuple[str, object], ...] = ()
    first_row_id: int | None = None
    sequence_number: int | None = None
