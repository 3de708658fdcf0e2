"""Partition values from paths: .../year=2024/country=de/part-0.parquet."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._core.inventory import PartitionColumn
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    SchemaError,
    UnsupportedFeatureError,
    which_column,
)

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_INT64_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class Hive:
    """Columns from names of directories, such as `code=01001`, in types of your choice.

    Attributes:
        types: {column: type of its values}, a pyarrow type or its name ("string", "int32", "date32"). A column without
            a type here has the type of the files' own column of that name; if the files have none, it is int64 if all
            values are integers (leading zeros are allowed), else string.
    """

    types: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.types, Mapping):
            raise ConfigTypeError(f'Hive(types={self.types!r}): pass a dict, such as {{"code": "string"}}.')
        types = {name: _checked_type(name, given) for name, given in self.types.items()}
        object.__setattr__(self, "types", types)


def _checked_type(name: str, given: Any) -> pa.DataType:
    """Return the type, if texts can be converted to it."""
    try:
        data_type = pa.type_for_alias(given) if isinstance(given, str) else given
        pa.array([], pa.string()).cast(data_type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(
            f"Hive(types={{{name!r}: {given!r}}}): directories hold no values of this type ({error}). Pass a pyarrow "
            'type or its name, such as "string", "int32" or "date32".'
        ) from error
    return data_type


def check_partitioning(name: str, value: Any) -> Hive | Literal["auto"] | None:
    """Return the value of an option `partitioning`.

    Raises:
        ConfigError: neither "hive", "auto", a Hive, nor None.
    """
    if value == "hive":
        return Hive()
    if value not in (None, "auto") and not isinstance(value, Hive):
        raise ConfigError(f'{name}={value!r} is unknown; use "hive", "auto", Hive(types={{"code": "string"}}) or None.')
    return value  # type: ignore[no-any-return]  # one of these


def parse_partitions(paths: Sequence[str], root: str) -> dict[str, list[str | None]]:
    """Return the texts of partition values: column name to one entry a path, in the order the names appear.

    Only directories below `root` count; names and values are URL-unquoted. None stands for Hive's null, and for a path
    without that directory.

        /t/year=2024/city=%C3%84/a.parquet, root /t      {"year": ["2024"], "city": ["Ä"]}

    Raises:
        UnsupportedFeatureError: a name or value is not UTF-8. SchemaError: a path has two values of one name.
    """
    columns: dict[str, list[str | None]] = {}
    for index, path in enumerate(paths):
        for name, value in _values_in(path, root).items():
            columns.setdefault(name, [None] * len(paths))[index] = value
    return columns


def has_partitions(paths: Iterable[str], root: str) -> bool:
    """Return whether a path has a directory "name=value" below `root`, the directory that was searched."""
    return bool(root) and any(True for path in paths for _ in _named_directories(path, root))


def _values_in(path: str, root: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for quoted, text in _named_directories(path, root):
        name = _unquoted(quoted, path)
        value = None if text == _NULL_PARTITION else _unquoted(text, path)
        if values.setdefault(name, value) != value:
            raise SchemaError(
                f"{redact(path)}: its directories give the partition column {name!r} twice, as {values[name]!r} and as "
                f"{value!r}. Rename one of them, or read without partitioning."
            )
    return values


def _named_directories(path: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each directory "name=text" below `root`, as written."""
    for part in path.removeprefix(root).split("/")[:-1]:
        name, separator, text = part.partition("=")
        if separator and name:
            yield name, text


