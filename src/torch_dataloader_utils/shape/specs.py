"""Check the options of columns, stacks and nulls once, and decide the specification of each column for a shaper."""

import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils._arrow.schema import FieldPath, is_binary, is_utf8, nested_path
from torch_dataloader_utils._core.arguments import check_has_order
from torch_dataloader_utils.errors import ConfigError, which_column
from torch_dataloader_utils.shape.arrow_types import (
    ColumnType,
    NumberType,
    ObjectType,
    classify,
    element_of,
    is_ragged,
    numpy_dtype,
    raw_type,
)

MASK_SUFFIX = "_mask"
_FORMS = '"error", "mask", "fill" (with zeros), ("fill", value) or {"fill": value}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Natural:
    """Default policy: a null is NaN in floats, None in Python lists, and an error in all other columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Policy that makes every null an error, also in floats and Python lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Policy that fills nulls with `value` (raw: an int, float or bool for numbers); a null list becomes empty."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Policy that adds a bool column `<column>_mask`, True at valid values. A null is zero (None in Python lists)."""


NullPolicy = Natural | Refuse | Fill | Mask


def parse_nulls(nulls: object, columns: Mapping[str, ColumnType]) -> dict[str, NullPolicy]:
    """Return the policy of every column in `columns`.

    nulls: None, one policy for all columns, or a dict of column -> policy. One fill value for all columns is for
        columns that become tensors; Python lists keep None. {"fill": x} is a policy for all columns unless a column is
        called "fill". "fill" without a value is `_zero` of each column.

    Raises:
        ConfigError: the policy or the column does not exist, or the column's type cannot hold the fill value.
    """
    if nulls is None:
        return dict.fromkeys(columns, Natural())
    if isinstance(nulls, Mapping) and ("fill" in columns or set(nulls) != {"fill"}):
        missing = sorted(map(str, set(nulls) - set(columns)))
        if missing:
            raise ConfigError(
                f"nulls= names {', '.join(missing)}, which is not read; {which_column(missing[0], columns)} "
                "Correct the name, or name it in columns= too."
            )
        return {
            name: _parse_policy(nulls[name], name, kind) if name in nulls else Natural()
            for name, kind in columns.items()
        }
    policies: dict[str, NullPolicy] = {}
    for name, kind in columns.items():
        is_fill = not isinstance(nulls, str)
        policies[name] = Natural() if is_fill and isinstance(kind, ObjectType) else _parse_policy(nulls, name, kind)
    return policies


def _parse_policy(policy: Any, name: str, kind: ColumnType) -> NullPolicy:
    match policy:
        case "error":
            return Refuse()
        case "mask":
            return Mask()
        case "fill":
            return Fill(value=_zero(kind))
        case ("fill", value):
            return Fill(value=_fill_value(value, name, kind))
        case {"fill": value} if len(policy) == 1:
            return Fill(value=_fill_value(value, name, kind))
        case _:
            raise ConfigError(f"nulls= for column {name!r} is {policy!r}; a policy is {_FORMS}.")


def _zero(kind: ColumnType) -> Any:
    """Return what the policy "fill" makes of a null: 0, False or the epoch; in Python lists "", b"", [] or None.

    Lists and maps become empty, bytes of a fixed length zeros. Other objects (structs, UUIDs, ...) have no zero.
    """
    if not isinstance(kind, ObjectType):
        return 0
    data_type = kind.data_type
    if pt.is_decimal(data_type):
        return Decimal(0)
    if pt.is_fixed_size_binary(data_type):
        return bytes(data_type.byte_width)
    if is_utf8(data_type):
        return ""
    if is_binary(data_type):
        return b""
    return [] if is_ragged(data_type) or pt.is_map(data_type) else None


def _fill_value(value: object, name: str, kind: ColumnType) -> Any:
    """Return the value to write: raw bits for numbers (a datetime becomes its int64), the value itself for objects.

    Raises:
        ConfigError: the column's type cannot hold the value unchanged (0.5 or -1 for uint8, "x" for int64).
    """
    element = element_of(kind)
    try:
        if isinstance(kind, ObjectType):
            pa.array([value], element)
            return value
        return _raw_value(value, element)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"nulls= fills column {name!r} of type {element} with {value!r}, which it cannot hold ({error}). "
            'Give a value of that type, or use "mask".'
        ) from error


def _held_float(value: Any, element: pa.DataType) -> float:
    if isinstance(value, str):
        raise TypeError("a text is not a number")
    number = float(value)
    with np.errstate(over="ignore"):
        if math.isfinite(number) and not np.isfinite(numpy_dtype(element).type(number)):
            raise OverflowError("it is beyond the largest number of the type")
    return number


def _raw_value(value: Any, element: pa.DataType) -> Any:
    if pt.is_boolean(element):
        if value not in (False, True):
            raise ValueError("a bool column holds True or False")
        return int(value)
    if pt.is_integer(element):
        return pa.array([operator.index(value)], element)[0].as_py()
    if pt.is_floating(element):
        return _held_float(value, element)
    if isinstance(value, np.generic | bool | float):
        raise TypeError("a date or time column holds datetime objects or integers of its unit")
    return pa.array([value], element).view(raw_type(element))[0].as_py()


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """Specification of one column: its name, Arrow type, kind in batches, and null policy.

    is_plain: true if Arrow stores exactly the numbers of batches, so that a column without nulls needs no conversion.
    """

    name: str
    data_type: pa.DataType
    kind: ColumnType
    nulls: NullPolicy
    is_plain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """Specification of a stack: columns of one element type that become one matrix [rows, columns], in this order."""

    name: str
    columns: tuple[ColumnSpec, ...]

    @property
    def has_mask(self) -> bool:
        """True if the stack has a mask matrix: the nulls of at least one column are masked."""
        return any(isinstance(column.nulls, Mask) for column in self.columns)


