"""Check `dtypes=`, and decide the number type of each column and stack. `casting` converts columns to these types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch

from torch_dataloader_utils._arrow.schema import is_list, is_number
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, which_column
from torch_dataloader_utils.shape.arrow_types import NumpyType, decoded_type, numpy_dtype, raw_type

Dtypes = Any
"""Value of `dtypes=`: see `check_dtypes`. Not written out, because types of numpy, torch and Arrow are allowed."""

EVERY_NUMBER = "*"
"""Key of `dtypes=` for all columns of numbers that are not named."""

_TYPES = {
    "bool": pa.bool_(),
    "uint8": pa.uint8(),
    "int8": pa.int8(),
    "uint16": pa.uint16(),
    "int16": pa.int16(),
    "uint32": pa.uint32(),
    "int32": pa.int32(),
    "uint64": pa.uint64(),
    "int64": pa.int64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}
_NAMES = {data_type: name for name, data_type in _TYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberTarget:
    """Number type that a column is converted to, and the treatment of values that the type does not hold.

    Attributes:
        name: Name of the type, as numpy and torch have it.
        loss: "round" lets floats round; a fraction that an integer type cuts and a value out of range are errors.
            "exact" makes integers that a float type rounds an error, too. "clip" allows every loss: fractions are cut,
            a value out of range becomes the nearest value of the type (an infinity in float types), NaN becomes 0 in
            integer types.
        stack: Name of the stack whose type this is; "" for the type of a column.
    """

    name: str
    loss: Literal["round", "exact", "clip"] = "round"
    stack: str = ""

    @property
    def data_type(self) -> pa.DataType:
        """Arrow type of the numbers."""
        return _TYPES[self.name]

    @property
    def torch_type(self) -> torch.dtype:
        """Type of the tensor."""
        found: torch.dtype = getattr(torch, self.name)
        return found


def target_of(element: pa.DataType) -> NumberTarget:
    """Return the target that leaves numbers of this type as they are."""
    return NumberTarget(name=_NAMES[element])


_DECIMALS = NumberTarget(name="float64")


def check_dtypes(name: str, value: object) -> dict[str, NumberTarget]:
    """Return `dtypes=` as {column, stack or "*": target}.

        "float32"                                    all columns of numbers
        {"price": "float32", "*": torch.float64}     one column, and all others
        {"age": ("clip", "int8")}                    with loss

    Raises:
        ConfigTypeError: the option has another form. ConfigError: a type is unknown.
    """
    given = value if isinstance(value, Mapping) else {EVERY_NUMBER: value}
    if not all(isinstance(key, str) for key in given):
        raise ConfigTypeError(f'{name}={value!r}: keys are names of columns and stacks, or "*" for all other columns.')
    return {key: _target(name, key, asked) for key, asked in given.items()}


def _target(option: str, key: str, asked: Any) -> NumberTarget:
    if isinstance(asked, NumberTarget):  # options are checked again when they are replaced
        return asked
    clips = isinstance(asked, tuple | list) and len(asked) == 2 and asked[0] == "clip"
    given = asked[1] if clips else asked
    name = _type_name(given)
    if name == "bfloat16":
        raise ConfigError(
            f'{option}={{{key!r}: {asked!r}}}: Arrow and numpy have no bfloat16. Pass "float32", and convert '
            "batches on the device: batch[...].to(torch.bfloat16)."
        )
    if name not in _TYPES:
        raise ConfigError(
            f"{option}={{{key!r}: {asked!r}}} is no number type; types are {', '.join(_TYPES)}, and "
            '("clip", type) for values that the type does not hold.'
        )
    return NumberTarget(name=name, loss="clip" if clips else "exact" if key == EVERY_NUMBER else "round")


def _type_name(given: object) -> str:
    """Return the name of a type of numpy, torch, Arrow or Python; of other values, the value as text."""
    if isinstance(given, pa.DataType):
        return _NAMES.get(given, str(given))
    return np.dtype(given).name if isinstance(given, type | np.dtype) else str(given).removeprefix("torch.")


def find_targets(
    schema: pa.Schema,
    dtypes: Mapping[str, NumberTarget],
    stack: Mapping[str, Sequence[str]],
    *,
    encoded: Sequence[str] = (),
    has_tensors: bool = True,
) -> dict[str, NumberTarget]:
    """Return the target of each column that has to be converted, by name.

    A stack's own type wins over the types of its columns. Without it, columns of several types get the smallest type
    that holds all their values. Decimals become float64 in tensors.

    Args:
        schema: Columns of batches, encoded ones with their encoded types.
        stack: Checked; see `specs.stack_members`.
        encoded: Names of encoded columns: "*" leaves them out, since their numbers are codes.
        has_tensors: Whether batches hold tensors or arrays.

    Raises:
        ConfigError: a name is neither a column nor a stack, a column does not hold numbers, or no type holds all values
            of a stack.
    """
    types = {field.name: field.type for field in schema}
    _check_names(dtypes, types, stack)
    targets: dict[str, NumberTarget] = {}
    for name, data_type in types.items():
        element = number_element(data_type)
        if name in dtypes and name not in stack:
            if element is None:
                raise _no_number(name, name, data_type)
            targets[name] = dtypes[name]
        elif element is None:
            continue
        elif EVERY_NUMBER in dtypes and name not in encoded and _is_number(element):
            targets[name] = dtypes[EVERY_NUMBER]
        elif has_tensors and pt.is_decimal(element):
            targets[name] = _DECIMALS
    for stack_name, columns in stack.items():
        there = {name: types[name] for name in columns}
        if stack_name in dtypes:
            for name, data_type in there.items():
                if number_element(data_type) is None:
                    raise _no_number(stack_name, name, data_type)
            targets |= dict.fromkeys(there, replace(dtypes[stack_name], stack=stack_name))
        else:
            targets |= _common_targets(stack_name, there, targets)
    return {name: target for name, target in targets.items() if number_element(types[name]) != target.data_type}


def _check_names(dtypes: Mapping[str, object], columns: Mapping[str, object], stack: Mapping[str, object]) -> None:
    known = {**columns, **stack}
    for name in dtypes:
        if name not in known and name != EVERY_NUMBER:
            raise ConfigError(
                f"dtypes= names {name!r}, which is neither a column of batches nor a stack; {which_column(name, known)}"
            )


def _no_number(key: str, name: str, data_type: pa.DataType) -> ConfigError:
    way = "encode= makes numbers of text and categories" if key == name else "take it out of the stack"
    return ConfigError(f"dtypes={{{key!r}: ...}}: column {name!r} is {data_type}, which holds no numbers; {way}.")


def _common_targets(
    stack: str, types: Mapping[str, pa.DataType], targets: Mapping[str, NumberTarget]
) -> dict[str, NumberTarget]:
    """Return targets that give all columns of a stack one type; none if they have one type, or are no numbers."""
    elements = {
        name: targets[name].data_type if name in targets else number_element(data_type)
        for name, data_type in types.items()
    }
    distinct = set(elements.values())
    if len(distinct) < 2 or None in distinct:
        return {}
    wide = _common_type([each for each in distinct if each is not None])
    if wide is None:
        shown = ", ".join(f"{name!r} {element}" for name, element in elements.items())
        raise ConfigError(
            f"stack {stack!r} has columns of several types ({shown}), and no type holds all their values. Pass "
            f'dtypes={{{stack!r}: "float32"}}, or "float64", which may round; or stack them apart.'
        )
    return {
        name: NumberTarget(name=wide, loss=targets[name].loss if name in targets else "round")
        for name, element in elements.items()
        if name not in targets or element != _TYPES[wide]
    }


def _common_type(elements: Sequence[pa.DataType]) -> str | None:
    """Return the smallest type that holds every value of all types; None if there is none, as for int64 and float."""
    if any(each not in _NAMES for each in elements):  # times and dates
        return None
    dtypes = [numpy_dtype(each) for each in elements]
    wide = np.result_type(*dtypes)
    return wide.name if all(np.can_cast(dtype, wide) and holds_integers(dtype, wide) for dtype in dtypes) else None


def holds_integers(narrow: NumpyType, wide: NumpyType) -> bool:
    """Return whether a float type holds all integers of another type; numpy calls int64 to float64 safe."""
    return narrow.kind not in "iu" or wide.kind != "f" or 8 * narrow.itemsize <= np.finfo(wide).nmant + 1


def number_element(data_type: pa.DataType) -> pa.DataType | None:
    """Return the type of the numbers of a column, also in lists and arrays; None for a column of other values."""
    data_type = decoded_type(data_type)
    if isinstance(data_type, pa.FixedShapeTensorType):
        return number_element(data_type.value_type)
    if is_list(data_type):
        return number_element(data_type.value_type)
    return data_type if pt.is_decimal(data_type) or raw_type(data_type) is not None else None


def _is_number(element: pa.DataType) -> bool:
    return is_number(element) or bool(pt.is_decimal(element))


def with_number_type(data_type: pa.DataType, element: pa.DataType) -> pa.DataType:
    """Return the type of `converted` columns: the numbers, also in lists and arrays, are of type `element`."""
    data_type = decoded_type(data_type)
    if isinstance(data_type, pa.FixedShapeTensorType):
        return pa.fixed_shape_tensor(
            element, data_type.shape, dim_names=data_type.dim_names, permutation=data_type.permutation
        )
    if pt.is_fixed_size_list(data_type):
        return pa.list_(with_number_type(data_type.value_type, element), data_type.list_size)
    if pt.is_list(data_type):
        return pa.list_(with_number_type(data_type.value_type, element))
    return pa.large_list(with_number_type(data_type.value_type, element)) if pt.is_large_list(data_type) else element
