"""Schema of JSON lines, from all lines: every key, also nested keys, in the type that holds all its values.

    pieces of the text  ─►  lines that show a new key, or a new kind of value  ─►  pyarrow infers  ─►  pa.Schema
                            compiled

A line that shows nothing new cannot change the schema: pyarrow's types follow from the kinds of values alone. Without
the compiled module all lines count as new. The schema is the same, and takes many times as long.
"""

import io
import json
import re
import secrets
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.schema import is_list
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils.errors import SchemaError

_SLOTS = 1 << 15
_LINES_AT_ONCE = 256
# More keys than this are values: ids or words. Each key becomes a column that takes memory in every row.
_MOST_KEYS = 10_000
_CONFLICT = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)", re.DOTALL)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _NewLine(NamedTuple):
    """Line that shows a new key, or a new kind of value.

    at: First byte of the line in the text; None for a line that stands for a file. is_noted: Whether its keys and kinds
    count as seen.
    """

    at: int | None
    text: bytes
    is_noted: bool


class JsonSchema:
    """Learner of the columns of JSON lines: of a text that is fed piece by piece in file order, or of several files.

    Types are pyarrow's: null and x is x, integers and floats are float64, times and other texts are text, and objects
    are structs with all their keys. A line that does not decode teaches nothing; it is an error when it is read.

    where: File, for messages. columns: Names of the needed columns, None for all. left_out: Other keys, with values of
    no common type or with too many keys.

        {"a": 1}   {"a": 2.5, "b": [{}]}   {"b": [{"c": "x"}]}      a: double, b: list<struct<c: string>>
    """

    def __init__(self, where: str, columns: Sequence[str] | None = None) -> None:
        self.schema = pa.schema([])
        self.left_out: set[str] = set()
        self._where = where
        self._columns = None if columns is None else frozenset(columns)
        self._seen = np.zeros(_SLOTS, dtype=np.uint64)
        self._root = secrets.randbits(64)
        self._most = _LINES_AT_ONCE
        self._open: list[bytes] = []
        self._position = 0

    def feed(self, piece: bytes) -> None:
        """Learn from the lines that end in the next piece of the text.

        Raises:
            SchemaError: the values of a needed key have no common type, or there are too many keys.
        """
        stop = piece.rfind(b"\n") + 1
        if stop:
            start = piece.find(b"\n") + 1 if self._open else 0
            self._learn_text(b"".join([*self._open, piece[:start]]))
            lines = memoryview(piece)[start:stop]
            self._learn_text(lines if _engine.IS_BUILT else bytes(lines))
            self._open = []
        if stop < len(piece):
            self._open.append(piece[stop:])

    def finish(self) -> None:
        """Learn from the last line, if it has no line end; raise as `feed`."""
        self._learn_text(b"".join(self._open))
        self._open = []

    def _learn_text(self, lines: bytes | memoryview) -> None:
        """Learn from whole lines."""
        start = 0
        while start < len(lines) and (new := self._find(lines, start)):
            damaged = self._learn(new)
            if damaged is not None:
                # The keys of the damaged line count as seen. From here on, each line is learned from before the next
                # line is noted.
                self._seen[:] = 0
                self._most = 1
            last = damaged or new[-1]
            start = (last.at or 0) - self._position + len(last.text)
        self._position += len(lines)

    def _find(self, lines: bytes | memoryview, start: int) -> list[_NewLine]:
        """Return the first lines from `start` on that show a new key or kind of value."""
        if not isinstance(lines, bytes) or _engine.IS_BUILT:
            news = _engine.find_news(memoryview(lines)[start:], self._seen, self._root, self._most)
            found = [
                (start + first, start + stop, bool(is_noted))
                for first, stop, is_noted in struct.iter_unpack("3q", news)
            ]
        else:
            ends = [start - 1]
            while ends[-1] < len(lines) and len(ends) <= _LINES_AT_ONCE:
                ends.append(lines.find(b"\n", ends[-1] + 1) % (len(lines) + 1))
            found = [(first + 1, stop, False) for first, stop in pairwise(ends)]
        return [_NewLine(self._position + first, bytes(lines[first:stop]), is_noted) for first, stop, is_noted in found]

    def add_schema(self, schema: pa.Schema, where: str) -> None:
        """Learn the schema of another file.

        Raises:
            SchemaError: see `feed`.
        """
        if not schema.equals(self.schema):
            self._where = where
            self._learn([_NewLine(None, _encoded(_example(schema)), False)])

    def _learn(self, lines: Sequence[_NewLine]) -> _NewLine | None:
        """Learn from lines up to the first noted line that does not decode, and return that line."""
        try:
            schema = infer_schema([_encoded(_example(self.schema)), *map(self._wanted, lines)])
        except pa.ArrowInvalid as error:
            if len(lines) == 1:
                return self._learn_around(lines[0], error)
            half = len(lines) // 2
            return self._learn(lines[:half]) or self._learn(lines[half:])
        self._set(schema)
        return None

    def _wanted(self, line: _NewLine) -> bytes:
        """Return the line without the keys that are left out."""
        text = line.text.removeprefix(_BYTE_ORDER_MARK)
        value = _object(text) if self.left_out else None
        if value is None:
            return text
        return _encoded({key: each for key, each in value.items() if key not in self.left_out})

    def _learn_around(self, line: _NewLine, error: pa.ArrowInvalid) -> _NewLine | None:
        """Learn from a line that pyarrow refused, without the keys that have values of two kinds."""
        conflict = _CONFLICT.search(str(error))
        if conflict is None:
            return line if line.is_noted else None
        if self._columns is not None:
            known, value = _example(self.schema), _object(self._wanted(line)) or {}
            keys = {key for key in value.keys() - self._columns if _conflict(key, known, value)}
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
        keys = {field.name: _keys(field.type) for field in schema}
        excess = sum(keys.values()) - _MOST_KEYS
        needed = keys.keys() if self._columns is None else self._columns
        left_out: set[str] = set()
        for largest in sorted(keys, key=lambda name: (name in needed, -keys[name])):
            if excess <= 0:
                break
            if largest in needed:
                raise SchemaError(
                    f"{self._where}: there are more than {_MOST_KEYS:,} keys, most of them in {largest!r}, and "
                    "so they look like values. Write them as values of one key, or leave the column out: columns= with "
                    "the names of the others."
                )
            left_out.add(largest)
            excess -= keys[largest]
        if left_out:
            self._leave_out(left_out)

    def _leave_out(self, keys: set[str]) -> None:
        self.left_out |= keys
        self.schema = pa.schema([field for field in self.schema if field.name not in keys])