def select_fields(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of the columns that are delivered, in the order of `columns` (None: all columns).

    Names of fields, such as "user.id", give their struct with these fields only, in the place of the first of them.

    Raises:
        ConfigError: a column does not exist, or a name occurs twice in `columns` or in the schema.
    """
    there = Counter(schema.names)
    names = list(there.elements() if columns is None else columns)
    paths: dict[str, list[FieldPath]] = {}
    for name in names:
        path = (name,) if name in there else nested_path(schema, name)
        if not path:
            raise ConfigError(f"columns= names {name!r}, which the data set does not have; {which_column(name, there)}")
        paths.setdefault(path[0], []).append(path[1:])
    for name, count in Counter(names).items():
        if count > 1 or there[name] > 1:
            where = "columns=" if count > 1 and columns is not None else "the data set"
            raise ConfigError(f"{where} has column {name!r} more than once; a batch needs distinct names.")
    fields = {field.name: field for field in schema}
    return pa.schema([_with_fields(fields[name], inside) for name, inside in paths.items()])


def _with_fields(field: pa.Field, paths: Sequence[FieldPath]) -> pa.Field:
    """Return the field, or its struct with these fields only. paths: below the field; () is the whole field."""
    if () in paths:
        return field
    inside: dict[str, list[FieldPath]] = {}
    for path in paths:
        inside.setdefault(path[0], []).append(path[1:])
    return field.with_type(pa.struct([_with_fields(field.type.field(name), below) for name, below in inside.items()]))


def column_specs(schema: pa.Schema, nulls: object) -> tuple[ColumnSpec, ...]:
    """Return the specification of each field of `schema`. For `nulls` and errors see `parse_nulls`."""
    kinds = {field.name: classify(field.type) for field in schema}
    policies = parse_nulls(nulls, kinds)
    return tuple(
        ColumnSpec(
            name=field.name,
            data_type=field.type,
            kind=kinds[field.name],
            nulls=policies[field.name],
            is_plain=raw_type(field.type) == field.type,
        )
        for field in schema
    )


def stack_specs(stack: Mapping[str, Sequence[str]] | None, columns: Sequence[ColumnSpec]) -> tuple[StackSpec, ...]:
    """Check `stack` (matrix name -> column names), and return the specification of each matrix.

    columns: The columns of a stack have one type; see `dtypes.find_targets`.

    Raises:
        ConfigError: a column does not hold one number a row; and see `stack_members`.
    """
    by_name = {column.name: column for column in columns}
    return tuple(
        StackSpec(name=name, columns=_of_numbers(name, [by_name[member] for member in members]))
        for name, members in stack_members(stack, by_name).items()
    )


def stack_members(stack: Mapping[str, Sequence[str]] | None, columns: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Check the names in `stack` (matrix name -> column names), and return them.

    Raises:
        ConfigTypeError: the names of a stack are a set.
        ConfigError: a column is not in `columns` or is in two stacks; or a stack is empty.
    """
    known = dict.fromkeys(columns)
    stacks: dict[str, tuple[str, ...]] = {}
    seen: dict[str, str] = {}
    for name, given in (stack or {}).items():
        check_has_order(f"stack[{name!r}]", given)
        members = () if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
        if not members:
            raise ConfigError(f"stack={{{name!r}: {given!r}}}: give a list of one or more column names.")
        for member in members:
            if not isinstance(member, str) or member not in known:
                raise ConfigError(
                    f"stack={{{name!r}: ...}} names column {member!r}, which is not read; "
                    f"{which_column(member, known)} Correct the name, or name it in columns= too."
                )
            if member in seen:
                raise ConfigError(f"column {member!r} is in stack {seen[member]!r} and again in {name!r}; keep one.")
            seen[member] = name
        stacks[name] = members
    return stacks


def _of_numbers(name: str, members: list[ColumnSpec]) -> tuple[ColumnSpec, ...]:
    for member in members:
        if not isinstance(member.kind, NumberType) or member.kind.shape:
            raise ConfigError(
                f"stack {name!r}: column {member.name!r} is {member.data_type}; only columns of one number a row "
                "stack. Leave it out of the stack, or encode= text; batch[name].to_padded() makes a matrix of lists."
            )
    return tuple(members)


def output_names(columns: Sequence[ColumnSpec], stacks: Sequence[StackSpec]) -> tuple[str, ...]:
    """Return the names of a batch's entries: every stack (and its mask), then every other column (and its mask).

    Raises:
        ConfigError: two entries would have the same name.
    """
    names: list[str] = []
    for stack in stacks:
        names += [stack.name, stack.name + MASK_SUFFIX] if stack.has_mask else [stack.name]
    for column in columns:
        names += [column.name, column.name + MASK_SUFFIX] if isinstance(column.nulls, Mask) else [column.name]
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(
                f"two entries of a batch would be called {name!r}: stacks, masks (<column>{MASK_SUFFIX}) and columns "
                "share one namespace. Rename the stack or the column."
            )
    return tuple(names)
