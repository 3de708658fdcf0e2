"""How the columns of one data file map to its table, and which of its rows are deleted.

These values are the `extras` of a `FileTable`, of Delta tables too. Scans of tables make them, readers use them, and no
plan depends on them. Field ids, not names, say which column is which (Iceberg spec, "Column Projection").
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s

FIELD_ID = b"PARQUET:field_id"
"""The metadata key of a field's id, in the Arrow schemas that stages share and in those of Parquet files."""

_STORED_KEYS = (FIELD_ID, b"iceberg.id")  # Parquet, ORC


def field_id(column: Any) -> int:
    """The id of an Arrow field of a table's schema."""
    return int(column.metadata[FIELD_ID])


def stored_field_id(column: Any) -> int | None:
    """The id that a file gives to an Arrow field of its own schema; None where its writer gave none."""
    metadata = column.metadata or {}
    text = next((metadata[key] for key in _STORED_KEYS if key in metadata), None)
    return None if text is None else int(text)


def _no_rows() -> Int64s:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFields:
    """The facts that all files of a scan have in common; one object, so that it is pickled once.

    schema: the scanned Arrow schema as IPC bytes; every field, nested ones too, has its id as metadata
        "PARQUET:field_id".
    keys: an Arrow schema, likewise, with one column for each field id that some equality delete uses, named by that
        id. A key inside a struct is a struct with nothing else in it.
    names: field ids of files that carry none: (path of names, id), where list elements are called "element", map
        entries "key" and "value". A path with several ids meant several fields over time.
    is_by_name: whether these names find the fields of all files, also of files that carry ids.
    defaults: (field id, value) of the fields that have an initial default.
    snapshot_id: the snapshot that is read; None for an Iceberg table without one, and for tables of other formats.
    """

    schema: bytes
    keys: bytes
    names: tuple[tuple[tuple[str, ...], int], ...] = ()
    is_by_name: bool = False
    defaults: tuple[tuple[int, Any], ...] = ()
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualityDeleteFile:
    """A file of key values: rows equal to one of them in all of `key_ids` are deleted; null equals null."""

    path: str
    file_size: int
    identity: str
    file_format: int
    key_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IcebergFile:
    """One data file of a table.

    partition_values: (field id, value) of its identity partition columns, for columns that the file does not hold.
    positions: physical rows that position deletes or a deletion vector delete; ascending, each once.
    equality_deletes: those that apply to this file (sequence number and partition fit), sorted by path.
    partition: (name of a partition field, value as stored) for all fields of the file's spec.
    first_row_id: the id of its first row, for rows that hold none; None where rows have no ids.
    sequence_number: its data sequence number, in tables that have row lineage (Iceberg, version 3); else None.
    """

    table: TableFields
    partition_values: tuple[tuple[int, Any], ...] = ()
    positions: Int64s = field(default_factory=_no_rows)
    equality_deletes: tuple[EqualityDeleteFile, ...] = ()
    partition: tuple[tuple[str, Any], ...] = ()
    first_row_id: int | None = None
    sequence_number: int | None = None
