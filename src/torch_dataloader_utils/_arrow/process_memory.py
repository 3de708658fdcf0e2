"""The memory for large blocks of rows: recycled, because fresh pages cost as much as decoding into them."""

import os

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._runtime.reused_memory import Bytes, RecycledMemory


class ProcessMemory:
    """Memory from Arrow's pool; in a worker process, memory that the trainer's process sees too (`is_shared`).

    A forked child begins with new memory: a lock that another thread holds during the fork is never released there.
    """

    def __init__(self) -> None:
        self.begin_anew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.begin_anew)

    def begin_anew(self) -> None:
        """Start with new, private memory."""
        self._memory = RecycledMemory(private_bytes)
        self.is_shared = False

    def use(self, memory: RecycledMemory) -> None:
        """Take memory from `memory`, which is shared with the trainer's process, from now on."""
        self._memory = memory
        self.is_shared = True

    def take(self, num_bytes: int) -> Bytes:
        """See RecycledMemory.take."""
        return self._memory.take(num_bytes)

    def span_of(self, address: int) -> range:
        """See RecycledMemory.span_of."""
        return self._memory.span_of(address)


def private_bytes(num_bytes: int) -> Bytes:
    """Return new memory that no other process sees."""
    return np.frombuffer(pa.allocate_buffer(num_bytes), np.uint8)


RECYCLED = ProcessMemory()
"""Memory of this process for large blocks of rows, whoever makes the blocks."""
