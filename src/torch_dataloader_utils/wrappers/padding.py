"""`pad_stack_1d`: rows of different lengths as one padded tensor."""

from collections.abc import Sequence
from typing import Literal

import torch

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.shape.ragged import filled


def pad_stack_1d(
    items: Sequence[torch.Tensor],
    pad_value: float,
    padding_side: Literal["left", "right"] = "right",
    pad_to_multiple_of: int | None = None,
) -> torch.Tensor:
    """The items as the rows of one tensor [len(items), longest], padded at one side; dtype and device of the items.

        items 1 2 3 and 4, padded with 0, multiple of 2:    1 2 3 0    left:    0 1 2 3
                                                            4 0 0 0             0 0 0 4

    Args:
        items: 1-D tensors of one dtype; an empty one is a row of padding.
        pad_value: fills what an item leaves free; a float type rounds it, any other holds it exactly.
        padding_side: where the padding goes.
        pad_to_multiple_of: the row length is rounded up to a multiple of this.

    Raises:
        ConfigError: no items, an item that is not 1-D, an unknown side, or a multiple below 1; a pad value that the
            dtype does not hold.
        ConfigTypeError: no list of tensors, or tensors of different dtypes; a pad value that is no number.
    """
    if not isinstance(items, Sequence):
        raise ConfigTypeError(f"items is {of_type(items)}: pass a list of 1-D tensors.")
    if not items:
        raise ConfigError(
            "There are no items to pad: the shape and dtype of the result would be unknown. Pass one at least."
        )
    if pad_to_multiple_of is not None:
        pad_to_multiple_of = check_integer("pad_to_multiple_of", pad_to_multiple_of, least=1)
    if padding_side not in ("left", "right"):
        raise ConfigError(f"padding_side={padding_side!r}: give 'left' or 'right'.")
    for row, item in enumerate(items):
        if not isinstance(item, torch.Tensor):
            raise ConfigTypeError(f"Item {row} is {of_type(item)}: pass 1-D tensors.")
        if item.ndim != 1:
            raise ConfigError(f"Item {row} has shape {tuple(item.shape)}; pass 1-D tensors.")
        if item.dtype != items[0].dtype:
            raise ConfigTypeError(f"Item {row} is {item.dtype}, item 0 is {items[0].dtype}. Convert them to one dtype.")
    width = max(len(item) for item in items)
    if pad_to_multiple_of is not None:
        width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
    padded = filled(items[0], (len(items), width), pad_value, name="pad_value")
    for row, item in enumerate(items):
        start = 0 if padding_side == "right" else width - len(item)
        padded[row, start : start + len(item)] = item
    return padded
