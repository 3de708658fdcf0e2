"""Memory of batches that is used again and again, because fresh pages cost as much as the work.

A page that is touched for the first time costs 3 to 13 us on virtual machines: windows of 16 MB, new each time, spend
more time in the kernel than in gathering. Allocators do not help where one thread allocates and another frees.
"""

import itertools
import os
import threading

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._core.lending import Bytes, Loans

# Below, memory of Arrow's pool does as well.
SMALLEST_BYTES = 64 << 10
# What may lie idle in any case; more only as long as more is in use.
_IDLE_BYTES = 64 << 20


class RecycledMemory:
    """Lends byte buffers of a few sizes, and lends them again once no tensor shares them. Safe for threads.

    No more lies idle than is in use (but 64 MiB): beyond that all idle memory is let go.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, with nothing lent and nothing idle."""
        self._lock = threading.Lock()
        self._loans: Loans[int] = Loans()
        self._lent: dict[int, Bytes] = {}
        self._idle: dict[int, list[Bytes]] = {}
        self._keys = itertools.count()
        self.lent_bytes = 0
        self.idle_bytes = 0

    def take(self, num_bytes: int) -> Bytes:
        """uint8, shape [`num_bytes` or a little more], uninitialised, 64-byte aligned, writable; see Loans.lend."""
        size = size_class(num_bytes)
        with self._lock:
            self._collect()
            idle = self._idle.get(size)
            if idle:
                buffer = idle.pop()
                self.idle_bytes -= size
            else:
                buffer = np.frombuffer(pa.allocate_buffer(size), np.uint8)
            key = next(self._keys)
            self._lent[key] = buffer
            self.lent_bytes += size
            return self._loans.lend(key, buffer)

    def _collect(self) -> None:
        for key in self._loans.returned():
            buffer = self._lent.pop(key)
            self.lent_bytes -= len(buffer)
            self.idle_bytes += len(buffer)
            self._idle.setdefault(len(buffer), []).append(buffer)
        if self.idle_bytes > max(self.lent_bytes, _IDLE_BYTES):
            self._idle.clear()
            self.idle_bytes = 0


def size_class(num_bytes: int) -> int:
    """The size that is allocated: at most an eighth more, so that sizes which differ little share buffers.

    100,000      106,496 (13 times 8 KiB)
    """
    step = max(4096, 1 << max(num_bytes.bit_length() - 4, 0))
    return -(-num_bytes // step) * step


RECYCLED = RecycledMemory()
"""That of this process; a forked child starts with its own."""

if hasattr(os, "register_at_fork"):
    # A lock that another thread held at the fork would never be released in the child.
    os.register_at_fork(after_in_child=RECYCLED.forget)
