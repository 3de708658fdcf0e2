"""The slabs of one worker process: shared memory that holds its blocks, or that batches are copied to.

The worker owns its slabs and makes a new one when no memory is free: if the trainer keeps batches, memory grows and
nobody waits. Memory is free when nothing in the worker uses it and the trainer holds no share of it. Slabs have no name
(see `shared_memory`): nothing is left behind, however a process ends.
"""

import itertools
import secrets
import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from torch_dataloader_utils._core.slab_codec import SlabPlace
from torch_dataloader_utils._runtime.reused_memory import Bytes, RecycledMemory
from torch_dataloader_utils.stream.shared_memory import shared_bytes

# Each slab is an open file, in the trainer too, and 1,024 of them are a usual limit. So small buffers share slabs, but
# not large ones, since a slab goes with the last buffer in it.
_SHARED_SLAB_BYTES = 4 << 20
_SMALL_BYTES = 1 << 20


class SlabShare(NamedTuple):
    """All the memory that one answer has in one slab; lent to the trainer and given back as a whole."""

    answer: int
    slab: int


class Held(NamedTuple):
    """What the trainer has of a worker at the start of a pass: the slabs it knows, and the shares it still uses."""

    slabs: tuple[int, ...] = ()
    shares: tuple[SlabShare, ...] = ()


class _Slab(NamedTuple):
    """A slab, and the array that all buffers in it are views of."""

    address: int
    number: int
    memory: torch.Tensor
    array: "weakref.ref[Any]"


class SlabMemory:
    """The slabs of a worker process, for all its passes. Slab numbers are unique over processes and time.

    Decoding threads take memory; all other methods are for the thread that answers.
    """

    def __init__(self) -> None:
        self.recycled = RecycledMemory(self._allocate)
        self._lock = threading.Lock()
        self._numbers = itertools.count(secrets.randbits(62))
        self._answers = itertools.count()
        self._slabs: list[_Slab] = []  # by address
        self._gone: deque[int] = deque()  # numbers; arrays die in any thread, at any time
        self._filling: Bytes | None = None
        self._filled_bytes = 0
        self._lent: dict[SlabShare, list[torch.Tensor]] = {}

    def take(self, num_bytes: int) -> torch.Tensor:
        """Uninitialised uint8, shape [`num_bytes` or a little more]; free again when nothing uses it."""
        return torch.from_numpy(self.recycled.take(max(num_bytes, 1)))

    def find(self, tensor: torch.Tensor) -> SlabPlace | None:
        """The slab and the byte at which a tensor begins; None if it is not in a slab."""
        address = tensor.data_ptr()
        with self._lock:
            self._forget_gone()
            index = bisect_right(self._slabs, address, key=_address) - 1
            if index < 0:
                return None
            slab = self._slabs[index]
        start = address - slab.address
        return SlabPlace(slab.number, start) if start < slab.memory.shape[0] else None

    def slabs(self, numbers: set[int]) -> tuple[tuple[int, torch.Tensor], ...]:
        """These slabs, each with its number, to be sent to the trainer's process."""
        with self._lock:
            return tuple((slab.number, slab.memory) for slab in self._slabs if slab.number in numbers)

    def gone_of(self, numbers: set[int]) -> tuple[int, ...]:
        """The given slabs that no longer exist."""
        with self._lock:
            self._forget_gone()
            return tuple(numbers.difference([slab.number for slab in self._slabs]))

    def new_answer(self) -> int:
        """The number of an answer, for its shares."""
        return next(self._answers)

    def lend(self, share: SlabShare, tensor: torch.Tensor) -> None:
        """Keep this tensor, which is sent to the trainer, until the share comes back."""
        self._lent.setdefault(share, []).append(tensor)

    def take_back(self, shares: Iterable[SlabShare]) -> None:
        """The trainer does not use these any more."""
        for share in shares:
            self._lent.pop(share, None)

    def keep_only(self, shares: Iterable[SlabShare]) -> None:
        """The trainer uses these shares only: a pass may have ended before all its answers were received."""
        self._lent = {share: self._lent[share] for share in shares if share in self._lent}

    def _allocate(self, num_bytes: int) -> Bytes:
        """A slab of its own for a large buffer, else the next bytes of the shared one."""
        with self._lock:
            self._forget_gone()
            if num_bytes > _SMALL_BYTES:
                return self._new_slab(num_bytes)
            if self._filling is None or self._filled_bytes + num_bytes > len(self._filling):
                self._filling, self._filled_bytes = self._new_slab(_SHARED_SLAB_BYTES), 0
            start, self._filled_bytes = self._filled_bytes, self._filled_bytes + num_bytes
            return self._filling[start : self._filled_bytes]

    def _new_slab(self, num_bytes: int) -> Bytes:
        memory = shared_bytes(num_bytes)
        number, gone, array = next(self._numbers), self._gone, memory.numpy()
        slab = _Slab(memory.data_ptr(), number, memory, weakref.ref(array, lambda _: gone.append(number)))
        insort(self._slabs, slab, key=_address)
        return array

    def _forget_gone(self) -> None:
        """Drop slabs whose array died. Until then their memory is kept, so that no other slab has their address."""
        gone = {self._gone.popleft() for _ in range(len(self._gone))}
        if gone:
            self._slabs = [slab for slab in self._slabs if slab.number not in gone]


def _address(slab: _Slab) -> int:
    return slab.address
