"""A pyarrow expression as a tree that can be walked.

pyarrow gives no way to look into an expression, but it can serialize one: the public pickle protocol hands out an
Arrow IPC file that Arrow's C++ library reads back. Its schema metadata is the tree, in prefix order, and its columns
(one row) are the literals and options:

    (a > 5) and is_null(c)      call and_kleene, call greater, field_ref a, literal 0, end greater,
                                call is_null, field_ref c, options 1, end is_null, end and_kleene

Source: Arrow C++, `compute::Serialize(Expression)`. Whatever does not look exactly like that is an UnknownForm, so that
another release of Arrow with another format costs pruning, never rows.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class UnknownForm(Exception):  # noqa: N818 - a signal inside this package, never seen by users
    """The expression cannot be walked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A pyarrow Scalar."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRef:
    """A column by name, or a field inside a struct column by several."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A compute function; `options` is a struct as Arrow's function options class names its fields."""

    function: str
    arguments: tuple["Node", ...]
    options: dict[str, Any] = field(default_factory=dict)


Node = Literal | FieldRef | Call


def parse_expression(expression: pc.Expression) -> Node:
    """The tree of an expression.

    Raises:
        UnknownForm: not in the form that this module knows.
    """
    try:
        (serialized,) = expression.__reduce__()[1]
        with pa.ipc.open_file(pa.BufferReader(serialized)) as reader:
            batch = reader.get_batch(0)
        pairs = iter(_metadata_pairs(batch.schema))
        tree = _parse(next(pairs), pairs, batch)
        leftover = next(pairs, None)
    except (pa.ArrowException, StopIteration, ValueError, TypeError, IndexError, RecursionError) as error:
        raise UnknownForm(str(error)) from error
    if leftover is not None:
        raise UnknownForm(f"{leftover} follows the end")
    return tree


def _parse(token: tuple[str, str], rest: Iterator[tuple[str, str]], batch: Any) -> Node:
    match token:
        case ("literal", index):
            return Literal(value=batch.column(int(index))[0])
        case ("field_ref", name):
            return FieldRef(path=(name,))
        case ("nested_field_ref", length):
            parts = [_parse(next(rest), rest, batch) for _ in range(int(length))]
            return FieldRef(path=tuple(name for part in parts for name in _path(part)))
        case ("call", function):
            return _parse_call(function, rest, batch)
        case _:
            raise UnknownForm(str(token))


def _parse_call(function: str, rest: Iterator[tuple[str, str]], batch: Any) -> Call:
    arguments: list[Node] = []
    options: dict[str, Any] = {}
    for token in rest:
        match token:
            case ("end", name) if name == function:
                return Call(function=function, arguments=tuple(arguments), options=options)
            case ("options", index):
                scalar = batch.column(int(index))[0]
                options = {name: scalar[name] for name in scalar.type.names}
            case _:
                arguments.append(_parse(token, rest, batch))
    raise UnknownForm(f"{function} has no end")


def _path(node: Node) -> tuple[str, ...]:
    if isinstance(node, FieldRef):
        return node.path
    raise UnknownForm("a place inside a struct is no name")


class _ArrowSchema(ctypes.Structure):
    """The start of the C data interface's ArrowSchema."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata_pairs(schema: pa.Schema) -> list[tuple[str, str]]:
    """The schema's metadata with its order and repeated keys, both of which `schema.metadata` (a dict) drops.

    Read through the Arrow C data interface, whose layout is fixed: int32 number of pairs, then for each key and
    value int32 length and the bytes.
    """
    capsule = schema.__arrow_c_schema__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    place = _ArrowSchema.from_address(get_pointer(capsule, b"arrow_schema")).metadata
    if not place:
        return []
    place += 4
    texts = []
    for _ in range(2 * ctypes.c_int32.from_address(place - 4).value):
        length = ctypes.c_int32.from_address(place).value
        texts.append(ctypes.string_at(place + 4, length).decode())
        place += 4 + length
    return list(zip(texts[::2], texts[1::2], strict=True))
