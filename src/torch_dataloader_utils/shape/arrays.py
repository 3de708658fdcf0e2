"""numpy batches, and single rows of batches as a map-style data set gives them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils.shape.columns import Column, Lists, Matrix, Objects, Rows
from torch_dataloader_utils.shape.ragged import Ragged


@dataclass(frozen=True, slots=True)
class ArrayOutput:
    """Plain dicts of ndarrays; ragged columns are lists of ndarrays, objects Python lists.

    dtypes: one a column (datetime64, ...); object for Python objects.
    """

    dtypes: tuple[np.dtype[Any], ...]

    def values(self, columns: Sequence[Column]) -> Iterable[Any]:
        """All rows of every column."""
        return (_value(column, dtype) for column, dtype in zip(columns, self.dtypes, strict=True))

    def pieces(self, columns: Sequence[Column], batch_rows: int) -> Sequence[Iterable[Any]]:
        """For every column its pieces of `batch_rows` rows."""
        return [_pieces(column, dtype, batch_rows) for column, dtype in zip(columns, self.dtypes, strict=True)]

    def batch(self, columns: Iterable[tuple[str, Any]], num_rows: int) -> dict[str, Any]:  # noqa: ARG002
        """The batch of these named columns; a dict without columns does not know its row count."""
        return dict(columns)


def _value(column: Column, dtype: np.dtype[Any]) -> Any:
    match column:
        case Rows() | Matrix():
            return _typed(column.value(), dtype)
        case Lists():
            return _list_of_arrays(column.value(), dtype)
        case Objects():
            return column.value()


def _pieces(column: Column, dtype: np.dtype[Any], batch_rows: int) -> Iterable[Any]:
    match column:
        case Rows() | Matrix():
            return _split(_typed(column.value(), dtype), batch_rows)
        case Lists():
            return (_list_of_arrays(piece, dtype) for piece in column.split(batch_rows))
        case Objects():
            return column.split(batch_rows)


def _split(array: npt.NDArray[Any], batch_rows: int) -> list[npt.NDArray[Any]]:
    """Views of `batch_rows` rows; iterating over one more axis is a fifth of the cost of slicing."""
    full = len(array) // batch_rows
    pieces = list(array[: full * batch_rows].reshape(full, batch_rows, *array.shape[1:]))
    if full * batch_rows < len(array):
        pieces.append(array[full * batch_rows :])
    return pieces


def _typed(tensor: Tensor, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The same memory as `dtype`; a copy for date32, whose days numpy keeps in 64 bits."""
    array: npt.NDArray[Any] = tensor.numpy()
    return array.view(dtype) if array.dtype.itemsize == dtype.itemsize else array.astype(dtype)


def _list_of_arrays(rows: Ragged, dtype: np.dtype[Any]) -> list[npt.NDArray[Any]]:
    values = _typed(rows.values, dtype)
    return [values[first:last] for first, last in pairwise(rows.offsets.tolist())]


def split_rows(batch: Any, num_rows: int) -> list[Any]:
    """The rows of a batch, in order: dicts of column -> value, or record batches of one row from a record batch.

    A value is a tensor without the batch dimension (a 0-d tensor for a number, all values for a ragged row), an
    ndarray or numpy scalar, or a Python object. It is a view of the batch.

        {"x": tensor([1, 2]), "name": ["a", "b"]}      {"x": tensor(1), "name": "a"}, {"x": tensor(2), "name": "b"}
    """
    if isinstance(batch, pa.RecordBatch):
        return [batch.slice(row, 1) for row in range(num_rows)]
    if not batch:
        return [{} for _ in range(num_rows)]
    return _dicts(batch)


def _dicts(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = tuple(batch)
    values = zip(*(_values(column) for column in batch.values()), strict=True)
    return [dict(zip(names, row, strict=True)) for row in values]


def _values(column: Any) -> Iterable[Any]:
    match column:
        case Tensor():
            return column.unbind()
        case Ragged():
            return torch.unsafe_split_with_sizes(column.values, column.lengths.tolist())
        case _:
            return column  # type: ignore[no-any-return]  # an ndarray or a list
