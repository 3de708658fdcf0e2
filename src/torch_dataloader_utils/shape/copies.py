"""Copies columns of a block from the memory they were decoded to into recycled memory, those of one dtype together.

For worker processes: there, recycled memory is shared with the trainer's process, so it is sent without another copy;
and a few large pieces are sent in less time than one for each column.
"""

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor

from torch_dataloader_utils.shape.arrow_types import NumberType
from torch_dataloader_utils.shape.columns import Column, Lists, Matrix, Objects, Rows
from torch_dataloader_utils.shape.convert import number_dtype
from torch_dataloader_utils.shape.one_piece import pitch_bytes
from torch_dataloader_utils.shape.reused_memory import new_tensor
from torch_dataloader_utils.shape.specs import ColumnSpec, Mask


class ColumnCopies:
    """Copies the columns of one block, each as it comes, while a core has it in its cache.

    Columns of one number a row (and masks of one bool) go side by side; they are copied if together they take at least
    `least_bytes`. Any other column is copied if it takes as much alone. Smaller ones stay where they are.
    """

    def __init__(self, specs: Sequence[ColumnSpec], num_rows: int, least_bytes: int) -> None:
        self._num_rows = num_rows
        self._least_bytes = least_bytes
        self._counts = Counter(number_dtype(spec) for spec in specs if _is_single(spec))
        self._counts[torch.bool] += sum(_has_single_mask(spec) for spec in specs)
        self._row_bytes = {dtype: dtype.itemsize * count for dtype, count in self._counts.items()}
        self._num_bytes = sum(pitch_bytes(num_rows * row_bytes) for row_bytes in self._row_bytes.values())
        self._rooms: dict[torch.dtype, list[Tensor]] = {}

    def copy(self, column: Column) -> Column:
        """The same rows in recycled memory; the column itself if it is small or is not dense numbers."""
        match column:
            case Rows(values=values) if values.dim() == 1:
                return self._copied_to_room(column)
            case Rows(values=values):
                return Rows(_copied(values)) if self._is_large(values) else column
            case Lists(values=values, offsets=offsets):
                return Lists(_copied(values), _copied(offsets)) if self._is_large(values) else column
            case Matrix() | Objects():
                return column
        assert_never(column)

    def _copied_to_room(self, column: Rows) -> Rows:
        """The column in the next free place beside the others of its dtype; itself if all together are small."""
        if self._num_bytes < self._least_bytes:
            return column
        if not self._rooms:
            self._rooms = self._make_rooms()
        room = self._rooms[column.values.dtype].pop()
        _copy(column.values, room)
        return Rows(room)

    def _is_large(self, values: Tensor) -> bool:
        return values.nbytes >= self._least_bytes and values.is_contiguous()

    def _make_rooms(self) -> dict[torch.dtype, list[Tensor]]:
        memory, start = new_tensor((self._num_bytes,), torch.uint8), 0
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


def _copied(values: Tensor) -> Tensor:
    room = new_tensor(values.shape, values.dtype)
    _copy(values, room)
    return room


def _copy(values: Tensor, room: Tensor) -> None:
    room.view(torch.uint8).numpy()[...] = values.view(torch.uint8).numpy()  # numpy: torch would start threads
