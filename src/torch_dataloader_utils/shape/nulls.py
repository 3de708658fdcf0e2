"""What nulls become in each column: parses and checks `nulls=` of the loaders."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.shape.arrow_types import ColumnType, ObjectType, element_of, numpy_dtype, raw_type

MASK_SUFFIX = "_mask"
_FORMS = '"error", "mask", ("fill", value) or {"fill": value}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Natural:
    """The default: a null is NaN in floats and None in Python lists; everywhere else it is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """A null is an error, also in floats and Python lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A null becomes `value` (raw: an int, float or bool for numbers); a null list becomes an empty one."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A null becomes zero (None in Python lists) and a bool column `<column>_mask` is True where a value is valid."""


NullPolicy = Natural | Refuse | Fill | Mask


def parse_nulls(nulls: Any, columns: Mapping[str, ColumnType]) -> dict[str, NullPolicy]:
    """The policy of every column in `columns`.

    nulls: None, one policy for all columns, or a dict of column -> policy. One fill value for all columns
    means those that become tensors; Python lists keep None. {"fill": x} is a policy for all columns unless
    a column is called "fill".

    Raises:
        ConfigError: no such policy, no such column, or a fill value that the column's type cannot hold.
    """
    if nulls is None:
        return dict.fromkeys(columns, Natural())
    if isinstance(nulls, Mapping) and ("fill" in columns or set(nulls) != {"fill"}):
        missing = sorted(map(str, set(nulls) - set(columns)))
        if missing:
            raise ConfigError(
                f"nulls= names {', '.join(missing)}, but the columns read are {', '.join(columns)}. "
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
        case ("fill", value):
            return Fill(value=_fill_value(value, name, kind))
        case {"fill": value} if len(policy) == 1:
            return Fill(value=_fill_value(value, name, kind))
        case _:
            raise ConfigError(f"nulls= for column {name!r} is {policy!r}; a policy is {_FORMS}.")


def _fill_value(value: Any, name: str, kind: ColumnType) -> Any:
    """The value as it is written: raw bits for numbers (a datetime becomes its int64), as given for objects.

    Raises:
        ConfigError: the column's type cannot hold it without a change (0.5 or -1 for uint8, "x" for int64).
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
        raise TypeError("a text is no number")
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
