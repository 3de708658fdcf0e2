"""Schema of a Delta table as Arrow's, and the columns of files that belong to its fields.

Every field gets a number, as Iceberg's fields have: the number of its column mapping, or its place in the schema. Files
are read by these numbers (mapping "id", with the numbers in the files too) or by the physical names of fields (all
others). Source: Delta protocol, "Schema Serialization Format", "Column Mapping", "Partition Value Serialization".
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa

from torch_dataloader_utils._core.table_file import FIELD_ID
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.schemas import refused_types
from torch_dataloader_utils.tables.iceberg.stored_fields import VARIANT

_PLAIN = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    # Not in the protocol, but written for columns of nulls alone, by Spark 2 as "null".
    "void": pa.null(),
    "null": pa.null(),
    "variant": VARIANT,
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_MODES = ("none", "name", "id")
# More levels than any schema has, and fewer than Python's stack holds.
_MOST_LEVELS = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaSchema:
    """Columns of a version.

    schema: Arrow schema with the number of every field, nested fields too, as metadata FIELD_ID. All fields are
        nullable: only the writers promise that a column has no nulls.
    names: (physical path, number) of all fields; list elements are called "element", map entries "key" and "value".
    physical: Physical name of each column. partitions: Names of the partition columns, in the table's order.
    mode: Mode of the column mapping: none, name or id.
    unreadable: Columns of types that are not read, with the types; they are not in `schema`.
    """

    schema: pa.Schema
    names: tuple[tuple[tuple[str, ...], int], ...]
    physical: Mapping[str, str]
    partitions: tuple[str, ...]
    mode: str
    unreadable: Mapping[str, str]

    @property
    def stored(self) -> pa.Schema:
        """Columns that files hold."""
        return pa.schema([field for field in self.schema if field.name not in self.partitions])


def read_schema(where: str, metadata: Mapping[str, Any], wanted: Sequence[str] | None) -> DeltaSchema:
    """Return the schema in a metaData action.

    wanted: Names of the columns that are read, None for all.

    Raises:
        CorruptFileError: no schema of the protocol's form.
        UnsupportedFeatureError: a wanted column has a type that is not read, or the column mapping is unknown.
    """
    with decoding(where, "schema of the table"):
        try:
            # Arrow gives a map as a list of pairs.
            mode = str(dict(metadata.get("configuration") or ()).get("delta.columnMapping.mode", "none"))
            if mode not in _MODES:
                raise UnsupportedFeatureError(
                    f"{where}: column mapping by {mode!r} is not supported, only name and id."
                )
            fields = _items(json.loads(metadata["schemaString"]), "fields")
            reader = _SchemaReader(is_mapped=mode != "none")
            found = [(each, *reader.column(each)) for each in fields]
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        unreadable = {each["name"]: kind for each, _, kind in found if kind}
        names = None if wanted is None else frozenset(wanted)
        refused = {name: kind for name, kind in unreadable.items() if names is None or name in names}
        if refused:
            readable = [field.name for _, field, _ in found if field and (names is None or field.name in names)]
            raise UnsupportedFeatureError(f"{where}: {refused_types('Delta', refused, readable)}")
        _check_distinct(path for path, _ in reader.names)
        partitions = tuple(metadata.get("partitionColumns") or ())
        if not set(partitions) <= {each["name"] for each in fields}:
            raise ValueError(f"partition columns {partitions} are not all in the schema")
        return DeltaSchema(
            schema=pa.schema([field for _, field, _ in found if field is not None]),
            names=tuple(reader.names),
            physical={each["name"]: reader.physical(each) for each in fields},
            partitions=partitions,
            mode=mode,
            unreadable=unreadable,
        )


def _check_distinct(paths: Iterable[tuple[str, ...]]) -> None:
    twice = next((path for path, count in Counter(paths).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"two fields are called {'.'.join(twice)}")


def _items(value: Any, name: str) -> list[dict[str, Any]]:
    items = value[name]
    if not isinstance(items, list):
        raise TypeError(f"{name} is not a list")
    return items


class _UnknownTypeError(Exception):
    """Type that is not read. The text of the error is the type."""


class _SchemaReader:
    """Reader of Delta's fields as Arrow fields. It keeps their physical paths and numbers."""

    def __init__(self, *, is_mapped: bool) -> None:
        self.names: list[tuple[tuple[str, ...], int]] = []
        self._is_mapped = is_mapped
        self._numbers = count(1)

    def column(self, each: Mapping[str, Any]) -> tuple[pa.Field | None, str]:
        """Return the field of a column and "", or None and the type if the type is not read."""
        try:
            return self._field(each, ()), ""
        except _UnknownTypeError as error:
            return None, str(error)

    def physical(self, each: Mapping[str, Any]) -> str:
        """Return the name of a field in files."""
        name = each["metadata"]["delta.columnMapping.physicalName"] if self._is_mapped else each["name"]
        if not isinstance(name, str):
            raise TypeError(f"a field is called {name!r}")
        return name

    def _field(self, each: Mapping[str, Any], above: tuple[str, ...]) -> pa.Field:
        path = (*above, self.physical(each))
        number = int(each["metadata"]["delta.columnMapping.id"]) if self._is_mapped else next(self._numbers)
        self.names.append((path, number))
        return pa.field(each["name"], self._type(each["type"], path), metadata={FIELD_ID: str(number).encode()})

    def _type(self, kind: Any, path: tuple[str, ...]) -> pa.DataType:
        if len(path) > _MOST_LEVELS:
            raise RecursionError(f"more than {_MOST_LEVELS} levels of types")
        if isinstance(kind, str):
            return _scalar(kind)
        match kind["type"]:
            case "struct":
                return pa.struct([self._field(each, path) for each in _items(kind, "fields")])
            case "array":
                return pa.list_(pa.field("element", self._type(kind["elementType"], (*path, "element"))))
            case "map":
                key = pa.field("key", self._type(kind["keyType"], (*path, "key")), nullable=False)
                return pa.map_(key, pa.field("value", self._type(kind["valueType"], (*path, "value"))))
            case other:
                raise _UnknownTypeError(str(other))


def _scalar(kind: str) -> pa.DataType:
    if found := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(found[1]), int(found[2]))
    if kind not in _PLAIN:
        raise _UnknownTypeError(kind)
    return _PLAIN[kind]


def partition_scalars(where: str, field: pa.Field, texts: Sequence[str | None]) -> list[Any]:
    """Return values of a partition column from texts of the log. An empty text is null, for strings and bytes too.

    Raises:
        CorruptFileError: a text is not a value of the column's type.
    """
    try:
        return [scalar(text or None, field.type).as_py() for text in texts]
    except (pa.ArrowException, ValueError) as error:
        raise corrupt(where, f"a value of partition column {field.name} is not a {field.type} ({error})") from error


def scalar(text: str | None, data_type: pa.DataType) -> pa.Scalar:
    """Return the value of a text of the log, as partition values and statistics have it.

    Times without a zone are UTC if the type has a zone.

    Raises:
        ArrowException, ValueError: the text is not a value of the type.
    """
    if text is None:
        return pa.scalar(None, data_type)
    if pa.types.is_timestamp(data_type):
        has_zone = re.search(r"(Z|[+-]\d\d:?\d\d)$", text) is not None
        moment = pa.scalar(text).cast(pa.timestamp(data_type.unit, "UTC" if has_zone else None))
        return moment.cast(pa.timestamp(data_type.unit)).cast(data_type)
    if pa.types.is_binary(data_type):
        return pa.scalar(text.encode(), data_type)
    return pa.scalar(text).cast(data_type)
