"""Splits batches into single rows, as a map-style data set gives them."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils.shape.ragged import Ragged


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
