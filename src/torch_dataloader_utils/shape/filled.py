"""Tensors filled with one number, such as padding, that their dtype must hold."""

from collections.abc import Sequence

import torch

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.shape.by_numpy import fill


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
