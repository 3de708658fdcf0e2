"""Take raw numbers and validity out of Arrow arrays, also of slices; arrays without nulls are not copied."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils._arrow.batches import decode_runs
from torch_dataloader_utils.shape.arrow_types import is_bool8, numpy_dtype, raw_type

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawNumbers:
    """Numbers of a column, flat.

    values: Arrow array of the raw type (see `raw_type`), one entry a number; the entry of a null is undefined.
    valid: bool, one entry a number; None without nulls.
    """

    values: pa.Array
    valid: Bools | None

    def filled(self, value: float) -> pa.Array:
        """Return the values with `value` in place of nulls. Values without nulls are not copied."""
        if self.valid is None:
            return self.values
        dtype = numpy_dtype(self.values.type)
        start, count = self.values.offset, len(self.values)
        # Memory of Arrow's pool: fresh pages would cost more than the copy, see `reused_memory`.
        numbers = np.frombuffer(pa.allocate_buffer(count * dtype.itemsize), dtype)
        np.copyto(numbers, np.frombuffer(self.values.buffers()[1], dtype)[start : start + count])
        np.putmask(numbers, ~self.valid, value)
        return pa.array(numbers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawLists:
    """List column; null rows are empty.

    items: items of all rows. offsets: start of each row, int64 [rows + 1], from 0. valid: bool [rows], False at nulls;
        None without nulls.
    """

    items: RawNumbers
    offsets: npt.NDArray[np.int64]
    valid: Bools | None


def plain(array: pa.Array) -> pa.Array:
    """Return the array without dictionary or run-end encoding, and a tensor column as its lists."""
    if pt.is_dictionary(array.type):
        return plain(array.dictionary_decode())
    if pt.is_run_end_encoded(array.type):
        return plain(decode_runs(array))
    return array.storage if isinstance(array.type, pa.FixedShapeTensorType) else array


def change_items(array: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return a column of lists with its items changed. Only items of the array's rows are changed."""
    return next(split_items(array, lambda items: [change(items)]))


def split_items(array: pa.Array, split: Callable[[pa.Array], Iterable[pa.Array]]) -> Iterator[pa.Array]:
    """Yield columns of lists of the same lengths, one for each array that `split` makes of the items.

    Only items of the array's rows are split.
    """
    valid = validity(array)
    mask = None if valid is None else pa.array(~valid)
    if pt.is_fixed_size_list(array.type):
        size = array.type.list_size
        for items in split(array.values.slice(array.offset * size, len(array) * size)):
            yield pa.FixedSizeListArray.from_arrays(items, size, mask=mask)
        return
    offsets = array.offsets
    first, last = (offsets[0].as_py(), offsets[-1].as_py()) if len(array) else (0, 0)
    from_zero = pc.subtract(offsets, pa.scalar(first, offsets.type))
    kind = pa.LargeListArray if pt.is_large_list(array.type) else pa.ListArray
    for items in split(array.values.slice(first, last - first)):
        yield kind.from_arrays(from_zero, items, mask=mask)


def validity(array: pa.Array) -> Bools | None:
    """Return bool [rows], False at nulls; None without nulls."""
    if array.null_count == 0:
        return None
    return _unpack_bits(array.is_valid()).view(np.bool_)


def _unpack_bits(array: pa.BooleanArray) -> npt.NDArray[np.uint8]:
    """Return 0 or 1 for each value of a bool array, undefined for nulls. Takes a seventh of the time of a cast."""
    start, count = array.offset, len(array)
    packed = np.frombuffer(array.buffers()[1], np.uint8)[start // 8 : (start + count + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[start % 8 : start % 8 + count]


def raw_numbers(array: pa.Array) -> RawNumbers:
    """Return the numbers of a column that `classify` calls a NumberType.

    A null row of a fixed-size list counts as `list_size` nulls.
    """
    array = plain(array)
    if pt.is_fixed_size_list(array.type):
        size, rows = array.type.list_size, len(array)
        # `.values` ignores slices and `.flatten()` drops null rows: cut the child by hand.
        child = raw_numbers(array.values.slice(array.offset * size, rows * size))
        valid = validity(array)
        if valid is None:
            return child
        of_numbers = np.repeat(valid, len(child.values) // rows)
        return RawNumbers(values=child.values, valid=of_numbers if child.valid is None else of_numbers & child.valid)
    raw = raw_type(array.type)
    if is_bool8(array.type):
        values = pa.array(_zeros_and_ones(array.storage))
    elif pt.is_boolean(array.type):
        values = pa.array(_unpack_bits(array))
    else:
        values = array if raw == array.type else array.view(raw)
    return RawNumbers(values=values, valid=validity(array))


def _zeros_and_ones(array: pa.Int8Array) -> npt.NDArray[np.uint8]:
    """Return bool8 values as 0 and 1: any byte but 0 is true. Values without other bytes are not copied."""
    values = np.frombuffer(array.buffers()[1], np.uint8)[array.offset : array.offset + len(array)]
    return values if values.max(initial=0) <= 1 else (values != 0).view(np.uint8)


def raw_lists(array: pa.Array) -> RawLists:
    """Return the lists of a column that `classify` calls a ListType."""
    array = plain(array)
    valid = validity(array)
    offsets = array.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    if valid is not None and lengths[~valid].any():  # Arrow lets a null row cover values; `.flatten()` skips them
        lengths[~valid] = 0
        items = array.flatten()
        offsets = np.concatenate([[0], np.cumsum(lengths)])
    else:
        items = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        offsets -= offsets[0]
    return RawLists(items=raw_numbers(items), offsets=offsets, valid=valid)
