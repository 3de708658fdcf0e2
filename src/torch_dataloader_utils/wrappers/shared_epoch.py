"""An epoch number that DataLoader workers see change, persistent ones included."""

from typing import Any

import torch

from torch_dataloader_utils._core.integers import check_integer


class SharedEpoch:
    """One integer in shared memory.

    Workers hold a copy of the data set from the moment they started; with `persistent_workers=True` an attribute
    that the training process sets later never reaches them. Shared memory does, under fork and under spawn.
    """

    __slots__ = ("_cell",)

    def __init__(self, value: int = 0) -> None:
        self._cell = _share(torch.tensor(value, dtype=torch.int64))

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
        # Pickle to a file or deepcopy gives an ordinary tensor: share it again, as a cell of its own.
        self._cell = _share(state["cell"])


def _share(cell: torch.Tensor) -> torch.Tensor:
    shared: torch.Tensor = cell if cell.is_shared() else cell.share_memory_()  # type: ignore[no-untyped-call]
    return shared
