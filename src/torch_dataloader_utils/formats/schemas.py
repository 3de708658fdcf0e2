"""Comparison of the files' schemas, and the schema of the data set."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import pyarrow as pa

from torch_dataloader_utils._arrow.schema import all_nullable, column_names, field_paths, nested_path, with_change
from torch_dataloader_utils._core.metadata_columns import METADATA_COLUMNS
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import ConfigError, SchemaError, which_column
from torch_dataloader_utils.formats.checks import repeated_names

_log = logging.getLogger(__name__)


def check_same_schema(
    wanted: pa.Schema, wanted_path: str, seen: pa.Schema, seen_path: str, needed: Collection[str] | None = None
) -> dict[str, str]:
    """Raise SchemaError unless both files have the needed columns with the same types; return other differences.

    needed: Names of columns; None for all. The result has the difference in words for each other column that differs.

    Order, nullability (of fields inside of types too) and metadata may differ. Readers ask for columns by name. A name
    that several columns of the wanted schema have is not compared.
    """
    if seen.equals(wanted):
        return {}
    others: dict[str, str] = {}
    for name, one, other in _differences(wanted, seen):
        if needed is None or name in needed:
            raise _mismatch(seen_path, one, wanted_path, other)
        others.setdefault(name, f"{redact(seen_path)} {one}; {redact(wanted_path)} {other}")
    return others


def _differences(wanted: pa.Schema, seen: pa.Schema) -> Iterator[tuple[str, str, str]]:
    """Yield the names of columns that differ, each with what the file has and what is wanted."""
    seen_types, wanted_types = _types(seen), _types(wanted)
    names = set(wanted.names)  # pyarrow makes the list anew each time
    for name in sorted(repeated_names(seen.names)):
        if name in wanted_types or name not in names:
            yield name, f"has several columns {name!r}", "has one" if name in names else "has none"
    for name, wanted_type in wanted_types.items():
        if name not in seen_types:
            yield name, f"has no column {name!r}", f"has it as {wanted_type}"
        elif seen_types[name] != wanted_type and all_nullable(seen_types[name]) != all_nullable(wanted_type):
            yield name, f"has column {name!r} as {seen_types[name]}", f"as {wanted_type}"
    for name in seen_types:
        if name not in names:
            yield name, f"has a column {name!r}", "does not"


def unified_schema(
    schemas: Sequence[tuple[str, pa.Schema]], columns: Sequence[str] | None = None
) -> tuple[pa.Schema, dict[str, str]]:
    """Return the columns of all files in order of first appearance, each in its widest type, and the columns left out.

    schemas: Path and schema of every file, at least one. Fields are as `dataset_schema` makes them.
    columns: Projection. No column of the projection is left out; None for all columns.

        a: int32, b: string  |  b: string, c: float  |  a: int64      a: int64, b: string, c: float

    Returns:
        The schema, and for each column that is left out the difference of its types in words. A column is left out if
        none of its types holds the others.

    Raises:
        SchemaError: no type of a column of the projection holds all its other types.
    """
    found: dict[str, dict[pa.DataType, tuple[str, pa.Field]]] = {}
    known: pa.Schema | None = None
    for path, schema in schemas:
        if known is not None and schema.equals(known):
            continue
        known = schema
        for field in schema:
            plain = with_change(field, _plain)
            found.setdefault(field.name, {}).setdefault(plain.type, (path, plain))
    _log_case({name: next(iter(of_types.values()))[0] for name, of_types in found.items()}, schemas)
    fields, differing = [], {}
    for name, of_types in found.items():
        widest = _widest(of_types)
        if widest is not None:
            fields.append(widest)
            continue
        differing[name] = _difference(name, of_types)
        if columns is None or any(each == name or each.startswith(f"{name}.") for each in columns):
            raise SchemaError(
                f"{differing[name]}. Write one of the files again, scan them as two data sets, or leave the column out "
                "by columns= with the names of the others."
            )
    return pa.schema(fields), differing


def _log_case(first: Mapping[str, str], schemas: Sequence[tuple[str, pa.Schema]]) -> None:
    """Log names that differ in case only, unless one file has both: the writers may have meant one column.

    first: Each name with the path of the first file that has it.
    """
    spellings: dict[str, list[str]] = {}
    for name in first:
        spellings.setdefault(name.casefold(), []).append(name)
    if len(spellings) == len(first):
        return
    of_files = {frozenset(schema.names) for _, schema in schemas}
    for names in spellings.values():
        for one, other in combinations(names, 2):
            if not any(one in of_file and other in of_file for of_file in of_files):
                _log.warning(
                    "%s has a column %r, %s has %r, and no file has both: they are two columns, each null in the rows "
                    "of the other",
                    *(redact(first[one]), one, redact(first[other]), other),
                )


def _widest(of_types: Mapping[pa.DataType, tuple[str, pa.Field]]) -> pa.Field | None:
    for data_type, (_, field) in of_types.items():
        if all(holds(data_type, other) for other in of_types):
            return field
    return None


def _difference(name: str, of_types: Mapping[pa.DataType, tuple[str, pa.Field]]) -> str:
    one, other = next(
        pair for pair in combinations(of_types, 2) if not holds(*pair) and not holds(*reversed(pair))
    )  # if of any two types one held the other, one type would hold all
    return (
        f"{redact(of_types[other][0])} has column {name!r} as {other}; {redact(of_types[one][0])} as {one}. Neither "
        "holds all values of the other"
    )


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return whether a column of type `narrow` may be read as `wide`: every value stays the same, or reading raises.

    The wide type may be: an integer or float of more bits (a float of more bits for integers too), a decimal with more
    digits on both sides of the point, a timestamp for dates, a timestamp in a finer unit (reading raises for years that
    the unit does not hold), the large type of text or bytes, and any type for a column of nulls alone. The same is true
    inside of lists, of structs with the same fields, and of maps. A dictionary holds a dictionary of narrower indices,
    and a plain value holds both.

        int64, int32     float64, int32      decimal(12, 2), decimal(10, 2)                True
        float64, int64   string, int32       decimal(12, 4), decimal(12, 2)                False
    """
    types = pa.types
    if wide == narrow or types.is_null(narrow):
        return True
    if types.is_dictionary(narrow):
        if not types.is_dictionary(wide):
            return holds(wide, narrow.value_type)
        return holds(wide.index_type, narrow.index_type) and holds(wide.value_type, narrow.value_type)
    if types.is_integer(narrow):
        is_kind = types.is_floating(wide) or types.is_signed_integer(wide)
        is_kind |= types.is_unsigned_integer(wide) and types.is_unsigned_integer(narrow)
        return bool(is_kind) and wide.bit_width > narrow.bit_width
    if types.is_floating(narrow):
        return bool(types.is_floating(wide)) and wide.bit_width > narrow.bit_width
    if types.is_decimal(narrow):
        if not types.is_decimal(wide) or wide.scale < narrow.scale:
            return False
        return bool(wide.precision - wide.scale >= narrow.precision - narrow.scale)
    if types.is_date32(narrow):
        return bool(types.is_timestamp(wide)) and wide.tz is None
    if types.is_timestamp(narrow) and types.is_timestamp(wide):
        return bool(wide.tz == narrow.tz) and _UNITS.index(wide.unit) > _UNITS.index(narrow.unit)
    if types.is_string(narrow) or types.is_binary(narrow):
        return bool(wide == (pa.large_string() if types.is_string(narrow) else pa.large_binary()))
    return _nested_holds(wide, narrow)


