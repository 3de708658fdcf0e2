"""Copies of a block's columns into recycled memory, for worker processes."""

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor

from torch_dataloader_utils._arrow.process_memory import RECYCLED
from torch_dataloader_utils.shape.arrow_types import NumberType
from torch_dataloader_utils.shape.columns import Column, Lists, Matrix, Objects, Rows, Singles
from torch_dataloader_utils.shape.convert import number_dtype
from torch_dataloader_utils.shape.one_buffer import pitch_bytes
from torch_dataloader_utils.shape.reused_memory import new_tensor
from torch_dataloader_utils.shape.specs import ColumnSpec, Mask


class ColumnCopies:
    """Copies of one block's columns into recycled memory.

    Each column is copied as it comes, while a core has the column in its cache. A column that was decoded into recycled
    memory is not copied. In a worker process recycled memory is shared with the trainer's process, so it is sent
    without another copy, and a few large regions are sent in less time than one region for each column.

    Columns of one number a row (and masks of one bool a row) are copied side by side if together they take at least
    `least_bytes`. Any other column is copied if it takes `least_bytes` alone. Smaller columns are not copied.
    """

    def __init__(
        self, specs: Sequence[ColumnSpec], num_rows: int, least_bytes: int, *, in_place: Sequence[Singles | Rows] = ()
    ) -> None:
        """in_place: Columns of `specs` that were decoded into recycled memory already."""
        self._num_rows = num_rows
        self._least_bytes = least_bytes
        self._counts = Counter(number_dtype(spec) for spec in specs if _is_single(spec))
        self._counts[torch.bool] += sum(_has_single_mask(spec) for spec in specs)
        for column in in_place:
            numbers = column.columns if isinstance(column, Singles) else column.values[None]
            self._counts[numbers.dtype] -= len(numbers)
        self._places: dict[torch.dtype, list[Tensor]] | None = None
        self._recycled = range(0)  # addresses

    def copy(self, column: Column) -> Column:
        """Return the same rows in recycled memory; the column itself if it is small or does not hold dense numbers."""
        match column:
            case Rows(values=values) if self._is_recycled(values):
                if values.dim() == 1 and self._places is None:
                    self._counts[values.dtype] -= 1  # needs no place
                return column
            case Rows(values=values) if values.dim() == 1:
                return self._copied_beside(column)
            case Rows(values=values):
                return Rows(_copied(values)) if self._is_large(values) else column
            case Lists(values=values, offsets=offsets):
                is_copied = self._is_large(values) and not self._is_recycled(values)
                return Lists(_copied(values), _copied(offsets)) if is_copied else column
            case Matrix() | Singles() | Objects():
                return column
        assert_never(column)

    def _is_recycled(self, values: Tensor) -> bool:
        address = values.data_ptr()
        if address not in self._recycled:
            self._recycled = RECYCLED.span_of(address) or self._recycled
        return address in self._recycled

    def _copied_beside(self, column: Rows) -> Rows:
        """Copy the column to the next free place of its dtype. Return the column itself if all together are small."""
        if self._places is None:
            self._places = self._make_places()
        places = self._places.get(column.values.dtype)
        if not places:
            return column
        place = places.pop()
        _copy(column.values, place)
        return Rows(place)

    def _is_large(self, values: Tensor) -> bool:
        return values.nbytes >= self._least_bytes and values.is_contiguous()

    def _make_places(self) -> dict[torch.dtype, list[Tensor]]:
        """Return room for all columns that are still to come, by dtype; no room if together they are small."""
        lengths = {dtype: self._num_rows * dtype.itemsize * count for dtype, count in self._counts.items()}
        num_bytes = sum(map(pitch_bytes, lengths.values()))
        if num_bytes < self._least_bytes:
            return {}
        memory, start = new_tensor((num_bytes,), torch.uint8), 0
        places = {}
        for dtype, length in lengths.items():
            matrix = memory[start : start + length].view(dtype).view(self._counts[dtype], self._num_rows)
            places[dtype] = list(matrix.unbind())
            start += pitch_bytes(length)
        return places


def _is_single(spec: ColumnSpec) -> bool:
    return isinstance(spec.kind, NumberType) and not spec.kind.shape


def _has_single_mask(spec: ColumnSpec) -> bool:
    return isinstance(spec.nulls, Mask) and (_is_single(spec) or not isinstance(spec.kind, NumberType))


def _copied(values: Tensor) -> Tensor:
    place = new_tensor(values.shape, values.dtype)
    _copy(values, place)
    return place


def _copy(values: Tensor, place: Tensor) -> None:
    place.view(torch.uint8).numpy()[...] = values.view(torch.uint8).numpy()  # numpy: torch would start threads
