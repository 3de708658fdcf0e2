"""Classify Arrow types by kinds of columns: numbers of a fixed shape, lists of such numbers, or Python objects."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import SchemaError

Numbers = npt.NDArray[Any]
"""Array of numbers of any dtype."""

NumpyType = np.dtype[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberType:
    """Kind of column with an array of `shape` numbers in every row; shape () is one number.

    element: logical Arrow type of the numbers (timestamp[us], bool, float, ...); bool for bool8.
    permutation: axes of `shape` in the order of batches, () for stored order (tensor columns only).
    """

    element: pa.DataType
    shape: tuple[int, ...] = ()
    permutation: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListType:
    """Kind of column with a list of any length in every row; items are numbers of a fixed shape."""

    item: NumberType


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectType:
    """Kind of column without a tensor form: rows stay Arrow until a batch asks for Python objects."""

    data_type: pa.DataType


ColumnType = NumberType | ListType | ObjectType


def element_of(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type of the numbers, also inside lists; for objects the type of the objects."""
    match kind:
        case NumberType(element=element) | ListType(item=NumberType(element=element)):
            return element
        case ObjectType(data_type=data_type):
            return data_type


def raw_type(element: pa.DataType) -> pa.DataType | None:
    """Return the Arrow type of the raw numbers of `element`; None if `element` has no fixed-width number.

    Integers and floats are their own raw type; bool is uint8 (0 or 1); dates, times, timestamps and durations are
    int32 or int64 in their own unit. Decimals have no raw type: no float holds a decimal exactly.
    """
    if pt.is_integer(element) or pt.is_floating(element):
        return element
    if pt.is_boolean(element):
        return pa.uint8()
    if pt.is_date32(element) or pt.is_time32(element):
        return pa.int32()
    if pt.is_temporal(element) and not pt.is_interval(element):
        return pa.int64()
    return None


def numpy_dtype(element: pa.DataType) -> NumpyType:
    """Return the numpy dtype of output "numpy": datetime64 and timedelta64 for dates, timestamps and durations.

    numpy has no time of day, so time32 and time64 stay integers in their unit. Time zones are dropped: values are UTC,
    as in Arrow.
    """
    if pt.is_boolean(element):
        return np.dtype(np.bool_)
    if pt.is_timestamp(element):
        return np.dtype(f"datetime64[{element.unit}]")
    if pt.is_duration(element):
        return np.dtype(f"timedelta64[{element.unit}]")
    if pt.is_date(element):
        return np.dtype("datetime64[D]" if pt.is_date32(element) else "datetime64[ms]")
    raw: pa.DataType = raw_type(element)
    # Not to_pandas_dtype(): with older versions of pyarrow it needs pandas.
    kind = "f" if pt.is_floating(raw) else "u" if pt.is_unsigned_integer(raw) else "i"
    return np.dtype(f"{kind}{raw.bit_width // 8}")


def classify(data_type: pa.DataType) -> ColumnType:
    """Return the kind of column of this type. Dictionaries and run ends count as their values.

    list<list<int>>, list<string>, string, struct, map, decimal, list_view      Python objects
    list<float>, large_list<timestamp>, list<fixed_size_list<float>[3]>          ragged
    fixed_size_list<fixed_size_list<int>[3]>[2]                                  numbers of shape (2, 3)
    """
    data_type = decoded_type(data_type)
    if raw_type(data_type) is not None:
        return NumberType(element=data_type)
    if isinstance(data_type, pa.FixedShapeTensorType):
        permutation = tuple(data_type.permutation or ())
        return NumberType(element=data_type.value_type, shape=tuple(data_type.shape), permutation=permutation)
    if pt.is_fixed_size_list(data_type):
        item = classify(data_type.value_type)
        if isinstance(item, NumberType) and not item.permutation:
            return NumberType(element=item.element, shape=(data_type.list_size, *item.shape))
    if is_ragged(data_type):
        item = classify(data_type.value_type)
        if isinstance(item, NumberType) and not item.permutation:
            return ListType(item=item)
    return ObjectType(data_type=data_type)


def decoded_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type without dictionary or run-end encoding, and bool8 as bool."""
    while pt.is_dictionary(data_type) or pt.is_run_end_encoded(data_type):
        data_type = data_type.value_type
    return pa.bool_() if is_bool8(data_type) else data_type


def is_ragged(data_type: pa.DataType) -> bool:
    """Return whether values are lists of any length."""
    return bool(pt.is_list(data_type) or pt.is_large_list(data_type))


def is_bool8(data_type: pa.DataType) -> bool:
    """Return whether this is Arrow's canonical extension type of bools of one byte."""
    return isinstance(data_type, pa.BaseExtensionType) and data_type.extension_name == "arrow.bool8"


def python_objects(array: pa.Array | pa.ChunkedArray, column: str = "") -> list[Any]:
    """Return one Python object a row.

    column: name of the column, for messages.

    Raises:
        SchemaError: Python has no such values: times after the year 9999, times in zones that this system does not
            know, or structs with two fields of one name.
    """
    try:
        objects: list[Any] = array.to_pylist()
    except (OverflowError, ValueError, KeyError, pa.ArrowException) as error:  # an unknown zone: KeyError or Arrow's
        named = f"column {column!r}" if column else "a column"
        raise SchemaError(
            f"{named} of type {array.type} has values that Python objects cannot hold ({error}). Leave it out with "
            'columns=, or take it as it is with output_format="arrow".'
        ) from error
    return objects
