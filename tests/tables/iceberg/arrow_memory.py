"""How much memory Arrow takes for something."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def counted_memory() -> Iterator[pa.MemoryPool]:
    """A pool that counts what Arrow takes in the block, and its peak."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        yield counted
    finally:
        pa.set_memory_pool(usual)
