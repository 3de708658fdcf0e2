"""Tensors on their way through pickle, without torch's two surprises.

Pickling a view writes the whole storage behind it (a batch of 1,024 rows would carry its row group of 65,536),
and torch refuses to pickle uint16, uint32 and uint64.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, slots=True)
class UnsignedTensor:
    """A tensor of one of the refused dtypes, as signed bits."""

    bits: Tensor
    dtype: torch.dtype


def signed(tensor: Tensor) -> Tensor:
    """The same bits under a dtype that all of torch knows: uint16, uint32, uint64 as signed integers."""
    carrier = _SIGNED.get(tensor.dtype)
    return tensor if carrier is None else tensor.view(carrier)


def unsigned(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What `signed` made of a tensor of `dtype`, under that dtype again.

    Others are not viewed: derivatives do not go through a view as bits.
    """
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def portable(tensor: Tensor) -> Tensor | UnsignedTensor:
    """What to pickle for `tensor`: its own rows only, of a dtype that pickles. `from_portable` undoes it."""
    if tensor.untyped_storage().nbytes() > tensor.nbytes:
        tensor = tensor.clone()
    return UnsignedTensor(signed(tensor), tensor.dtype) if tensor.dtype in _SIGNED else tensor


def from_portable(column: Any) -> Any:
    """The tensor that was made portable; anything else passes through."""
    return unsigned(column.bits, column.dtype) if isinstance(column, UnsignedTensor) else column
