"""Fills and copies tensors by numpy where it may, because torch would start threads.

Of more than 32,768 numbers torch gives a part to threads of its own, and waits for them while all cores decode: the
largest of 65,536 row numbers takes 8 us by numpy, and milliseconds by torch.
"""

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.shape.one_piece import is_plain

# As what numpy sees numbers of so many bytes: it does not know all of torch's dtypes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def suits_numpy(numbers: Tensor) -> bool:
    """Whether numpy may do torch's work on a tensor, because its bits in memory are all that there is to it.

    Plain tensors (see `is_plain`) of real numbers do, unless torch keeps them negated, with a flag, or must see each
    operation: where there are tangents, under a compiler, and within `torch.func`.
    """
    if torch.compiler.is_compiling() or not is_plain(numbers) or numbers.dtype.itemsize not in _BITS:
        return False
    tangent = unpack_dual(numbers).tangent  # type: ignore[no-untyped-call]
    return not numbers.is_complex() and not numbers.is_neg() and tangent is None and _gives_memory(numbers)


def fill(tensor: Tensor, number: Tensor) -> None:
    """Write one number, a tensor [1] of the same dtype, everywhere."""
    if suits_numpy(tensor):
        _bits(tensor).numpy().fill(_bits(number).item())
    else:
        tensor.copy_(number)


def copy_rows(source: Tensor, rows: Int64s | slice, target: Tensor, places: Int64s) -> None:
    """Row places[i] of the target becomes row i of source[rows], for all i; both of one dtype, and `suits_numpy`."""
    _bits(target).numpy()[places] = _bits(source).numpy()[rows]


def _gives_memory(numbers: Tensor) -> bool:
    """Whether the results of operations have memory; within `torch.func.grad` they are wrappers that have none."""
    try:
        return numbers.detach().data_ptr() != 0 or numbers.numel() == 0
    except RuntimeError:
        return False


def _bits(numbers: Tensor) -> Tensor:
    return numbers.view(_BITS[numbers.dtype.itemsize])
