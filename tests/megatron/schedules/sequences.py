"""Sequences that carry their identity in every token, so that one in the wrong place is seen."""

from collections.abc import Iterator

import numpy as np
import torch

from torch_dataloader_utils.megatron.schedules import pad_sample


def sequence(index: int, length: int) -> dict[str, torch.Tensor]:
    """Sequence `index`: tokens index × 1000 + place, labels one more, loss mask 1."""
    tokens = index * 1000 + torch.arange(length)
    return {
        "tokens": tokens,
        "labels": tokens + 1,
        "loss_mask": torch.ones(length),
        "position_ids": torch.arange(length),
    }


class Sequences:
    """A source of sequences of given lengths; `read` has the indices asked for."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.read: list[int] = []

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.read.append(index)
        return sequence(index, self.lengths[index])


def share_of(lengths: list[int], *, dp_rank: int, dp_size: int) -> range:
    """The indices that a data-parallel rank reads: a contiguous part, in rank order."""
    bounds = np.linspace(0, len(lengths), dp_size + 1).astype(int)
    return range(bounds[dp_rank], bounds[dp_rank + 1])


def samples_of(lengths: list[int], *, dp_rank: int = 0, dp_size: int = 1) -> Iterator[dict[str, torch.Tensor]]:
    """The samples that a data-parallel rank reads."""
    return (
        pad_sample(sequence(index, lengths[index])) for index in share_of(lengths, dp_rank=dp_rank, dp_size=dp_size)
    )