_UNITS = ("s", "ms", "us", "ns")


def _nested_holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    types = pa.types
    if types.is_struct(narrow) and types.is_struct(wide):
        same_names = [field.name for field in wide] == [field.name for field in narrow]
        return same_names and all(holds(a.type, b.type) for a, b in zip(wide, narrow, strict=True))
    if types.is_map(narrow) and types.is_map(wide):
        return holds(wide.key_type, narrow.key_type) and holds(wide.item_type, narrow.item_type)
    is_kind = (types.is_list(narrow) and (types.is_list(wide) or types.is_large_list(wide))) or (
        types.is_large_list(narrow) and types.is_large_list(wide)
    )
    if types.is_fixed_size_list(narrow) and types.is_fixed_size_list(wide):
        is_kind = wide.list_size == narrow.list_size
    return bool(is_kind) and holds(wide.value_type, narrow.value_type)


def dataset_schema(
    file_schema: pa.Schema, partition_fields: Iterable[pa.Field], *, keeps_required: bool = False
) -> pa.Schema:
    """Return the files' columns, then the partition columns. A column that is both counts as a partition column.

    Views of text and bytes, which polars writes into Arrow files, become plain types, also inside of other types:
    pyarrow has no kernels that take rows of views, and filters and shuffles need them. Readers cast to the data set's
    types.

    Every field becomes nullable, also inside of other types: one file without nulls says nothing about the next file.

    keeps_required: Whether nullability stays as it is, for a schema that is not from a file.
    """
    partitions = list(partition_fields)
    names = {field.name for field in partitions}
    fields = [field for field in file_schema if field.name not in names] + partitions
    change = _without_view if keeps_required else _plain
    return pa.schema([with_change(field, change) for field in fields])


