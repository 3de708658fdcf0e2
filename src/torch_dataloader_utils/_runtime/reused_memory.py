"""Memory of batches that is reused, because fresh pages cost as much as the work.

The first touch of a page costs 3 to 13 us on virtual machines: windows of 16 MB, new each time, spend more time in the
kernel than in gathering. Allocators do not help where one thread allocates and another frees.
"""

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

K = TypeVar("K")

Bytes = npt.NDArray[np.uint8]


class ArraysInUse(Generic[K]):
    """Arrays by keys, and the keys of arrays that have died.

    `add` returns a new array over the same memory; the life of this new array is watched. A tensor made of it
    (`torch.from_numpy`) and all tensors that share the tensor's storage keep the new array alive; numpy views do not,
    because they refer to the memory's owner. The array may die in any thread at any time, so the callback only appends
    to a deque.
    """

    def __init__(self) -> None:
        self._watched: dict[K, weakref.ref[Bytes]] = {}
        self._dead: deque[K] = deque()

    def add(self, key: K, array: Bytes) -> Bytes:
        """Return an array over all of `array`, to make a tensor of; no array of this key may be in use."""
        watched = array[:]
        self._watched[key] = weakref.ref(watched, self._when_dead(key))
        return watched

    def take_dead(self) -> list[K]:
        """Return the keys of arrays that died since the last call."""
        keys = [self._dead.popleft() for _ in range(len(self._dead))]
        for key in keys:
            del self._watched[key]
        return keys

    def keys(self) -> list[K]:
        """Return the keys of arrays in use, as of the last call of `take_dead`."""
        return list(self._watched)

    def _when_dead(self, key: K) -> "Callable[[weakref.ref[Bytes]], None]":
        dead = self._dead
        return lambda _: dead.append(key)


# Idle bytes that are always allowed, and the upper limit.
_LEAST_IDLE_BYTES, _MOST_IDLE_BYTES = 64 << 20, 512 << 20
# The remembered peak of used bytes falls by this fraction of the bytes that are taken.
_FORGETTING = 8
# Sizes vary a little from block to block, so idle buffers may have the wrong size.
_SPARE = 1.25


class RecycledMemory:
    """Byte buffers of a few sizes; a buffer is used again once no tensor shares it. Safe for threads.

    Used and idle bytes together are at most 1.25 times the recent peak of used bytes, so that a pass finds the memory
    of the pass before. Idle buffers beyond this limit are freed, least recently used sizes first; but up to 64 MiB may
    always be idle, and never more than 512 MiB.

    used_bytes, idle_bytes: Total size of the buffers in use, and of the idle buffers.
    """

    def __init__(self, allocate: Callable[[int], Bytes]) -> None:
        """allocate: Returns new memory, uint8 [bytes], 64-byte aligned and writable, freed when the array dies."""
        self._allocate = allocate
        self._lock = threading.Lock()
        self._in_use: ArraysInUse[int] = ArraysInUse()
        self._used: dict[int, tuple[int, Bytes]] = {}  # by key: address and buffer
        self._idle: dict[int, deque[Bytes]] = {}
        self._keys = itertools.count()
        self._peak_bytes = 0
        self.used_bytes = 0
        self.idle_bytes = 0

    def take(self, num_bytes: int) -> Bytes:
        """Return uninitialised uint8, shape [`num_bytes` or a little more]; see ArraysInUse.add."""
        size = size_class(num_bytes)
        with self._lock:
            self._collect()
            buffer = self._take_idle(size)
            self._let_go(size)
            if buffer is None:
                buffer = self._allocate(size)
            self.used_bytes += size
            self._peak_bytes = max(self.used_bytes, self._peak_bytes - size // _FORGETTING)
            key = next(self._keys)
            self._used[key] = (buffer.ctypes.data, buffer)
            return self._in_use.add(key, buffer)

    def span_of(self, address: int) -> range:
        """Return the addresses of the buffer in use that contains `address`; empty if no buffer contains it."""
        with self._lock:
            for start, buffer in self._used.values():
                if start <= address < start + len(buffer):
                    return range(start, start + len(buffer))
        return range(0)

    def _collect(self) -> None:
        for key in self._in_use.take_dead():
            _, buffer = self._used.pop(key)
            self.used_bytes -= len(buffer)
            self.idle_bytes += len(buffer)
            self._idle.setdefault(len(buffer), deque()).append(buffer)

    def _take_idle(self, size: int) -> Bytes | None:
        """Return the last used buffer of this size (a core's cache may have it); the size is now freed last."""
        idle = self._idle.pop(size, None)
        if not idle:
            return None
        self._idle[size] = idle
        self.idle_bytes -= size
        return idle.pop()

    def _let_go(self, taken_bytes: int) -> None:
        """Free idle buffers beyond the limits of the class. taken_bytes: Bytes about to be used."""
        spare = int(self._peak_bytes * _SPARE) - self.used_bytes - taken_bytes
        most = min(max(spare, _LEAST_IDLE_BYTES), _MOST_IDLE_BYTES)
        while self.idle_bytes > most:
            size, idle = next(iter(self._idle.items()))
            if idle:
                idle.popleft()
                self.idle_bytes -= size
            else:
                del self._idle[size]


def size_class(num_bytes: int) -> int:
    """Return the size to allocate: at most an eighth more, so that similar sizes share buffers.

    100,000      106,496 (13 times 8 KiB)
    """
    step = max(4096, 1 << max(num_bytes.bit_length() - 4, 0))
    return -(-num_bytes // step) * step
