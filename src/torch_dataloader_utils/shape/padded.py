"""How `Ragged.to_padded`, and `PadRagged` by it, fill rows of different lengths up to one.

By numpy where that may be (see `by_numpy`). Else by operations of torch, which compilers and derivatives follow and
which run on the device of the values; then at most one number is copied to the host, the length of the longest row.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils.shape.by_numpy import copy_rows, suits_numpy
from torch_dataloader_utils.shape.filled import filled
from torch_dataloader_utils.shape.pickling import signed, unsigned


def longest_row(offsets: Tensor) -> int:
    """How many values the longest row has; 0 where there are no rows."""
    if suits_numpy(offsets):
        return int(np.diff(offsets.numpy()).max(initial=0))
    return int(offsets.diff().max()) if len(offsets) > 1 else 0


def value_mask(offsets: Tensor, width: int, side: str) -> Tensor:
    """Bool [rows, width], True where a row that is padded to `width` has a value."""
    if suits_numpy(offsets):
        lengths = np.diff(offsets.numpy())[:, None]
        return torch.from_numpy(_has_value(np.arange(width), lengths, width, side))
    mask: Tensor = _has_value(torch.arange(width, device=offsets.device), offsets.diff()[:, None], width, side)
    return mask


def pad(values: Tensor, offsets: Tensor, padding_value: float, width: int, side: str) -> Tensor:
    """Shape [rows, width, ...]: see `Ragged.to_padded`."""
    padded = filled(values, (len(offsets) - 1, width, *values.shape[1:]), padding_value, name="padding_value")
    if suits_numpy(values) and suits_numpy(offsets):
        _copy_by_numpy(values, offsets, padded, side)
        return padded
    if len(values) == 0:
        return padded
    lengths = offsets.diff()[:, None]
    begins = offsets[:-1, None] - (width - lengths.clamp(max=width) if side == "left" else 0)
    # Where there is no value another one is taken, and left out again: so no shape depends on the lengths.
    taken = (begins + torch.arange(width, device=offsets.device)).clamp(0, len(values) - 1)
    rows = signed(values).index_select(0, taken.flatten()).view(*taken.shape, *values.shape[1:])
    mask = value_mask(offsets, width, side)
    mask = mask.view(*mask.shape, *(1 for _ in values.shape[1:]))
    return unsigned(torch.where(mask, rows, signed(padded)), values.dtype)


def _copy_by_numpy(values: Tensor, offsets: Tensor, padded: Tensor, side: str) -> None:
    starts, width = offsets.numpy(), padded.shape[1]
    lengths = np.diff(starts)
    kept = np.minimum(lengths, width)
    begins = np.arange(len(lengths)) * width + (width - kept if side == "left" else 0)
    taken = slice(starts[-1]) if (kept == lengths).all() else ranges(starts[:-1], kept)
    copy_rows(values, taken, padded.flatten(0, 1), ranges(begins, kept))


def _has_value(place: Any, lengths: Any, width: int, side: str) -> Any:
    return place < lengths if side == "right" else place >= width - lengths