def _unquoted(text: str, path: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise UnsupportedFeatureError(
            f"{redact(path)}: {text!r} in its directories is not UTF-8 after URL decoding ({error}). Rename the "
            "directory, or read without partitioning."
        ) from error


def hive_hint(paths: Sequence[str], root: str, wanted: str) -> str:
    """Return advice if `wanted` names a directory "name=..." of the paths that is not a column; else "".

    .../year=2024/a.parquet, wanted "(year == 2024)"      Paths have year=...: pass partitioning="hive" ...
    """
    names = (unquote(name) for path in paths for name, _ in _named_directories(path, root))
    for name in dict.fromkeys(names):
        if _is_named(name, wanted):
            return f' Paths have {name}=...: pass partitioning="hive", and directories become columns.'
    return ""


def inside_hint(root: str, wanted: str) -> str:
    """Return advice if `wanted` names a directory "name=..." that the user's own directory lies in; else "".

    root .../year=2024, wanted "(year == 2024)"      The path lies inside year=2024 ...
    """
    for name, text in _named_directories(f"{root}/", ""):
        if _is_named(unquote(name), wanted):
            return f" The path lies inside {name}={text}: name a directory above, and choose rows with filters=."
    return ""


def _is_named(name: str, wanted: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", wanted) is not None


def unread_directories(path: str, root: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return a note if the path has directories "name=..." that are not columns, since partitioning= is not given."""
    names = [unquote(name) for name, _ in _named_directories(path, root)]
    unread = [f"{name}=..." for name in names if name not in columns]
    advice = 'not read as columns: partitioning="hive" reads them'
    return (f"directories {', '.join(unread)} are {advice}",) if unread else ()


def note_hidden_columns(path: str, fields: Sequence[pa.Field], file_schema: pa.Schema) -> tuple[str, ...]:
    """Return a note if directories and the file have columns of one name: batches have the directories' values."""
    names = [field.name for field in fields if file_schema.get_field_index(field.name) >= 0]
    if not names:
        return ()
    return (
        f"{redact(path)} has {', '.join(map(repr, names))} in its directories and as columns: batches have the values "
        "of the directories, and with partitioning=None the values of the columns",
    )


def type_hint(columns: Sequence[PartitionColumn], fields: Sequence[pa.Field], filter_text: str) -> str:
    """Return advice if a filter compares a partition column of integers with text; else "".

    The text of such a filter is `(code == "01001")`. pyarrow takes `isin` of texts for integers, so it is no error.
    """
    for column, of_column in zip(columns, fields, strict=True):
        name = re.escape(column.name)
        with_text = rf'(?<!\w){name} [=!<>]=? "|" [=!<>]=? {name}(?!\w)'
        if pa.types.is_integer(of_column.type) and re.search(with_text, filter_text):
            return (
                f" Directories {column.name}=... give integers, of which leading zeros are no part. To have them as "
                f"text, pass partitioning=Hive(types={{{column.name!r}: 'string'}})."
            )
    return ""


def type_partitions(
    texts: Mapping[str, Sequence[str | None]], file_schema: pa.Schema, hive: Hive, example_path: str
) -> tuple[tuple[PartitionColumn, ...], tuple[pa.Field, ...]]:
    """Return the typed columns and their Arrow fields.

    The value in the path is delivered, also if the files hold the column too, as by DuckDB and polars. Types are
    inferred as by pyarrow.dataset, which makes int32 of integers. See `Hive`.

    Raises:
        SchemaError: a path's value does not have the type of the files' own column of that name, or the type of `hive`.
        ConfigError: `hive` has the type of a column that no path has.
    """
    for name in hive.types:
        if name not in texts:
            which = which_column(name, texts) if texts else "no directory is called name=value."
            raise ConfigError(f"Hive(types=...) names {name!r}, which is no column of the paths; {which}")
    columns, fields = [], []
    for name, values in texts.items():
        distinct, index = list(dict.fromkeys(values)), file_schema.get_field_index(name)
        if name in hive.types:
            wanted, origin = hive.types[name], "type in Hive(types=...)"
        else:
            wanted = _inferred(distinct) if index < 0 else file_schema.field(index).type
            origin = f"type of the column {name!r} in the files"
        try:
            typed = pa.array(distinct, pa.string()).cast(wanted).to_pylist()
        except pa.ArrowException as error:
            raise SchemaError(
                f"{redact(example_path)}: partition values of {name!r} in the paths are not {wanted}, the {origin} "
                f"({error}). Give the column a type in partitioning=Hive(types=...), or read without partitioning."
            ) from error
        columns.append(PartitionColumn(name=name, values=tuple(typed), codes=_codes(values, distinct)))
        fields.append(pa.field(name, wanted))
    return tuple(columns), tuple(fields)


def partition_values(
    columns: Sequence[PartitionColumn], fields: Sequence[pa.Field], file: int
) -> tuple[tuple[pa.Field, Any], ...]:
    """Return the (field, value) pairs of one file."""
    return tuple((field, column.values[int(column.codes[file])]) for column, field in zip(columns, fields, strict=True))


def _inferred(values: Sequence[str | None]) -> pa.DataType:
    known = [value for value in values if value is not None]
    if known and all(_INTEGER.fullmatch(v) and -_INT64_LIMIT <= int(v) < _INT64_LIMIT for v in known):
        return pa.int64()
    return pa.string()


def _codes(values: Sequence[str | None], distinct: Sequence[str | None]) -> np.ndarray[Any, np.dtype[np.int32]]:
    numbers = {value: code for code, value in enumerate(distinct)}
    return np.array([numbers[value] for value in values], dtype=np.int32)
