"""The slabs of one worker process: shared memory that its blocks lie in, or that batches are copied to.

The worker owns its slabs and makes another one when none is free, so a trainer that keeps batches costs memory and
never waits. A slab is free when nothing in the worker shares it and the trainer looks at none of its loans. Slabs have
no name (see `shared_memory`): nothing is left behind, however a process ends.
"""

import itertools
import secrets
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from torch_dataloader_utils._core.lending import Bytes
from torch_dataloader_utils._core.recycled import RecycledMemory
from torch_dataloader_utils.stream.shared_memory import shared_bytes


class Place(NamedTuple):
    """A slab by its number, and a byte in it."""

    slab: int
    start: int


class Loan(NamedTuple):
    """Rows of one answer, in one slab."""

    answer: int
    slab: int


class Held(NamedTuple):
    """What the trainer's process has of a worker's at the beginning of a pass: slabs, and loans that it looks at."""

    slabs: tuple[int, ...] = ()
    loans: tuple[Loan, ...] = ()


class _Slab(NamedTuple):
    """The memory of a slab, and the array of it that is recycled."""

    memory: torch.Tensor
    array: "weakref.ref[Any]"


class SlabMemory:
    """Slabs, for all passes of a worker process. No other process, nor a later slab, has the number of one."""

    def __init__(self) -> None:
        self.recycled = RecycledMemory(self._allocate)
        self._numbers = itertools.count(secrets.randbits(62))
        self._slabs: dict[int, _Slab] = {}
        self._number_at: dict[int, int] = {}
        self._gone: deque[int] = deque()
        self._lent: dict[Loan, torch.Tensor] = {}

    def take(self, num_bytes: int) -> torch.Tensor:
        """uint8, shape [`num_bytes` or a little more], with anything in it; free again when nothing shares it."""
        return torch.from_numpy(self.recycled.take(max(num_bytes, 1)))

    def find(self, tensor: torch.Tensor) -> Place | None:
        """Where a tensor begins; None if it is not in a slab."""
        number = self._number_at.get(tensor.untyped_storage().data_ptr())
        return None if number is None else Place(number, int(tensor.storage_offset()) * tensor.itemsize)

    def slabs(self, numbers: Iterable[int]) -> tuple[tuple[int, torch.Tensor], ...]:
        """These slabs, each with its number, to be sent to the trainer's process."""
        return tuple((number, self._slabs[number].memory) for number in numbers)

    def new_answer(self) -> int:
        """The number of an answer, for its loans."""
        return next(self._numbers)

    def lend(self, loan: Loan, tensor: torch.Tensor) -> None:
        """The trainer hears of rows in the slab of this tensor, which keeps it from being free."""
        self._lent[loan] = tensor

    def take_back(self, loans: Iterable[Loan]) -> None:
        """The trainer looks at these no more."""
        for loan in loans:
            self._lent.pop(loan, None)

    def keep_only(self, loans: Iterable[Loan]) -> None:
        """The trainer looks at nothing but these. A pass may have ended before all its answers were received."""
        self._lent = {loan: self._lent[loan] for loan in loans if loan in self._lent}

    def gone_of(self, slabs: set[int]) -> tuple[int, ...]:
        """Those of these slabs that are no more; memory that was let go of goes now."""
        while self._gone:
            slab = self._slabs.pop(self._gone.popleft())
            del self._number_at[slab.memory.data_ptr()]  # before its memory goes, and may be that of another slab
            del slab
        return tuple(slabs - self._slabs.keys())

    def _allocate(self, num_bytes: int) -> Bytes:
        memory = shared_bytes(num_bytes)
        number, gone, array = next(self._numbers), self._gone, memory.numpy()
        self._slabs[number] = _Slab(memory, weakref.ref(array, lambda _: gone.append(number)))
        self._number_at[memory.data_ptr()] = number
        return array