def join_schemas(schemas: Mapping[pa.Schema, str], columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns of several files of JSON lines: the keys of all files, each in the common type of its values.

    schemas: Schemas of the files, each with the path of one file that has it. columns: See `JsonSchema`.

    Raises:
        SchemaError: the values of a needed key have no common type in these files.
    """
    learned = JsonSchema("", columns)
    for schema, path in schemas.items():
        learned.add_schema(schema, redact(path))
    return learned.schema


def infer_schema(lines: Iterable[bytes]) -> pa.Schema:
    """Return the columns that pyarrow finds in JSON lines.

    Raises:
        pyarrow.ArrowInvalid: a line does not decode, or the values of a key have no common type.
    """
    text = b"\n".join(lines)
    options = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    return pa_json.read_json(io.BytesIO(text), read_options=options).schema


def learn_schema(text: bytes, where: str, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the columns of a text of JSON lines; see `JsonSchema`."""
    learned = JsonSchema(where, columns)
    learned.feed(text)
    learned.finish()
    return learned.schema


def check_keys(seen: pa.Schema, wanted: pa.Schema, where: str, columns: Collection[str] | None = None) -> None:
    """Raise SchemaError if JSON lines have a key that `wanted` lacks, also a nested key.

    columns: Names that are read, None for all. Other keys are not checked.
    """
    types = dict(zip(wanted.names, wanted.types, strict=True))
    for field in seen:
        if columns is not None and field.name not in columns:
            continue
        key = _missing(field.type, types[field.name], field.name) if field.name in types else field.name
        if key:
            raise SchemaError(
                f"{where} has the key {key!r}, which the schema lacks. Add it to schema=, leave schema= and "
                "count_rows=False out so that all keys are found, or name the columns to read: columns=."
            )


def _missing(seen: pa.DataType, wanted: pa.DataType, path: str) -> str:
    """Return the path of the first key of `seen` that `wanted` lacks; "" if no key is missing."""
    if is_list(seen) and is_list(wanted):
        return _missing(seen.value_type, wanted.value_type, f"{path}[]")
    if not (pa.types.is_struct(seen) and pa.types.is_struct(wanted)):
        return ""
    types = {field.name: field.type for field in wanted}
    paths = ((field, f"{path}.{field.name}") for field in seen)
    found = (_missing(field.type, types[field.name], at) if field.name in types else at for field, at in paths)
    return next(filter(None, found), "")


def _example(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """Return an object from which pyarrow infers these fields."""
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


_VALUES = (
    (pa.types.is_boolean, True),
    (pa.types.is_integer, 1),
    (pa.types.is_floating, 0.5),
    (pa.types.is_string, "x"),
)


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _conflict(key: str, *objects: Mapping[str, Any]) -> bool:
    """Return whether the values of a key in these objects have no common type."""
    try:
        infer_schema(_encoded({key: each[key]}) for each in objects if key in each)
    except pa.ArrowInvalid:
        return True
    return False


def _keys(data_type: pa.DataType) -> int:
    """Return the number of keys that a column takes, itself included."""
    inner = (data_type.field(i).type for i in range(data_type.num_fields))
    return sum(map(_keys, inner)) + (not pa.types.is_list(data_type))


def _shown(path: str) -> str:
    """Return a path as users write it: a/b/[]/c is a.b[].c."""
    return path.replace("/[]", "[]").replace("/", ".")
