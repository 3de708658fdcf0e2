"""Columns of a file by field id, converted to the table's current types (renamed, moved, promoted fields).

    file's schema → FileColumn tree (ids) → for each wanted field, a column of the file or a constant

A field that the file does not have gets the first of: the file's identity partition value, the field's initial default,
null. A missing struct is null as a whole. Source: Iceberg spec, "Column Projection", "Default values", "Schema
Evolution".
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.schema import is_list
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._core.table_file import FIELD_ID, TableFields, TableFile, field_id, stored_field_id
from torch_dataloader_utils.errors import SchemaError, UnsupportedFeatureError
from torch_dataloader_utils.formats.conform import constant, is_harmless

_ELEMENT, _KEY, _VALUE = "element", "key", "value"

# A field id, or one of the three names.
_Key = int | str

# The parts of a variant have no field ids; these numbers are no ids of fields. Parquet, "Variant Shredding".
_PARTS_OF_VARIANT = {"metadata": -1, "value": -2}
_SHREDDED = "typed_value"
VARIANT = pa.struct(
    [pa.field(name, pa.binary(), metadata={FIELD_ID: str(number)}) for name, number in _PARTS_OF_VARIANT.items()]
)
"""Arrow type of a variant in the schemas of tables: its two binaries, as the Parquet files have them."""

_Names = Mapping[tuple[str, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileColumn:
    """Column of a file, or a field inside a column.

    name: Name in the file. index: Place in the struct around it. children: Fields of a struct by field id; parts of a
    list or map by "element", "key" and "value". is_doubtful: Whether it was found by a name that several fields of the
    table had over time.
    """

    name: str
    index: int
    type: pa.DataType
    children: "Mapping[_Key, FileColumn]" = field(default_factory=dict)
    is_doubtful: bool = False


def identify(schema: pa.Schema, table: TableFields) -> dict[int, FileColumn]:
    """Return the file's top-level columns by field id, without columns that the table never had.

    Ids come from the file or from the names in the table; see `is_by_name`.
    """
    names = _names_of(table) if is_by_name(schema, table) else None
    return {key: column for key, column in _struct_children(schema, names, ()).items() if isinstance(key, int)}


def is_by_name(schema: pa.Schema, table: TableFields) -> bool:
    """Return whether a file's columns are found by the table's names: by choice, or since no column has an id."""
    return table.is_by_name or all(stored_field_id(each) is None for each in _walk(schema))


def check_distinct(task: RowGroupTask, schema: pa.Schema, names: Iterable[str]) -> None:
    """Raise SchemaError if the file has one of these columns twice. Ids tell them apart, but they are read by name."""
    twice = next((name for name in names if schema.get_field_index(name) < 0), None)
    if twice is not None:
        raise SchemaError(f"{task.where}: two columns are called {twice!r}. Leave the column out, or rewrite the file.")


def project_columns(
    task: RowGroupTask,
    batch: pa.RecordBatch,
    wanted: Iterable[pa.Field],
    columns: Mapping[int, FileColumn],
    extra: TableFile,
) -> list[pa.Array]:
    """Return one array for each field of `wanted` (fields with ids), in the field's type.

    Raises:
        SchemaError: a type cannot be converted to the table's type, or several fields had the name of a column.
    """
    constants = _Constants(extra)
    return [_project(task, batch, each, columns, constants) for each in wanted]


def _project(
    task: RowGroupTask, batch: pa.RecordBatch, wanted: pa.Field, columns: Mapping[int, FileColumn], known: "_Constants"
) -> pa.Array:
    column = columns.get(field_id(wanted))
    if column is None:
        return known.column(wanted, batch.num_rows)
    return _Converter(task, known).convert(batch.column(column.name), column, wanted)


class _Constants:
    """Values of fields that a file does not have."""

    def __init__(self, extra: TableFile) -> None:
        self._values = {**_defaults_of(extra.table), **dict(extra.partition_values)}

    def column(self, wanted: pa.Field, num_rows: int) -> pa.Array:
        value = self._values.get(field_id(wanted))
        if isinstance(wanted.type, pa.BaseExtensionType):
            storage = pa.field(wanted.name, wanted.type.storage_type)
            return wanted.type.wrap_array(constant(getattr(value, "bytes", value), storage, num_rows))
        return constant(value, wanted, num_rows)


@dataclass(frozen=True, slots=True)
class _Converter:
    task: RowGroupTask
    known: _Constants

    def convert(self, array: pa.Array, column: FileColumn, wanted: pa.Field) -> pa.Array:
        """Return the array of a file's field as the table's field."""
        if column.is_doubtful:
            raise SchemaError(
                f"{self.task.where}: the file has no field ids, and its column {column.name} may be field "
                f"{wanted.name} (id {field_id(wanted)}) or another field of that name that the table had. Name it in "
                'the table property "schema.name-mapping.default", or leave the column out.'
            )
        types = pa.types
        if types.is_struct(wanted.type) and types.is_struct(array.type):
            return self._struct(array, column, wanted)
        if types.is_list(wanted.type) and is_list(array.type):
            return self._list(array, column, wanted)
        if types.is_map(wanted.type) and types.is_map(array.type):
            return self._map(array, column, wanted)
        return self._leaf(array, wanted)

    def _struct(self, array: pa.Array, column: FileColumn, wanted: pa.Field) -> pa.Array:
        children = []
        if any(field_id(child) in _PARTS_OF_VARIANT.values() for child in wanted.type):
            self._check_variant(array.type, wanted)
        for child in wanted.type:
            found = column.children.get(field_id(child))
            if found is None:
                children.append(self.known.column(child, len(array)))
            else:
                children.append(self.convert(array.field(found.index), found, child))
        fields = [child.with_type(values.type) for child, values in zip(wanted.type, children, strict=True)]
        if not fields:
            return pa.array([None if null else {} for null in array.is_null().to_pylist()], wanted.type)
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    def _check_variant(self, stored: pa.StructType, wanted: pa.Field) -> None:
        names = [each.name for each in stored]
        if _SHREDDED in names:
            raise UnsupportedFeatureError(
                f"{self.task.where}: variant {wanted.name} is shredded: parts of its values are columns of their own, "
                "which are not put together again. Leave the column out with columns=[...]. To read it, write the "
                "fields that you need as columns of their own, or write the files again without shredding (in DuckDB "
                "SET variant_minimum_shredding_size = -1, in Spark spark.sql.variant.writeShredding.enabled=false)."
            )
        if not _PARTS_OF_VARIANT.keys() <= set(names):
            raise SchemaError(
                f"{self.task.where}: variant {wanted.name} is a struct of {', '.join(names)}, and a variant has the "
                "binaries metadata and value. Leave the column out with columns=[...], or rewrite the file."
            )

    def _list(self, array: pa.Array, column: FileColumn, wanted: pa.Field) -> pa.Array:
        if not pa.types.is_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        element = wanted.type.value_field
        values = self.convert(array.values, column.children[_ELEMENT], element)
        list_type = pa.list_(element.with_type(values.type))
        return _with_children(list_type, array, [values])

    def _map(self, array: pa.Array, column: FileColumn, wanted: pa.Field) -> pa.Array:
        key_field, item_field = wanted.type.key_field, wanted.type.item_field
        keys = self.convert(array.keys, column.children[_KEY], key_field)
        items = self.convert(array.items, column.children[_VALUE], item_field)
        fields = [key_field.with_type(keys.type).with_nullable(False), item_field.with_type(items.type)]
        entries = pa.StructArray.from_arrays([keys, items], fields=fields)
        return _with_children(pa.map_(fields[0], fields[1]), array, [entries])

    def _leaf(self, array: pa.Array, wanted: pa.Field) -> pa.Array:
        seen, kind, types = array.type, wanted.type, pa.types
        if seen == kind:
            return array
        if types.is_null(kind) and array.null_count == len(array):
            return pa.nulls(len(array))
        try:
            if types.is_timestamp(seen) and types.is_timestamp(kind):
                # ORC and INT96 store nanoseconds, and INT96 has no zone. The table's type decides, as in Iceberg's own
                # readers: finer times are cut.
                return array.cast(pa.timestamp(kind.unit, seen.tz), safe=seen.unit != "ns").cast(kind)
            if types.is_time(kind) and types.is_integer(seen):
                return array.cast(kind)  # ORC has no time of day
            if not is_harmless(seen, kind):
                raise SchemaError(self._misfit(wanted, seen))
            if isinstance(kind, pa.BaseExtensionType):
                storage = array.storage if isinstance(array, pa.ExtensionArray) else array
                return kind.wrap_array(storage.cast(kind.storage_type))
            if types.is_dictionary(seen):
                array = array.dictionary_decode()
            return array.cast(kind)
        except pa.ArrowException as error:
            raise SchemaError(self._misfit(wanted, seen)) from error

    def _misfit(self, wanted: pa.Field, seen: pa.DataType) -> str:
        return (
            f"{self.task.where}: field {wanted.name} is {seen} in the file and {wanted.type} in the table, which does "
            "not hold all values of the file's type. Leave the column out of columns=[...], or rewrite the file."
        )


def _with_children(data_type: pa.DataType, array: pa.Array, children: list[pa.Array]) -> pa.Array:
    # Offsets and validity stay as they are, so slices and nulls need no care.
    return pa.Array.from_buffers(
        data_type, len(array), array.buffers()[:2], null_count=array.null_count, offset=array.offset, children=children
    )


def _struct_children(
    fields: Iterable[pa.Field], names: _Names | None, above: tuple[str, ...]
) -> dict[_Key, FileColumn]:
    children: dict[_Key, FileColumn] = {}
    for index, each in enumerate(fields):
        path = (*above, each.name)
        ids = _stored_ids(each) if names is None else names.get(path, ())
        column = FileColumn(
            name=each.name,
            index=index,
            type=each.type,
            children=_children(each.type, names, path),
            is_doubtful=len(ids) > 1,
        )
        for own in ids:
            # A name that only this field had wins over a name that other fields had too.
            if own not in children or not column.is_doubtful:
                children[own] = column
    return children


def _stored_ids(each: pa.Field) -> tuple[int, ...]:
    own = stored_field_id(each)
    return () if own is None else (own,)


def _children(data_type: pa.DataType, names: _Names | None, path: tuple[str, ...]) -> dict[_Key, FileColumn]:
    types = pa.types
    if types.is_struct(data_type):
        parts: dict[_Key, FileColumn] = {
            number: FileColumn(name=each.name, index=index, type=each.type)
            for index, each in enumerate(data_type)
            if (number := _PARTS_OF_VARIANT.get(each.name)) is not None
        }
        return {**parts, **_struct_children(data_type, names, path)}
    if is_list(data_type):
        return {_ELEMENT: _part(data_type.value_field, _ELEMENT, names, path)}
    if types.is_map(data_type):
        return {
            _KEY: _part(data_type.key_field, _KEY, names, path),
            _VALUE: _part(data_type.item_field, _VALUE, names, path),
        }
    return {}


def _part(each: pa.Field, name: str, names: _Names | None, path: tuple[str, ...]) -> FileColumn:
    return FileColumn(name=each.name, index=0, type=each.type, children=_children(each.type, names, (*path, name)))


def _walk(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    for each in fields:
        yield each
        if pa.types.is_struct(each.type):
            yield from _walk(each.type)


@lru_cache(maxsize=64)
def _names_of(table: TableFields) -> _Names:
    found: dict[tuple[str, ...], tuple[int, ...]] = {}
    for path, own in table.names:
        found[path] = (*found.get(path, ()), own)
    return found


@lru_cache(maxsize=64)
def names_key(table: TableFields) -> int:
    """Return a part of cache keys for a file's columns: without ids, columns are found by names, which may change."""
    return hash((table.names, table.is_by_name))


@lru_cache(maxsize=64)
def _defaults_of(table: TableFields) -> Mapping[int, Any]:
    return dict(table.defaults)


def innermost(array: pa.Array) -> pa.Array:
    """Return the values of a key column, without the structs of one field each that may surround it.

    UUIDs are given as bytes: Arrow's functions for sets do not support extension types.
    """
    while pa.types.is_struct(array.type):
        array = pc.struct_field(array, [0])
    return array.storage if isinstance(array, pa.ExtensionArray) else array
