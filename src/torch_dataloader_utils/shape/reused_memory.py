"""New tensors in memory that is used again and again.

It is recycled, or comes from Arrow's pool, which keeps its pages. torch's CPU allocator gives large ones back to the
system, and touching fresh pages costs as much as the work: gathering windows of 65,536 rows of 51 columns takes 7 ms
with fresh pages, 4 ms without.
"""

import os
from collections.abc import Sequence
from math import prod

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils._runtime.reused_memory import Bytes, RecycledMemory

# Smaller blocks use memory of Arrow's pool, which does as well for them.
SMALLEST_BYTES = 64 << 10


class ProcessMemory:
    """Memory from Arrow's pool; in a worker process, memory that the trainer's process sees too (`is_shared`)."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Start with new, private memory."""
        self._memory = RecycledMemory(private_bytes)
        self.is_shared = False

    def use(self, memory: RecycledMemory) -> None:
        """Take from `memory` from now on, which is shared with the trainer's process."""
        self._memory = memory
        self.is_shared = True

    def take(self, num_bytes: int) -> Bytes:
        """See RecycledMemory.take."""
        return self._memory.take(num_bytes)


def private_bytes(num_bytes: int) -> Bytes:
    """New memory that no other process sees."""
    return np.frombuffer(pa.allocate_buffer(num_bytes), np.uint8)


RECYCLED = ProcessMemory()
"""The memory of this process; a forked child begins with its own."""

if hasattr(os, "register_at_fork"):
    # A lock that another thread holds during the fork is never released in the child.
    os.register_at_fork(after_in_child=RECYCLED.begin_anew)


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised contiguous CPU tensor, 64-byte aligned, writable; large ones in recycled memory."""
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    if num_bytes >= SMALLEST_BYTES:
        return torch.from_numpy(RECYCLED.take(num_bytes))[:num_bytes].view(dtype).view(tuple(shape))
    return torch.frombuffer(pa.allocate_buffer(num_bytes), dtype=dtype).view(tuple(shape))


def new_columns(count: int, num_rows: int, dtype: torch.dtype, at_once: int) -> list[tuple[int, Tensor]]:
    """Room for `count` columns, `at_once` of them (fewer at the end) in memory of their own.

    Gives (number of the first column, uninitialised [columns, num_rows]) for each such set of columns. Who keeps one
    column keeps the memory of its set. Shared memory is one piece for all, because each piece that is sent takes time.
    """
    if RECYCLED.is_shared:
        whole = new_tensor((count, num_rows), dtype)
        return [(start, whole[start : start + at_once]) for start in range(0, count, at_once)]
    return [(start, new_tensor((min(at_once, count - start), num_rows), dtype)) for start in range(0, count, at_once)]
