"""Integers that the trainer's process and DataLoader workers see each other change."""

from collections.abc import Sequence
from mmap import mmap
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch

from torch_dataloader_utils.errors import StoreError
from torch_dataloader_utils.stream.shared_memory import shared_bytes


class SharedIntegers:
    """int64 numbers in shared memory.

    Workers hold a copy of the data set from the moment they started; with `persistent_workers=True` an attribute
    that the training process sets later never reaches them. Shared memory does, under fork, forkserver and spawn.

    values: int64, shape [numbers].
    """

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        num_bytes = torch.int64.itemsize * len(values)
        try:
            memory = shared_bytes(num_bytes)
        except StoreError:
            # Threads need none, and forked processes see this one, which is no file and so below all limits.
            memory = torch.frombuffer(mmap(-1, num_bytes), dtype=torch.uint8)
        self.values = memory.view(torch.int64).copy_(torch.tensor(values))

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None and not self.values.is_shared():  # type: ignore[no-untyped-call]
            self.values = shared_bytes(self.values.nbytes).view(torch.int64).copy_(self.values)
        return {"values": self.values}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # On its way to a worker memory stays shared. A deep copy, or one out of a file, gets some of its own.
        values = state["values"]
        self.values = values if values.is_shared() else SharedIntegers(values.tolist()).values
