"""The schema of JSON lines, from all lines: every key, also nested ones, in the type that holds all its values.

    pieces of the text  ─►  lines that show a new key, or a new kind of value  ─►  pyarrow infers  ─►  pa.Schema
                            NewLines (compiled)                                    JsonSchema

A line that shows nothing new cannot change the schema: pyarrow's types follow from the kinds of values alone. Without
the compiled module all lines count as new: the schema is the same, and takes eight times as long.
"""

import io
import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from torch_dataloader_utils import _decoder
from torch_dataloader_utils._formats.arrow_schema import is_list
from torch_dataloader_utils.errors import SchemaError

_SLOTS = 1 << 15
_LINES_AT_ONCE = 256
# Above this, keys are values: ids or words. Each becomes a column that takes memory in every row.
_MOST_KEYS = 10_000
_CONFLICT = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)", re.DOTALL)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class NewLine(NamedTuple):
    """A line that shows something new.

    at: where it begins in the text; None for a line that stands for a file. is_noted: what it shows is not new any more.
    """

    at: int | None
    text: bytes
    is_noted: bool


class NewLines:
    """Finds the lines of a text that show a key, or a kind of value of a key, that no earlier line had."""

    def __init__(self) -> None:
        self._seen = np.zeros(_SLOTS, dtype=np.uint64)
        self._root = secrets.randbits(64)
        self._open: list[bytes] = []
        self._position = 0

    def feed(self, piece: bytes) -> list[NewLine]:
        """Return the new ones of the lines that end in the next piece of the text."""
        stop = piece.rfind(b"\n") + 1
        if stop == 0:
            self._open.append(piece)
            return []
        start = piece.find(b"\n") + 1 if self._open else 0
        found = self._find(b"".join([*self._open, piece[:start]])) if start else []
        self._open = [piece[stop:]]
        return found + self._find(memoryview(piece)[start:stop])

    def rest(self) -> list[NewLine]:
        """Return the last line, if it has no line end and is new."""
        return self._find(b"".join(self._open))

    def forget(self) -> None:
        """Count every line as new again: one was noted that does not decode, so that its keys are not known."""
        self._seen[:] = 0

    def _find(self, lines: bytes | memoryview) -> list[NewLine]:
        at = self._position
        self._position += len(lines)
        if not _decoder.IS_BUILT:
            texts = bytes(lines).split(b"\n")
            starts = accumulate((len(text) + 1 for text in texts), initial=at)
            return [NewLine(start, text, False) for start, text in zip(starts, texts, strict=False) if text.strip()]
        found = np.frombuffer(_decoder.find_news(lines, self._seen, self._root), dtype=np.int64).reshape(-1, 3)
        return [
            NewLine(at + start, bytes(lines[start:stop]), bool(is_noted)) for start, stop, is_noted in found.tolist()
        ]


class JsonSchema:
    """Learns the columns of JSON lines, of one file or of several.

    Types are pyarrow's: null and x is x, integers and floats are float64, times and other texts are text, and objects
    are structs with all their keys.

    where: the file, for messages. columns: the names that are needed, None for all. left_out: the other keys, of which
    values have no one type, or too many keys.

        {"a": 1}   {"a": 2.5, "b": [{}]}   {"b": [{"c": "x"}]}      a: double, b: list<struct<c: string>>
    """

    def __init__(self, where: str, columns: Sequence[str] | None = None) -> None:
        self.schema = pa.schema([])
        self.left_out: set[str] = set()
        self._where = where
        self._columns = None if columns is None else frozenset(columns)

    def add(self, lines: Sequence[NewLine]) -> bool:
        """Learn from lines; False if a noted one does not decode, so that its keys are not known.

        A line that does not decode teaches nothing, and is an error where it is read.

        Raises:
            SchemaError: a needed key has values of no one type, or there are too many keys.
        """
        starts = range(0, len(lines), _LINES_AT_ONCE)
        return all([self._learn(lines[start : start + _LINES_AT_ONCE]) for start in starts])

    def add_schema(self, schema: pa.Schema, where: str) -> None:
        """Learn the schema of another file.

        Raises:
            SchemaError: see `add`.
        """
        if not schema.equals(self.schema):
            self._where = where
            self._learn([NewLine(None, _encoded(_example(schema)), False)])

    def _learn(self, lines: Sequence[NewLine]) -> bool:
        try:
            schema = infer_schema([_encoded(_example(self.schema)), *map(self._wanted, lines)])
        except ValueError as error:  # of pyarrow or json
            if len(lines) == 1:
                return self._learn_around(lines[0], error)
            half = len(lines) // 2
            return all([self._learn(lines[:half]), self._learn(lines[half:])])
        self._set(schema)
        return True

    def _wanted(self, line: NewLine) -> bytes:
        """The line without the keys that are left out."""
        text = line.text.removeprefix(_BYTE_ORDER_MARK)
        value = json.loads(text) if self.left_out else None
        if not isinstance(value, dict):
            return text
        return _encoded({key: each for key, each in value.items() if key not in self.left_out})

    def _learn_around(self, line: NewLine, error: ValueError) -> bool:
        """Learn from a line that pyarrow refused, without the keys that have values of two kinds."""
        conflict = _CONFLICT.search(str(error))
        if conflict is None:
            return not line.is_noted
        if self._columns is not None:
            known, value = _example(self.schema), json.loads(self._wanted(line))
            keys = {key for key in value if key not in self._columns and _conflict(key, known, value)}
            if keys:
                self._leave_out(keys)
                return self._learn([line])
        path, was, now = conflict.groups()
        seen = "in other files, here" if line.at is None else f"before, in the line at byte {line.at}"
        raise SchemaError(
            f"{self._where}: the types of a column differ: {_shown(path)!r} is {was} {seen} {now}. Write it again with "
            "one type a key, or leave the column out: columns= with the names of the others."
        ) from error

    def _set(self, schema: pa.Schema) -> None:
        self.schema = schema
        while sum(map(_keys, self.schema.types)) > _MOST_KEYS:
            largest = max(self.schema, key=lambda field: _keys(field.type)).name
            if self._columns is None or largest in self._columns:
                raise SchemaError(
                    f"{self._where}: there are more than {_MOST_KEYS:,} keys, most of them in {largest!r}, so that they "
                    "are values. Write them as values of one key, or leave the column out: columns= with the names of "
                    "the others."
                )
            self._leave_out({largest})

    def _leave_out(self, keys: set[str]) -> None:
        self.left_out |= keys
        self.schema = pa.schema([field for field in self.schema if field.name not in keys])


