"""An epoch number that DataLoader workers see change, persistent ones included."""

from typing import Any

import torch

from torch_dataloader_utils._core.integers import check_integer
from torch_dataloader_utils.stream.shared_memory import shared_bytes


class SharedEpoch:
    """One integer in shared memory.

    Workers hold a copy of the data set from the moment they started; with `persistent_workers=True` an attribute
    that the training process sets later never reaches them. Shared memory does, under fork, forkserver and spawn.
    """

    __slots__ = ("_cell",)

    def __init__(self, value: int = 0) -> None:
        self._cell = _shared_cell(value)

    @property
    def value(self) -> int:
        """The epoch, as last set in any process."""
        return int(self._cell.item())

    @value.setter
    def value(self, epoch: int) -> None:
        self._cell.fill_(check_integer("epoch", epoch))

    def __getstate__(self) -> dict[str, Any]:
        return {"cell": self._cell}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # On its way to a worker a cell stays shared. A deep copy, or one out of a file, becomes a cell of its own.
        cell = state["cell"]
        self._cell = cell if cell.is_shared() else _shared_cell(int(cell))


def _shared_cell(value: int) -> torch.Tensor:
    return shared_bytes(torch.int64.itemsize).view(torch.int64).fill_(value)
