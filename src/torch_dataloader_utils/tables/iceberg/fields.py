"""Iceberg schemas as Arrow schemas with field ids, and the facts for files that lack columns or ids."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_dataloader_utils._core.metadata_columns import METADATA_COLUMNS
from torch_dataloader_utils._core.table_file import FIELD_ID
from torch_dataloader_utils.errors import CorruptFileError, DataError, UnsupportedFeatureError
from torch_dataloader_utils.formats.schemas import refused_types
from torch_dataloader_utils.tables.iceberg.defaults import initial_defaults
from torch_dataloader_utils.tables.iceberg.stored_fields import VARIANT
from torch_dataloader_utils.tables.iceberg.table_metadata import Beside

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType, NestedField

# Iceberg spec, "Reserved Field IDs": columns that engines make up. They are not read.
_OTHER_METADATA_COLUMNS = (
    "_deleted",
    "_spec_id",
    "_partition",
    "_change_type",
    "_change_ordinal",
    "_commit_snapshot_id",
)
_NAME_MAPPING = "schema.name-mapping.default"
NamePath = tuple[str, ...]


def arrow_schema(schema: "Schema", beside: Beside, wanted: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of an Iceberg schema, with the id of every field, nested fields too, in its metadata.

    Types are Arrow's plain types (string, list), where pyiceberg gives large types. Every field is nullable: `required`
    is a promise of the writers, and old files break it.

    beside: Types of fields that pyiceberg does not know, and defaults.
    wanted: Names of the columns that will be read, None for all. Other columns are left out if Arrow has no plain
        counterpart of their type, or if their default is not a value of the type.

    Raises:
        UnsupportedFeatureError: Arrow has no plain counterpart of a wanted column's type.
        CorruptFileError: the default of a wanted column is not a value of its type.
    """
    fields, refused = [], {}
    names = None if wanted is None else frozenset(wanted)
    for field in schema.fields:
        is_wanted = names is None or field.name in names
        try:
            arrow_field = _arrow_field(field, beside.types)
            initial_defaults([arrow_field], beside.defaults)
            fields.append(arrow_field)
        except _UnreadTypeError as error:
            if is_wanted:
                refused[field.name] = str(error)
        except DataError:
            if is_wanted:
                raise
    if refused:
        readable = [field.name for field in fields if names is None or field.name in names]
        raise UnsupportedFeatureError(refused_types("Iceberg", refused, readable))
    return pa.schema(fields)


class _UnreadTypeError(Exception):
    """Type without a plain counterpart in Arrow. The text of the error is the type."""


def metadata_column_hint(name: str) -> str:
    """Return advice about a name that is not a column of the table."""
    if name not in _OTHER_METADATA_COLUMNS:
        return ""
    return f" Of metadata columns, {', '.join(METADATA_COLUMNS)} are read; leave the others out."


def _arrow_field(field: "NestedField", unread: Mapping[int, str], *, nullable: bool = True) -> pa.Field:
    kind, metadata = unread.get(field.field_id), {FIELD_ID: str(field.field_id).encode()}
    if kind not in (None, "variant"):
        raise _UnreadTypeError(kind)
    arrow_type = _arrow_type(field.field_type, unread) if kind is None else VARIANT
    return pa.field(field.name, arrow_type, nullable=nullable, metadata=metadata)


def _arrow_type(iceberg_type: "IcebergType", unread: Mapping[int, str]) -> pa.DataType:
    from pyiceberg import types

    match iceberg_type:
        case types.StructType(fields=fields):
            return pa.struct([_arrow_field(field, unread) for field in fields])
        case types.ListType():
            return pa.list_(_arrow_field(iceberg_type.element_field, unread))
        case types.MapType():
            key = _arrow_field(iceberg_type.key_field, unread, nullable=False)
            return pa.map_(key, _arrow_field(iceberg_type.value_field, unread))
        case types.DecimalType(precision=precision, scale=scale):
            return pa.decimal128(precision, scale)
        case types.FixedType():
            return pa.binary(len(iceberg_type))
        case types.UUIDType():
            return pa.uuid() if hasattr(pa, "uuid") else pa.binary(16)
    plain = _PLAIN.get(str(iceberg_type))
    if plain is None:
        raise _UnreadTypeError(str(iceberg_type))
    return plain


