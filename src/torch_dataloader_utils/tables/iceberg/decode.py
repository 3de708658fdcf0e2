"""Decoding of one row group of an Iceberg data file by field ids, and the rows that equality deletes delete.

`stored_fields` finds columns by field id, `equality_deletes` finds deleted rows. `_core/table_file` has the facts about
the file that the scan found.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.batches import rows_only
from torch_dataloader_utils._arrow.schema import FieldPath, case_error, in_other_case
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.row_group_task import GroupRows
from torch_dataloader_utils._core.table_file import TableFile, field_id
from torch_dataloader_utils._store.interface import Store
from torch_dataloader_utils.errors import InternalError, SchemaError
from torch_dataloader_utils.formats.file_cache import FileCache
from torch_dataloader_utils.formats.registry import format_of
from torch_dataloader_utils.formats.task_source import TaskSource
from torch_dataloader_utils.tables.iceberg.equality_deletes import deleted_by_keys, key_fields
from torch_dataloader_utils.tables.iceberg.stored_fields import (
    FileColumn,
    check_distinct,
    identify,
    is_by_name,
    names_key,
    project_columns,
)
from torch_dataloader_utils.tables.metadata_columns import with_lineage

Decode = Callable[[TaskSource, pa.Schema, GroupRows], pa.RecordBatch]

# A tree of columns is small; the capacity counts the bytes of the schemas that the trees come from.
_columns: FileCache["_Columns"] = FileCache(4 << 20)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Columns:
    """Columns of a file.

    schema: Schema of the file. by_id: Columns by field id. in_other_case: See `in_other_case`, each with the ids of the
    table's column; empty if columns have ids.
    """

    schema: pa.Schema
    by_id: Mapping[int, FileColumn]
    in_other_case: Sequence[tuple[Set[int], FieldPath, FieldPath]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFileRows:
    """Rows of one row group.

    stored: Stored rows, as columns of the table. deleted: Rows that equality deletes delete, ascending.
    """

    stored: pa.RecordBatch
    deleted: Int64s


def decode_table_rows(
    source: TaskSource,
    extra: TableFile,
    fields: pa.Schema,
    rows: GroupRows,
    decode: Decode,
    open_store: Callable[[str], Store],
) -> TableFileRows:
    """Return stored rows of one row group as the columns `fields` of the table.

    rows: Rows to return. fields: Arrow schema with field ids. decode: Reads columns of the file by the file's names.

    Raises:
        SchemaError: a file without field ids and without names that the table knows, two columns of one name, or types
            that do not fit.
    """
    file = _columns_of(source, extra)
    schema, columns = file.schema, file.by_id
    keys = _keys_of(extra)
    wanted = {field_id(each) for each in (*fields, *keys)}
    _check_case(source, file, extra, wanted)
    names = list(dict.fromkeys(columns[each].name for each in sorted(wanted) if each in columns))
    _check_known(source, schema, columns, extra)
    check_distinct(source.task, schema, names)
    asked = pa.schema([schema.field(name) for name in names])
    batch = decode(source, asked, rows)
    if batch.num_rows == 0:
        # Decoders give an empty row group without its columns.
        batch = pa.RecordBatch.from_pylist([], schema=asked)
    arrays = project_columns(source.task, batch, fields, columns, extra)
    arrays = with_lineage(source.task, extra, fields, arrays, rows.start)
    stored = _named(arrays, fields, batch.num_rows)
    deleted = np.zeros(0, dtype=np.int64)
    if keys:
        deleted = deleted_by_keys(source.task, batch, columns, extra, open_store)
    return TableFileRows(stored=stored, deleted=deleted)


def stored_name(source: TaskSource, field: pa.Field, extra: TableFile) -> str:
    """Return the name of a table's column in the task's file; "" if the file lacks the column."""
    column = _columns_of(source, extra).by_id.get(field_id(field))
    return "" if column is None else column.name


def _columns_of(source: TaskSource, extra: TableFile) -> _Columns:
    return _columns.get(source.key, lambda: _load(source, extra), names_key(extra.table))


def _load(source: TaskSource, extra: TableFile) -> tuple[_Columns, int]:
    read_schema = format_of(source.task.file_format).read_schema
    if read_schema is None:
        raise InternalError(f"{source.task.where}: the format has no schema with field ids")
    schema, table = read_schema(source), extra.table
    others = in_other_case(table.names, schema) if is_by_name(schema, table) else {}
    ids: dict[FieldPath, set[int]] = {}
    for path, number in table.names if others else ():
        ids.setdefault(path, set()).add(number)
    in_case = [(ids.get(path[:1], set()), path, other) for path, other in others.items()]
    return _Columns(schema=schema, by_id=identify(schema, table), in_other_case=in_case), 200 * len(schema)


def _check_case(source: TaskSource, file: _Columns, extra: TableFile, wanted: Set[int]) -> None:
    """Raise SchemaError if a wanted column, or a field inside a wanted column, has another case in the file."""
    stored = wanted - dict(extra.partition_values).keys()
    for ids, path, other in file.in_other_case:
        if ids & stored:
            raise case_error(source.task.where, path, other)


def _keys_of(extra: TableFile) -> Sequence[pa.Field]:
    if not extra.equality_deletes:
        return ()
    used = {str(key_id) for file in extra.equality_deletes for key_id in file.key_ids}
    return [each for each in key_fields(extra) if each.name in used]


def _check_known(source: TaskSource, schema: pa.Schema, columns: Mapping[int, FileColumn], extra: TableFile) -> None:
    if columns or len(schema) == 0 or extra.table.names:
        return
    raise SchemaError(
        f"{source.task.where}: the file has no field ids, and the table has no name mapping, so columns cannot be "
        "matched to fields. Write the file again, or set the name mapping of the table (Iceberg)."
    )


def _named(arrays: Sequence[pa.Array], fields: pa.Schema, num_rows: int) -> pa.RecordBatch:
    if not arrays:
        return rows_only(num_rows)
    # If types differ, `conform` makes them the same later.
    kept = [each.with_type(array.type) for each, array in zip(fields, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(kept))