def _plain(field: pa.Field) -> pa.Field:
    return _without_view(field).with_nullable(True)


def _without_view(field: pa.Field) -> pa.Field:
    if pa.types.is_string_view(field.type):
        return field.with_type(pa.string())
    return field.with_type(pa.binary()) if pa.types.is_binary_view(field.type) else field


def check_columns(names: Iterable[str], schema: pa.Schema, hint: Callable[[str], str] | None = None) -> None:
    """Raise ConfigError with near matches unless every name is a column, a field of a struct or a metadata column.

    hint: Returns more advice about a name that is not a column.
    """
    # pyarrow makes the list of names anew each time; for thousands of columns that would take seconds.
    known = {*schema.names, *METADATA_COLUMNS}
    for name in names:
        if name not in known and not nested_path(schema, name):
            fields = schema.names
            if "." in name:
                fields = [each for each in map(".".join, field_paths(schema)) if nested_path(schema, each)]
            raise ConfigError(
                f"columns names {name!r}, which is not a column of the data; {which_column(name, fields)}"
                f"{hint(name) if hint else ''}{_MADE.get(name, '')}"
            )


# Names that people ask for as columns, and what makes them.
_MADE = {
    "labels": " Labels are made of chats by Chat, and of prompts by Completion: pack_tokens(tokenizer=Chat(tokenizer))."
}


def refused_types(table_format: str, refused: Mapping[str, str], readable: Sequence[str]) -> str:
    """Return the sentences about columns of unsupported types.

    refused: Types by column. readable: Names of the columns that may be read.

        column v holds values of Delta type variant, which is not supported. Leave it out: columns=['id'].
    """
    held = ", ".join(f"{name} holds values of {table_format} type {kind}" for name, kind in refused.items())
    shown = ", ".join(map(repr, readable[:20])) + (", ..." if len(readable) > 20 else "")
    verb, pronoun = ("is", "it") if len(refused) == 1 else ("are", "them")
    return f"column {held}, which {verb} not supported. Leave {pronoun} out: columns=[{shown}]."


def projected_part(schema: pa.Schema, columns: Sequence[str] | None) -> float:
    """Return the share of a file's columns that is projected, by number: for formats without column sizes.

    columns: Names of the projection, None for all. Names that the file lacks (partition columns) do not count.

        file columns x y, projected x and the partition column year      0.5
    """
    if columns is None or not schema.names:
        return 1.0
    return len(column_names(schema, columns)) / len(schema.names)


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of columns by name, without names that several columns have."""
    repeated = repeated_names(schema.names)
    return {field.name: field.type for field in schema if field.name not in repeated}


# Intervals of other writers. pyarrow has no arrays of them, and raises a KeyError with the number of the type.
_WITHOUT_ARRAYS = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME)


def odd_columns(schema: pa.Schema) -> dict[str, str]:
    """Return the columns of a file that no batch can have, by name, each with the reason."""
    odd = dict.fromkeys(sorted(repeated_names(schema.names)), "several columns have this name: rename all but one")
    for field in schema:
        if field.type.id in _WITHOUT_ARRAYS:
            odd[field.name] = f"pyarrow {pa.__version__} cannot read its type, {field.type}: write it as integers"
    return odd


def without_columns(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Return the schema without the columns of these names."""
    if not names:
        return schema
    return pa.schema([field for field in schema if field.name not in names], schema.metadata)


def _mismatch(seen_path: str, seen: str, wanted_path: str, wanted: str) -> SchemaError:
    return SchemaError(
        f"{redact(seen_path)} {seen}; {redact(wanted_path)} {wanted}. All files need the same columns and types: write "
        'one of them again, scan them as two data sets, leave the column out of columns=, or pass missing="null" '
        "to read columns that a file lacks as nulls, and narrower types as wider ones."
    )
