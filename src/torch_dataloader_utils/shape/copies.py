"""Columns of a block copied out of the memory they were decoded to, those of one dtype side by side.

For worker processes: what lies in recycled memory, which the trainer's process sees, is handed over as it is, and few
large pieces of it in less time than one for each column.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_dataloader_utils.shape.arrow_types import NumberType
from torch_dataloader_utils.shape.columns import Column, Lists, Rows
from torch_dataloader_utils.shape.convert import number_dtype
from torch_dataloader_utils.shape.memory import new_tensor
from torch_dataloader_utils.shape.nulls import Mask
from torch_dataloader_utils.shape.recycled import SMALLEST_BYTES
from torch_dataloader_utils.shape.specs import ColumnSpec


class ColumnCopies:
    """Copies the columns of one block, each when it comes, while a core has it in its cache; small ones stay."""

    def __init__(self, specs: Sequence[ColumnSpec], num_rows: int) -> None:
        self._num_rows = num_rows
        self._counts = Counter(
            number_dtype(spec) for spec in specs if isinstance(spec.kind, NumberType) and not spec.kind.shape
        )
        self._counts[torch.bool] += sum(isinstance(spec.nulls, Mask) for spec in specs)
        self._free: dict[torch.dtype, list[Tensor]] = {}

    def copy(self, column: Column) -> Column:
        """The same rows in recycled memory; the column itself if it is small or no dense numbers."""
        match column:
            case Rows(values=values) if values.dim() == 1 and self._counts[values.dtype]:
                room = self._room(values.dtype)
                return column if room is None else Rows(_copied(values, room))
            case Rows(values=values):
                return Rows(_alone(values))
            case Lists(values=values, offsets=offsets):
                return Lists(_alone(values), _alone(offsets))
        return column

    def _room(self, dtype: torch.dtype) -> Tensor | None:
        """Where the next column of this dtype goes."""
        if dtype not in self._free:
            shape = (self._counts[dtype], self._num_rows)
            is_large = shape[0] * shape[1] * dtype.itemsize >= SMALLEST_BYTES
            self._free[dtype] = list(new_tensor(shape, dtype).unbind()) if is_large else []
        return self._free[dtype].pop() if self._free[dtype] else None


def _alone(values: Tensor) -> Tensor:
    if values.nbytes < SMALLEST_BYTES or not values.is_contiguous():
        return values
    return _copied(values, new_tensor(values.shape, values.dtype))


def _copied(values: Tensor, room: Tensor) -> Tensor:
    room.view(torch.uint8).numpy()[...] = values.view(torch.uint8).numpy()  # numpy: torch would start threads
    return room
