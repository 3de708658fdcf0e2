"""Arrow schemas from IPC bytes (frozen values hold schemas as bytes), and types nested in types."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.errors import SchemaError

FieldPath = tuple[str, ...]


def decode_schema(encoded: bytes) -> pa.Schema:
    """Return the schema that an inventory, a ReadSpec or TableFields holds as bytes."""
    return pa.ipc.read_schema(pa.py_buffer(encoded))


def is_list(data_type: pa.DataType) -> bool:
    """Return whether values are lists, of any length or of a fixed length."""
    return bool(
        pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_fixed_size_list(data_type)
    )


def is_number(data_type: pa.DataType) -> bool:
    """Return whether values are integers or floats."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type))


def is_text(data_type: pa.DataType) -> bool:
    """Return whether values are text or binary values."""
    return is_utf8(data_type) or is_binary(data_type)


def is_utf8(data_type: pa.DataType) -> bool:
    """Return whether values are text."""
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def is_binary(data_type: pa.DataType) -> bool:
    """Return whether values are binary values of any length."""
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def type_holds(data_type: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Return whether `is_kind` is true of a type or of a type inside it; an extension type counts as its storage."""
    if isinstance(data_type, pa.BaseExtensionType):
        return type_holds(data_type.storage_type, is_kind)
    return is_kind(data_type) or any(type_holds(data_type.field(i).type, is_kind) for i in range(data_type.num_fields))


def field_paths(fields: Iterable[pa.Field], above: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the paths of all fields, nested fields too; names are "element" in lists, "key" and "value" in maps."""
    for each in fields:
        path, data_type = (*above, each.name), each.type
        yield path
        if pa.types.is_struct(data_type):
            yield from field_paths(data_type, path)
        elif is_list(data_type):
            yield from field_paths([data_type.value_field.with_name("element")], path)
        elif pa.types.is_map(data_type):
            yield from field_paths(
                [data_type.key_field.with_name("key"), data_type.item_field.with_name("value")], path
            )


def nested_path(schema: pa.Schema | pa.StructType, name: str) -> FieldPath:
    """Return the path of names to a column, or to a field of a struct by its dotted name; () if there is neither.

    The exact name of a column wins.

        columns a.b and a: struct<b, c>      a.b: (a.b)      a.c: (a, c)
    """
    if schema.get_field_index(name) >= 0:
        return (name,)
    for end in (place for place, letter in enumerate(name) if letter == "."):
        index = schema.get_field_index(name[:end])
        if index >= 0 and pa.types.is_struct(schema.field(index).type):
            inside = nested_path(schema.field(index).type, name[end + 1 :])
            if inside:
                return (name[:end], *inside)
    return ()


def values_at(rows: pa.RecordBatch, path: FieldPath) -> pa.Array:
    """Return the values at a path of `nested_path`: a field of a struct that is null is null."""
    values = rows.column(path[0])
    for name in path[1:]:
        values = pc.struct_field(values, [values.type.get_field_index(name)])
    return values


def flat_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the fields of structs in place of the structs, by dotted names; they keep their metadata.

    A field inside a struct that may be null may be null itself. Extension types stay as they are. If two names would be
    the same, the schema stays as it is.

        a: int64, b: struct<c: int32, d: struct<e: string>>      a: int64, b.c: int32, b.d.e: string
    """
    if not any(pa.types.is_struct(data_type) for data_type in schema.types):
        return schema
    flat = pa.schema([leaf for field in schema for leaf in _flat(field)])
    return flat if len(set(flat.names)) == len(flat) else schema


def _flat(field: pa.Field) -> Iterator[pa.Field]:
    if not pa.types.is_struct(field.type):
        yield field
        return
    for inner in field.type:
        below = inner.with_name(f"{field.name}.{inner.name}").with_nullable(inner.nullable or field.nullable)
        yield from _flat(below)


def column_names(schema: pa.Schema, names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that hold these columns and fields of structs; names that the schema lacks are left out."""
    known = set(schema.names)
    paths = ((name,) if name in known else nested_path(schema, name) for name in names)
    return tuple(dict.fromkeys(path[0] for path in paths if path))


def in_other_case(names: Sequence[tuple[FieldPath, int]], schema: pa.Schema) -> dict[FieldPath, FieldPath]:
    """Return, for fields that a file lacks, the path in the file that differs in case only and belongs to no field.

    names: (path, number) of all fields of a table; the file has a field of several paths if it has one of the paths.

        x, y, Y of a table, X, y of a file      {x: X}
    """
    seen = set(field_paths(schema))
    there = {number for path, number in names if path in seen}
    others = {_folded(path): path for path in seen.difference(path for path, _ in names)}
    return {path: others[_folded(path)] for path, number in names if number not in there and _folded(path) in others}


def case_error(where: str, wanted: FieldPath, seen: FieldPath) -> SchemaError:
    """Return the error for a file that has a field in another case."""
    return SchemaError(
        f"{where}: the table has a column {'.'.join(wanted)!r}, and in its place the file has {'.'.join(seen)!r}, "
        "which differs in case only. Rename it in the file, or leave the column out of columns=[...]."
    )


def _folded(path: FieldPath) -> FieldPath:
    return tuple(name.casefold() for name in path)


def leaf_ranges(schema: pa.Schema) -> list[range]:
    """Return the numbers of the Parquet leaf columns of each field, in field order.

    Leaves are found by position: the path of a leaf does not tell a column "a.b" from field `b` of a struct `a`.

        struct<a: int32, b: list<string>>, int64      0-1  2
    """
    counts = [_num_leaves(field.type) for field in schema]
    return [range(stop - count, stop) for count, stop in zip(counts, accumulate(counts), strict=True)]


def _num_leaves(data_type: pa.DataType) -> int:
    if isinstance(data_type, pa.BaseExtensionType):
        return _num_leaves(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return _num_leaves(data_type.value_type)
    if data_type.num_fields == 0:
        return 0 if pa.types.is_struct(data_type) else 1
    return sum(_num_leaves(data_type.field(i).type) for i in range(data_type.num_fields))


def field_at(field: pa.Field, path: FieldPath) -> pa.Field:
    """Return a field inside structs, nullable if a struct around it is; path: names from the outermost field on."""
    for name in path[1:]:
        inner = field.type.field(name)
        field = inner.with_nullable(inner.nullable or field.nullable)
    return field


def leaves_at(field: pa.Field, path: FieldPath) -> range:
    """Return the numbers of the Parquet leaf columns of a field inside structs, counted in the outermost field."""
    first = 0
    for name in path[1:]:
        index = field.type.get_field_index(name)
        first += sum(_num_leaves(field.type.field(before).type) for before in range(index))
        field = field.type.field(index)
    return range(first, first + _num_leaves(field.type))


def with_change(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Return the field after `change`, which is also applied to the fields inside its type.

    `change` does not reach types that pyarrow cannot cast (run ends, list views), keys of maps (they have no nulls),
    and the inside of extension types.
    """
    data_type = field.type
    inner = [with_change(data_type.field(i), change) for i in range(data_type.num_fields)]
    if pa.types.is_dictionary(data_type):
        values = with_change(pa.field("", data_type.value_type), change).type
        data_type = pa.dictionary(data_type.index_type, values, data_type.ordered)
    elif pa.types.is_list(data_type):
        data_type = pa.list_(*inner)
    elif pa.types.is_large_list(data_type):
        data_type = pa.large_list(*inner)
    elif pa.types.is_fixed_size_list(data_type):
        data_type = pa.list_(*inner, data_type.list_size)
    elif pa.types.is_struct(data_type):
        data_type = pa.struct(inner)
    elif pa.types.is_map(data_type) and not (item := with_change(data_type.item_field, change)).equals(
        data_type.item_field
    ):
        data_type = pa.map_(data_type.key_type, item, data_type.keys_sorted)
    return change(field.with_type(data_type))


def all_nullable(data_type: pa.DataType) -> pa.DataType:
    """Return the type with every field inside it nullable, as far as `with_change` reaches."""
    return with_change(pa.field("", data_type), lambda field: field.with_nullable(True)).type


def as_nullable(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return the column with the type `wanted`, which is `all_nullable` of its own type; not copied.

    Not a cast: pyarrow 26 makes damaged arrays from types that hold lists of nulls.
    """
    return pa.array(_Renamed(column, wanted))


class _Renamed:
    """Array with another type of the same layout, as `pyarrow.array` accepts arrays of other libraries."""

    def __init__(self, column: pa.Array, data_type: pa.DataType) -> None:
        self._column, self._type = column, data_type

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        _, memory = self._column.__arrow_c_array__()
        return self._type.__arrow_c_schema__(), memory
