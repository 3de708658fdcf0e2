"""Tensors filled with one number, such as padding, that their dtype must hold."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
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


def filled(like: torch.Tensor, shape: Sequence[int], value: float, *, name: str) -> torch.Tensor:
    """A tensor of this shape and the other's dtype and device, with the value everywhere; floats may round it.

    name: what the user calls the value.

    Raises:
        ConfigTypeError: the value is no number.
        ConfigError: the dtype does not hold the value, or there is no memory for the shape.
    """
    try:
        _check_kept(value, like.dtype, name)
        # Two, for torch makes infinity of a number that is too large for a half-precision tensor of one.
        number, tensor = like.new_full((2,), value)[:1], like.new_empty(tuple(shape))
    except TypeError as error:
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass a number.") from error
    except (RuntimeError, OverflowError) as error:
        raise ConfigError(
            f"A tensor {list(shape)} of {like.dtype} filled with {name}={value} cannot be: {error}"
        ) from error
    fill(tensor, number)
    return tensor


def _check_kept(value: float, dtype: torch.dtype, name: str) -> None:
    """ConfigError where torch would fill with another number: wrapped around, or cut to a whole one."""
    # Floats may round, and torch itself refuses what is beyond them.
    if dtype.is_floating_point or dtype.is_complex:
        return
    least, most = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (least <= value <= most and value == int(value)):
        raise ConfigError(
            f"{name}={value} does not fit {dtype}, which holds whole numbers from {least} to {most}. Pass one of them, "
            "or convert the values."
        )
