"""What the copies of a data set in DataLoader workers and the one in the trainer know of each other's passes."""

from typing import Any

import torch

from torch_dataloader_utils.stream.shared_memory import shared_bytes

# More than a machine runs; of others nobody knows whether they began.
_MOST_WORKERS = 1024
_LOADS, _FIRST_WORKER = range(2)


class SharedPasses:
    """How many states were loaded, and which workers have begun a pass since; in shared memory.

    Workers hold a copy of the data set from the moment they started, and what they set in it reaches nobody: the next
    ones get a copy of the trainer's again.
    """

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells = _shared_cells([0] * (_FIRST_WORKER + _MOST_WORKERS))

    @property
    def loads(self) -> int:
        """States that the trainer's copy was given so far."""
        return int(self._cells[_LOADS])

    def count_load(self) -> int:
        """One more; its number, from 1."""
        self._cells[_LOADS] += 1
        self.forget()
        return self.loads

    def forget(self) -> None:
        """No worker has begun a pass."""
        self._cells[_FIRST_WORKER:] = 0

    @property
    def has_begun(self) -> bool:
        """Whether any worker has begun one."""
        return bool(self._cells[_FIRST_WORKER:].any())

    def begin(self, worker: int) -> bool:
        """A worker begins a pass; whether it is the first of this worker, whichever process that was."""
        if worker >= _MOST_WORKERS:
            return True
        is_first = not self._cells[_FIRST_WORKER + worker]
        self._cells[_FIRST_WORKER + worker] = 1
        return bool(is_first)

    def __getstate__(self) -> dict[str, Any]:
        return {"cells": self._cells}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # On its way to a worker memory stays shared. A deep copy, or one out of a file, gets some of its own.
        cells = state["cells"]
        self._cells = cells if cells.is_shared() else _shared_cells(cells.tolist())


def _shared_cells(values: list[int]) -> torch.Tensor:
    cells = shared_bytes(torch.int64.itemsize * len(values)).view(torch.int64)
    return cells.copy_(torch.tensor(values))
