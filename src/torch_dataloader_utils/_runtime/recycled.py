"""Memory of batches that is used again and again, because fresh pages cost as much as the work.

A page that is touched for the first time costs 3 to 13 us on virtual machines: windows of 16 MB, new each time, spend
more time in the kernel than in gathering. Allocators do not help where one thread allocates and another frees.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable

from torch_dataloader_utils._runtime.lending import Bytes, Loans

# What may lie idle in any case, and what never may.
_LEAST_IDLE_BYTES, _MOST_IDLE_BYTES = 64 << 20, 512 << 20
# The peak of what was lent falls by such a part of all that is taken.
_FORGETTING = 8
# Sizes vary a little from block to block, and what lies idle may be of the wrong one.
_SPARE = 1.25


class RecycledMemory:
    """Lends byte buffers of a few sizes, and lends them again once no tensor shares them. Safe for threads.

    Lent and idle bytes together are at most 1.25 times the most that was lent at once lately, so that a pass finds the
    memory of the one before. Beyond that idle buffers go, first of the sizes asked for least recently; but 64 MiB may
    lie idle in any case, and more than 512 MiB never do.

    lent_bytes, idle_bytes: of all buffers that are lent, and of those that wait.
    """

    def __init__(self, allocate: Callable[[int], Bytes]) -> None:
        """allocate: gives new memory, uint8 [bytes], 64-byte aligned and writable, which goes when the array dies."""
        self._allocate = allocate
        self._lock = threading.Lock()
        self._loans: Loans[int] = Loans()
        self._lent: dict[int, Bytes] = {}
        self._idle: dict[int, deque[Bytes]] = {}
        self._keys = itertools.count()
        self._peak_bytes = 0
        self.lent_bytes = 0
        self.idle_bytes = 0

    def take(self, num_bytes: int) -> Bytes:
        """uint8, shape [`num_bytes` or a little more], with anything in it; see Loans.lend."""
        size = size_class(num_bytes)
        with self._lock:
            self._collect()
            buffer = self._take_idle(size)
            self._let_go(size)
            if buffer is None:
                buffer = self._allocate(size)
            self.lent_bytes += size
            self._peak_bytes = max(self.lent_bytes, self._peak_bytes - size // _FORGETTING)
            key = next(self._keys)
            self._lent[key] = buffer
            return self._loans.lend(key, buffer)

    def _collect(self) -> None:
        for key in self._loans.returned():
            buffer = self._lent.pop(key)
            self.lent_bytes -= len(buffer)
            self.idle_bytes += len(buffer)
            self._idle.setdefault(len(buffer), deque()).append(buffer)

    def _take_idle(self, size: int) -> Bytes | None:
        """The buffer of this size that came back last, in a core's cache still; its size is let go of last."""
        idle = self._idle.pop(size, None)
        if not idle:
            return None
        self._idle[size] = idle
        self.idle_bytes -= size
        return idle.pop()

    def _let_go(self, taken_bytes: int) -> None:
        """Lets go of idle buffers that are too many beside what is lent now, `taken_bytes` more than before."""
        spare = int(self._peak_bytes * _SPARE) - self.lent_bytes - taken_bytes
        most = min(max(spare, _LEAST_IDLE_BYTES), _MOST_IDLE_BYTES)
        while self.idle_bytes > most:
            size, idle = next(iter(self._idle.items()))
            if idle:
                idle.popleft()
                self.idle_bytes -= size
            else:
                del self._idle[size]


def size_class(num_bytes: int) -> int:
    """The size that is allocated: at most an eighth more, so that sizes which differ little share buffers.

    100,000      106,496 (13 times 8 KiB)
    """
    step = max(4096, 1 << max(num_bytes.bit_length() - 4, 0))
    return -(-num_bytes // step) * step