def infer_schema(lines: Iterable[bytes]) -> pa.Schema:
    """The columns that pyarrow finds in JSON lines.

    Raises:
        pyarrow.ArrowInvalid: a line does not decode, or a key has values of no one type.
    """
    text = b"\n".join(lines)
    options = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    return pa_json.read_json(io.BytesIO(text), read_options=options).schema


def learn_schema(text: bytes, where: str, columns: Sequence[str] | None = None) -> pa.Schema:
    """The columns of a text of JSON lines; see `JsonSchema`."""
    learned, lines = JsonSchema(where, columns), NewLines()
    learned.add(lines.feed(text))
    learned.add(lines.rest())
    return learned.schema


def check_keys(seen: pa.Schema, wanted: pa.Schema, where: str, columns: Collection[str] | None = None) -> None:
    """Raise SchemaError if JSON lines have a key that `wanted` lacks, also a nested one.

    columns: the names that are read, None for all; other keys may be there.
    """
    types = dict(zip(wanted.names, wanted.types, strict=True))
    for field in seen:
        if columns is not None and field.name not in columns:
            continue
        key = _missing(field.type, types[field.name], field.name) if field.name in types else field.name
        if key:
            raise SchemaError(
                f"{where} has the key {key!r}, which the schema lacks. Add it to schema=, leave schema= out so that all "
                "keys are found, or name the columns to read: columns=."
            )


def _missing(seen: pa.DataType, wanted: pa.DataType, path: str) -> str:
    """The path of the first key of `seen` that `wanted` lacks; "" if it has all."""
    if is_list(seen) and is_list(wanted):
        return _missing(seen.value_type, wanted.value_type, f"{path}[]")
    if not (pa.types.is_struct(seen) and pa.types.is_struct(wanted)):
        return ""
    types = {field.name: field.type for field in wanted}
    paths = ((field, f"{path}.{field.name}") for field in seen)
    found = (_missing(field.type, types[field.name], at) if field.name in types else at for field, at in paths)
    return next(filter(None, found), "")


def _example(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """An object of which pyarrow infers these fields."""
    return {field.name: _value(field.type) for field in fields}


def _value(data_type: pa.DataType) -> Any:
    types = pa.types
    if types.is_struct(data_type):
        return _example(data_type)
    if types.is_list(data_type):
        return [_value(data_type.value_type)]
    if types.is_timestamp(data_type):
        return "2000-01-01"
    return next((value for is_kind, value in _VALUES if is_kind(data_type)), None)


_VALUES = ((pa.types.is_boolean, True), (pa.types.is_integer, 1), (pa.types.is_floating, 0.5), (pa.types.is_string, "x"))


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _conflict(key: str, *objects: Mapping[str, Any]) -> bool:
    """Whether the values of a key in these objects have no one type."""
    try:
        infer_schema(_encoded({key: each[key]}) for each in objects if key in each)
    except pa.ArrowInvalid:
        return True
    return False


def _keys(data_type: pa.DataType) -> int:
    """The number of keys that a column takes, itself included."""
    inner = (data_type.field(i).type for i in range(data_type.num_fields))
    return sum(map(_keys, inner)) + (not pa.types.is_list(data_type))


def _shown(path: str) -> str:
    """A path as users write it: a/b/[]/c is a.b[].c."""
    return path.replace("/[]", "[]").replace("/", ".")
