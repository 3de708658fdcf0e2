"""Convert columns of numbers to the types of `dtypes=`.

Columns of record batches are converted before they are shaped, so that nulls, stacks and slabs see numbers of the
wanted type only. What loses more than rounding is an error, unless "clip" asks for the nearest number.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils._arrow.schema import is_list
from torch_dataloader_utils.errors import SchemaError
from torch_dataloader_utils.shape.arrow_types import Numbers, NumpyType, numpy_dtype
from torch_dataloader_utils.shape.dtypes import NumberTarget, holds_integers, with_number_type
from torch_dataloader_utils.shape.raw_numbers import change_items, plain, raw_numbers, validity

# Digits of a decimal whose unscaled value fits 64 bits.
_DIGITS_OF_INT64 = 18


class Room(NamedTuple):
    """Memory for the numbers of one column, as an array and as a buffer of Arrow."""

    numbers: Numbers
    buffer: pa.Buffer


def converted(name: str, array: pa.Array, target: NumberTarget, room: Room | None = None) -> pa.Array:
    """Return the column with its numbers, also in lists and arrays, in the target's type. Nulls stay nulls.

    Integers of decimals are unscaled: 12.34 of decimal(10, 2) is 1234.

    Args:
        name: Name of the column, for messages.
        room: Memory for a column of one number a row, used if the column has no nulls.

    Raises:
        SchemaError: the type does not hold a value.
    """
    if isinstance(array.type, pa.FixedShapeTensorType):
        wanted = with_number_type(array.type, target.data_type)
        return wanted.wrap_array(converted(name, array.storage, target))
    array = plain(array)
    if is_list(array.type):
        if array.type.value_type == target.data_type:
            return array
        return change_items(array, partial(converted, name, target=target))
    if array.type == target.data_type and room is None:
        return array
    valid = validity(array)
    values = _numbers(array, target)
    if valid is not None:  # what lies under nulls has no meaning
        values = np.where(valid, values, np.zeros((), values.dtype))
    numbers = _cast(values, target, None if room is None else room.numbers)
    if numbers is None:
        raise _misfit(name, array, values, target)
    if room is not None and valid is None:
        return pa.Array.from_buffers(target.data_type, len(array), [None, room.buffer])
    if pt.is_boolean(target.data_type):
        numbers = numbers.view(np.bool_)
    return pa.array(numbers, target.data_type, mask=None if valid is None else ~valid)


def _numbers(array: pa.Array, target: NumberTarget) -> Numbers:
    """Return the numbers of a column without lists; what nulls hold is undefined."""
    if not pt.is_decimal(array.type):
        numbers = raw_numbers(array).values
        return _stored(numbers, numpy_dtype(numbers.type), 1)[:, 0]
    unscaled = _unscaled(array)
    if not pt.is_floating(target.data_type):
        return _large_unscaled(array, target) if unscaled is None else unscaled
    words = _stored(array, np.dtype(np.int64), array.type.bit_width // 64) if unscaled is None else unscaled[:, None]
    # Correctly rounded up to 2^53, which one of seven numbers of pyarrow's cast (26.0.1) is not.
    low, power = words[:, 0], float(10 ** abs(array.type.scale))
    floats: Numbers = low / power if array.type.scale >= 0 else low * power
    if unscaled is None and not (is_exact := _are_exact(words)).all():
        floats = np.where(is_exact, floats, np.asarray(array.cast(pa.float64()).fill_null(0)))
    return floats


def _are_exact(words: Numbers) -> npt.NDArray[np.bool_]:
    """Return which integers fit 64 bits and a double: they have at most 53 bits before the zeros at their end."""
    low = words[:, 0]
    size = np.abs(low).view(np.uint64)
    is_exact: npt.NDArray[np.bool_] = size >> 53 <= (size & (0 - size)) >> 1
    return is_exact & _fit_int64(words)


def _fit_int64(words: Numbers) -> npt.NDArray[np.bool_]:
    fits: npt.NDArray[np.bool_] = (words[:, 1:] == (words[:, 0] >> 63)[:, None]).all(axis=1)
    return fits


def _unscaled(array: pa.Array) -> npt.NDArray[np.int64] | None:
    """Return the unscaled integers of decimals of up to 18 digits; None for longer decimals."""
    if array.type.precision > _DIGITS_OF_INT64:
        return None
    words = array.type.bit_width // 64
    if not words:  # decimal32
        return _stored(array, np.dtype(np.int32), 1)[:, 0].astype(np.int64)
    lowest: npt.NDArray[np.int64] = _stored(array, np.dtype(np.int64), words)[:, 0]
    return lowest


def _large_unscaled(array: pa.Array, target: NumberTarget) -> Numbers:
    """Return unscaled integers of more than 18 digits; beyond int64 clipped, or infinite where clipping is an error."""
    words = _stored(array, np.dtype(np.int64), array.type.bit_width // 64)
    low, fits = words[:, 0], _fit_int64(words)
    valid = validity(array)
    if valid is not None:
        fits |= ~valid
    if fits.all():
        return low
    int64, is_negative = np.iinfo(np.int64), words[:, -1] < 0
    if target.loss == "clip":
        return np.where(fits, low, np.where(is_negative, int64.min, int64.max))
    return np.where(fits, 0.0, np.where(is_negative, -np.inf, np.inf))


def _stored(array: pa.Array, dtype: NumpyType, words: int) -> Numbers:
    """Return the words of each value, lowest first, shape [rows, words]."""
    # Counted: without rows, pyarrow gives items of lists in a buffer of any size.
    start, count = array.offset * words, len(array) * words
    return np.frombuffer(array.buffers()[1], dtype, count, start * dtype.itemsize).reshape(-1, words)


def _cast(values: Numbers, target: NumberTarget, out: Numbers | None = None) -> Numbers | None:
    """Return the values in the target's type (0 and 1 for bool); None if the type does not hold them.

    Args:
        out: Memory for the result. None: new memory.
    """
    is_bool = pt.is_boolean(target.data_type)
    dtype = np.dtype(np.uint8) if is_bool else numpy_dtype(target.data_type)
    if out is None:
        # Memory of Arrow's pool: fresh pages would cost more than the conversion, see `reused_memory`.
        out = np.frombuffer(pa.allocate_buffer(len(values) * dtype.itemsize), dtype)
    if pt.is_floating(target.data_type):
        return _as_floats(values, out, target.loss)
    lowest, highest = (0, 1) if is_bool else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return _as_integers(values, out, lowest, highest, clips=target.loss == "clip")


def _as_floats(values: Numbers, out: Numbers, loss: str) -> Numbers | None:
    limit = 2 ** (np.finfo(out.dtype).nmant + 1)
    is_checked = loss == "exact" and values.dtype.kind in "iu" and not holds_integers(values.dtype, out.dtype)
    if is_checked and (int(values.min(initial=0)) < -limit or int(values.max(initial=0)) > limit):
        return None
    try:
        with np.errstate(over="ignore" if loss == "clip" else "raise", under="ignore", invalid="ignore"):
            np.copyto(out, values, casting="unsafe")
    except FloatingPointError:
        return None
    return out


def _as_integers(values: Numbers, out: Numbers, lowest: int, highest: int, *, clips: bool) -> Numbers | None:
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
        if clips:
            values = np.trunc(np.nan_to_num(values, posinf=np.inf, neginf=-np.inf))
        # The bound is a power of two, which floats hold exactly; the highest int64 is not.
        is_low, is_high = values < lowest, values >= highest + 1
        if not clips and not (np.all(np.trunc(values) == values) and not is_low.any() and not is_high.any()):
            return None
        np.copyto(out, np.where(is_low | is_high, 0, values), casting="unsafe")
        out[is_low], out[is_high] = lowest, highest
        return out
    if len(values) and (int(values.min()) < lowest or int(values.max()) > highest):
        if not clips:
            return None
        kept = np.iinfo(values.dtype)
        values = np.clip(values, max(lowest, int(kept.min)), min(highest, int(kept.max)))
    np.copyto(out, values, casting="unsafe")
    return out


def _misfit(name: str, array: pa.Array, values: Numbers, target: NumberTarget) -> SchemaError:
    """Return the error about the first value that the target does not hold. values: see `_cast`; nulls are 0."""
    first = next(place for place in range(len(values)) if _cast(values[place : place + 1], target) is None)
    why, is_decimal = "", pt.is_decimal(array.type)
    if target.loss == "exact" and values.dtype.kind in "iu":
        why = " without rounding"
    elif is_decimal and not pt.is_floating(target.data_type):
        why = " as an unscaled integer"
    wide = "float64" if is_decimal or pt.is_floating(array.type) else "int64"
    if pt.is_uint64(array.type):
        wide = "uint64"
    key, others = target.stack or name, f'"*": "{target.name}", ' if target.loss == "exact" else ""
    try:
        seen = array[first].as_py()
    except (OverflowError, ValueError):  # a time that Python does not hold
        seen = values[first]
    return SchemaError(
        f"column {name!r} ({array.type}) has {seen!s}, which {target.name} does not hold{why}. Pass "
        f'dtypes={{{others}{key!r}: "{wide}"}}, or {key!r}: ("clip", "{target.name}") to take the nearest number.'
    )
