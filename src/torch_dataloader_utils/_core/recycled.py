"""Memory of batches that is used again and again, because fresh pages cost as much as the work.

A page that is touched for the first time costs 3 to 13 us on virtual machines: windows of 16 MB, new each time, spend
more time in the kernel than in gathering. Allocators do not help where one thread allocates and another frees.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable

from torch_dataloader_utils._core.lending import Bytes, Loans

# What may be held in any case.
_HELD_BYTES = 64 << 20
# What was in use at once is forgotten by so small a part each time that memory is taken: half of it after 700 times.
_FORGETTING = 1024


class RecycledMemory:
    """Lends byte buffers of a few sizes, and lends them again once no tensor shares them. Safe for threads.

    What is in use and what lies idle are together a quarter more than was in use at once of late, or 64 MiB, and not
    more: then sizes that were not asked for the longest are let go. So a pass finds the memory of the one before.
    """

    def __init__(self, allocate: Callable[[int], Bytes]) -> None:
        """allocate: gives new memory, uint8 [bytes], 64-byte aligned and writable, which goes when the array dies."""
        self._allocate = allocate
        self._lock = threading.Lock()
        self._loans: Loans[int] = Loans()
        self._lent: dict[int, Bytes] = {}
        self._idle: dict[int, deque[Bytes]] = {}
        self._keys = itertools.count()
        self._most_bytes = 0
        self.lent_bytes = 0
        self.idle_bytes = 0

    def take(self, num_bytes: int) -> Bytes:
        """uint8, shape [`num_bytes` or a little more], with anything in it; see Loans.lend."""
        size = size_class(num_bytes)
        with self._lock:
            self._collect()
            self.lent_bytes += size
            self._most_bytes = max(self.lent_bytes, self._most_bytes - self._most_bytes // _FORGETTING)
            buffer = self._idle_one(size)
            self._let_go()
            key = next(self._keys)
            self._lent[key] = self._allocate(size) if buffer is None else buffer
            return self._loans.lend(key, self._lent[key])

    def _collect(self) -> None:
        for key in self._loans.returned():
            buffer = self._lent.pop(key)
            self.lent_bytes -= len(buffer)
            self.idle_bytes += len(buffer)
            self._idle.setdefault(len(buffer), deque()).append(buffer)

    def _idle_one(self, size: int) -> Bytes | None:
        """The buffer of this size that came back last, in a core's cache still; its size is let go of last."""
        idle = self._idle.pop(size, None)
        if not idle:
            return None
        self._idle[size] = idle
        self.idle_bytes -= size
        return idle.pop()

    def _let_go(self) -> None:
        most = max(self._most_bytes + self._most_bytes // 4, _HELD_BYTES)
        while self._idle and self.lent_bytes + self.idle_bytes > most:
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
