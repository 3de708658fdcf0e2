"""Expressions of pyarrow as trees, and filters that compare decimals with integers.

pyarrow has no public walk over expressions. The IPC file that the pickle protocol hands out has the tree in the
metadata of its schema, and the values of literals and options in its columns, one row each.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils._arrow.schema import type_holds

_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


class UnknownForm(Exception):  # noqa: N818 - a signal between modules, never seen by users
    """Expression that cannot be walked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A pyarrow Scalar. place: Number of its column among the values of the serialized expression."""

    value: Any
    place: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRef:
    """Reference to a column by name, or to a field inside a struct column by several names."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call of a compute function; `options` is a struct with the field names of Arrow's function options class.

    place: See Literal; the place of the options.
    """

    function: str
    arguments: tuple["Node", ...]
    options: dict[str, Any] = field(default_factory=dict)
    place: int = field(default=-1, compare=False)


Node = Literal | FieldRef | Call


def parse_expression(expression: pc.Expression) -> Node:
    """Return the tree of an expression.

    Raises:
        UnknownForm: the expression is not in the form that this module knows.
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
            return Literal(value=batch.column(int(index))[0], place=int(index))
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
    place = -1
    for token in rest:
        match token:
            case ("end", name) if name == function:
                return Call(function=function, arguments=tuple(arguments), options=options, place=place)
            case ("options", index):
                place = int(index)
                scalar = batch.column(place)[0]
                options = {name: scalar[name] for name in scalar.type.names}
            case _:
                arguments.append(_parse(token, rest, batch))
    raise UnknownForm(f"{function} has no end")


def _path(node: Node) -> tuple[str, ...]:
    if isinstance(node, FieldRef):
        return node.path
    raise UnknownForm("a place inside a struct is not a name")


class _ArrowSchema(ctypes.Structure):
    """Start of the C data interface's ArrowSchema."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata_pairs(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the schema's metadata with its order and repeated keys. `schema.metadata` (a dict) drops both.

    Read through the Arrow C data interface with its fixed layout: int32 number of pairs, then for each key and value
    int32 length and the bytes.
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


def with_decimals(expression: pc.Expression, schema: pa.Schema) -> pc.Expression:
    """Return the expression with decimals where it compares columns of decimals with integers.

    pyarrow compares no decimals with integers, and its `isin` can fail for integers, and for numbers that the column's
    type cannot hold. An integer out of the type's range becomes an infinity, which compares with every value in the
    same way. From sets of `isin`, numbers that the type does not hold are left out: no row has them.

        price is decimal(4, 2)      price > 3, price < 1000, price in (3, 1000)
                                    price > 3.00, price < inf, price in (3.00)
    """
    if not any(type_holds(each.type, pt.is_decimal) for each in schema):
        return expression
    try:
        changes = dict(_find_changes(parse_expression(expression), schema))
    except UnknownForm:
        return expression
    if not changes:
        return expression
    make, (serialized,) = expression.__reduce__()
    with pa.ipc.open_file(pa.BufferReader(serialized)) as reader:
        batch = reader.get_batch(0)
    for place, column in changes.items():
        batch = batch.set_column(place, batch.schema.field(place).with_type(column.type), column)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return make(sink.getvalue())


def _find_changes(node: Node, schema: pa.Schema) -> Iterator[tuple[int, pa.Array]]:
    """Yield (place, new value) of each literal and option that changes. A value is an array of one row."""
    match node:
        case Call(function=function, arguments=(FieldRef() as ref, Literal() as literal)) if function in _COMPARISONS:
            yield from _changed_literal(literal, _decimal_type(ref, schema))
        case Call(function=function, arguments=(Literal() as literal, FieldRef() as ref)) if function in _COMPARISONS:
            yield from _changed_literal(literal, _decimal_type(ref, schema))
        case Call(function="is_in", arguments=(FieldRef() as ref,), options={"value_set": values} as options):
            wanted, seen = _decimal_type(ref, schema), values.type.value_type
            if wanted is not None and (pt.is_integer(seen) or pt.is_decimal(seen)):
                kept = [each for each in values.as_py() if each is None or _holds(wanted, Decimal(each))]
                scalars = options | {"value_set": pa.scalar(kept, pa.list_(wanted))}
                arrays = [pa.array([each.as_py()], each.type) for each in scalars.values()]
                yield node.place, pa.StructArray.from_arrays(arrays, names=list(scalars))
        case Call(arguments=arguments):
            for each in arguments:
                yield from _find_changes(each, schema)


def _changed_literal(literal: Literal, wanted: pa.DataType | None) -> Iterator[tuple[int, pa.Array]]:
    if wanted is None or not pt.is_integer(literal.value.type) or not literal.value.is_valid:
        return
    number = Decimal(literal.value.as_py())
    if _holds(wanted, number):
        yield literal.place, pa.array([number], wanted)
    else:
        yield literal.place, pa.array([float("inf") if number > 0 else float("-inf")])


def _holds(data_type: pa.DataType, number: Decimal) -> bool:
    try:
        pa.scalar(number, data_type)
    except pa.ArrowInvalid:
        return False
    return True


def _decimal_type(ref: FieldRef, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of a column, or of a field inside a column; None for other types, and for negative scales."""
    found: Any = schema
    for name in ref.path:
        index = found.get_field_index(name) if found is schema or pt.is_struct(found) else -1
        if index < 0:
            return None
        found = found.field(index).type
    return found if pt.is_decimal(found) and found.scale >= 0 else None