_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", tz="UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
    "unknown": pa.null(),
}


def key_schema(metadata: "TableMetadata", schema: "Schema", key_ids: Iterable[int]) -> pa.Schema:
    """Return a schema with one column for each key id, named by the id; see `TableFields.keys`.

    A key may have been dropped from the schema since. The latest schema that has the key gives its type.

    Raises:
        CorruptFileError: no schema of the table has the id.
    """
    schemas = [schema, *sorted(metadata.schemas, key=lambda each: each.schema_id, reverse=True)]
    fields = []
    for key_id in sorted(set(key_ids)):
        chains = (chain for each in schemas if (chain := _chain(each.fields, key_id)))
        chain = next(chains, ())
        if not chain:
            raise CorruptFileError(
                f"an equality delete file uses field id {key_id}, which no schema of the table has. The table's "
                "metadata is damaged, or the key lies inside a list or map, which the format does not allow."
            )
        fields.append(_pruned(chain).with_name(str(key_id)))
    return pa.schema(fields)


def _chain(fields: "Sequence[NestedField]", field_id: int) -> "tuple[NestedField, ...]":
    """Return the fields from the top down to `field_id`, through structs; () if the field is missing."""
    from pyiceberg.types import StructType

    for field in fields:
        if field.field_id == field_id:
            return (field,)
        if isinstance(field.field_type, StructType) and (below := _chain(field.field_type.fields, field_id)):
            return (field, *below)
    return ()


def _pruned(chain: "Sequence[NestedField]") -> pa.Field:
    try:
        field = _arrow_field(chain[-1], {})
    except _UnreadTypeError as error:
        raise UnsupportedFeatureError(
            f"an equality delete file uses column {chain[0].name}, whose Iceberg type {error} is not supported. "
            "Rewrite the table's deletes."
        ) from error
    for outer in reversed(chain[:-1]):
        field = pa.field(outer.name, pa.struct([field]), metadata={FIELD_ID: str(outer.field_id).encode()})
    return field


def name_ids(metadata: "TableMetadata") -> tuple[tuple[NamePath, int], ...]:
    """Return field ids by names, for data files without ids: the table's name mapping.

    A table without a mapping (files of a migrated table) maps every name to the field that its schemas, past and
    present, use it for. A name that meant several fields over time comes with each field, and is refused by the reader.
    """
    text = metadata.properties.get(_NAME_MAPPING)
    if text is not None:
        try:
            return tuple(sorted(set(_mapped(json.loads(text), ()))))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(
                f"the table's {_NAME_MAPPING} is not a valid name mapping ({error}). Set the property to a valid one."
            ) from error
    return tuple(sorted({named for schema in metadata.schemas for named in _named(schema.fields, ())}))


def _mapped(fields: Sequence[Mapping[str, Any]], above: NamePath) -> Iterator[tuple[NamePath, int]]:
    for field in fields:
        for name in field["names"]:
            path = (*above, name)
            if field.get("field-id") is not None:
                yield path, int(field["field-id"])
            yield from _mapped(field.get("fields", ()), path)


def _named(fields: "Iterable[NestedField]", above: NamePath) -> Iterator[tuple[NamePath, int]]:
    from pyiceberg.types import ListType, MapType, StructType

    for field in fields:
        path = (*above, field.name)
        yield path, field.field_id
        match field.field_type:
            case StructType(fields=below):
                yield from _named(below, path)
            case ListType() as each:
                yield from _named((each.element_field,), path)
            case MapType() as each:
                yield from _named((each.key_field, each.value_field), path)
