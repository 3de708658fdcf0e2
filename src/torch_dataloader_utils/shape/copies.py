"""Columns of a block copied out of the memory they were decoded to, those of one dtype side by side.

For worker processes: what lies in recycled memory, which the trainer's process sees, is handed over as it is, and few
large pieces of it in less time than one for each column.
"""

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor

from torch_dataloader_utils.shape.arrow_types import NumberType
from torch_dataloader_utils.shape.columns import Column, Lists, Matrix, Objects, Rows
from torch_dataloader_utils.shape.convert import number_dtype
from torch_dataloader_utils.shape.memory import new_tensor
from torch_dataloader_utils.shape.nulls import Mask
from torch_dataloader_utils.shape.one_piece import pitch_bytes
from torch_dataloader_utils.shape.specs import ColumnSpec


class ColumnCopies:
    """Copies the columns of one block, each when it comes, while a core has it in its cache.

    num_bytes: what the columns of single numbers take, and the masks of one bool a row.
    """

    def __init__(self, specs: Sequence[ColumnSpec], num_rows: int) -> None:
        self._num_rows = num_rows
        self._counts = Counter(number_dtype(spec) for spec in specs if _is_single(spec))
        self._counts[torch.bool] += sum(_has_single_mask(spec) for spec in specs)
        self._row_bytes = {dtype: dtype.itemsize * count for dtype, count in self._counts.items()}
        self.num_bytes = sum(pitch_bytes(num_rows * row_bytes) for row_bytes in self._row_bytes.values())
        self._rooms: dict[torch.dtype, list[Tensor]] | None = None

    def copy(self, column: Column) -> Column:
        """The same rows in recycled memory; the column itself if it is no dense numbers."""
        match column:
            case Rows(values=values):
                return Rows(_copied(values, self._room(values)))
            case Lists(values=values, offsets=offsets):
                return Lists(_copied(values, _alone(values)), _copied(offsets, _alone(offsets)))
            case Matrix() | Objects():
                return column
        assert_never(column)

    def _room(self, values: Tensor) -> Tensor:
        """Where a column goes: beside the others of its dtype, if it is one number a row."""
        if values.dim() != 1:
            return _alone(values)
        if self._rooms is None:
            self._rooms = self._make_rooms()
        return self._rooms[values.dtype].pop()

    def _make_rooms(self) -> dict[torch.dtype, list[Tensor]]:
        memory, start = new_tensor((self.num_bytes,), torch.uint8), 0
        rooms = {}
        for dtype, row_bytes in self._row_bytes.items():
            num_bytes = self._num_rows * row_bytes
            matrix = memory[start : start + num_bytes].view(dtype).view(self._counts[dtype], self._num_rows)
            rooms[dtype] = list(matrix.unbind())
            start += pitch_bytes(num_bytes)
        return rooms


def _is_single(spec: ColumnSpec) -> bool:
    return isinstance(spec.kind, NumberType) and not spec.kind.shape


def _has_single_mask(spec: ColumnSpec) -> bool:
    return isinstance(spec.nulls, Mask) and (_is_single(spec) or not isinstance(spec.kind, NumberType))


def _alone(values: Tensor) -> Tensor:
    return new_tensor(values.shape, values.dtype) if values.is_contiguous() else values


def _copied(values: Tensor, room: Tensor) -> Tensor:
    if room is not values:
        room.view(torch.uint8).numpy()[...] = values.view(torch.uint8).numpy()  # numpy: torch would start threads
    return room
