"""Integers that the trainer's process and DataLoader workers see each other change."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_dataloader_utils.stream.shared_memory import shared_bytes


class SharedIntegers:
    """int64 numbers in shared memory.

    Workers hold a copy of the data set from the moment they started; with `persistent_workers=True` an attribute
    that the training process sets later never reaches them. Shared memory does, under fork, forkserver and spawn.

    values: int64, shape [numbers].
    """

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        memory = shared_bytes(torch.int64.itemsize * len(values)).view(torch.int64)
        self.values = memory.copy_(torch.tensor(values))

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # On its way to a worker memory stays shared. A deep copy, or one out of a file, gets some of its own.
        values = state["values"]
        self.values = values if values.is_shared() else SharedIntegers(values.tolist()).values
