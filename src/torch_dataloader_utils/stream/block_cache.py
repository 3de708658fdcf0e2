"""Cache decoded row groups: keep the most recently used row groups, within a byte budget."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from torch_dataloader_utils._core.block import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """Counts of one cache in this process. hits, misses: requests for row groups; a miss decodes a row group."""

    hits: int
    misses: int
    held_bytes: int


class BlockCache:
    """Cache of blocks by row group; drops the least recently used block first. Thread-safe; empty in every new process.

    If several threads request a row group, one thread decodes it and the others wait. The block used last stays even if
    it alone exceeds the budget, so that reading a row group row by row decodes it once.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Future[Block]] = OrderedDict()
        self._hits = 0
        self._misses = 0
        self._held_bytes = 0

    def get(self, group: int, decode: Callable[[int], Block]) -> Block:
        """Return the block of a row group; call `decode(group)` if it is not in the cache. Errors are not cached."""
        with self._lock:
            found = self._blocks.get(group)
            if found is not None:
                self._hits += 1
                self._blocks.move_to_end(group)
            else:
                self._misses += 1
                pending = self._blocks[group] = Future()
        if found is not None:
            return found.result()
        try:
            block = decode(group)
        except BaseException as error:
            with self._lock:
                del self._blocks[group]
            pending.set_exception(error)
            raise
        pending.set_result(block)
        with self._lock:
            self._held_bytes += block.num_bytes
            self._evict()
        return block

    def holds(self, group: int) -> bool:
        """Return whether a request for a row group would decode nothing."""
        with self._lock:
            return group in self._blocks

    def info(self) -> CacheInfo:
        """Return hits, misses and bytes held."""
        with self._lock:
            return CacheInfo(hits=self._hits, misses=self._misses, held_bytes=self._held_bytes)

    def _evict(self) -> None:
        """Drop the oldest blocks until the budget holds. Keeps the newest block and blocks that are being decoded."""
        for group in list(self._blocks)[:-1]:
            if self._held_bytes <= self._budget_bytes:
                return
            if self._blocks[group].done():
                self._held_bytes -= self._blocks.pop(group).result().num_bytes
