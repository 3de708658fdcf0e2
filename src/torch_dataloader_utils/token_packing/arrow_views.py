"""numpy arrays as Arrow arrays over the same memory, and numpy memory from Arrow's pool, which keeps its pages."""

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._core.inventory import Int64s


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An uninitialised array; of Arrow's pool, because touching fresh pages costs as much as a copy."""
    memory = pa.allocate_buffer(prod(shape) * dtype.itemsize)
    array: npt.NDArray[Any] = np.frombuffer(memory, dtype=dtype).reshape(shape)
    return array


def fixed_lists(rows: npt.NDArray[Any]) -> pa.FixedSizeListArray:
    """A matrix [rows, width] of numbers or bools as one list of `width` values a row."""
    flat = rows.reshape(-1)
    if rows.dtype == np.bool_:
        bits = np.packbits(flat, bitorder="little")
        values = pa.Array.from_buffers(pa.bool_(), len(flat), [None, pa.py_buffer(bits)])
    else:
        values = pa.array(flat)
    return pa.FixedSizeListArray.from_arrays(values, rows.shape[1])


def strings(values: npt.NDArray[Any], borders: Int64s) -> pa.LargeBinaryArray:
    """The bytes of values[borders[i]:borders[i + 1]] for all i, as strings over the same memory."""
    ends = pa.py_buffer(np.ascontiguousarray(borders, dtype=np.int64) * values.itemsize)
    return pa.Array.from_buffers(pa.large_binary(), len(borders) - 1, [None, ends, pa.py_buffer(values)])
