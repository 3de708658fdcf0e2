"""Quick work, one thread at a time: most of it holds the interpreter's lock.

Two threads that each take 0.1 ms of Python and 0.1 ms of C++ an item hand that lock to and fro several times an item,
and a hand-over costs as much as the work: 2,000 small Parquet files took two threads twice the time of one.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# An item that takes more is mostly C++, which threads do side by side.
_LONG_SECONDS = 0.5e-3
# A thread that gets so small a part of the time waits for disks, not for the interpreter's lock.
_BUSY_PART = 0.25
# So many slow lots in a row are no accident, such as a thread that begins with a cold allocator.
_LOTS_IN_A_ROW = 3


class Pace:
    """Watches work on lots of items; `is_slow` once it has taken long, or has mostly waited, several times in a row."""

    def __init__(self) -> None:
        self.is_slow = False
        self._slow_lots = 0

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`function` of every item, here and now."""
        begin, busy = time.perf_counter(), time.thread_time()
        results = [function(item) for item in items]
        busy = time.thread_time() - busy
        waits = busy < _BUSY_PART * (time.perf_counter() - begin)
        self._slow_lots = self._slow_lots + 1 if waits or busy > _LONG_SECONDS * len(items) else 0
        self.is_slow = self.is_slow or self._slow_lots == _LOTS_IN_A_ROW
        return results


class Turns:
    """Lets threads work on one lot of items at a time as long as that is quick; then side by side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pace = Pace()

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`function` of every item, in this thread, when it is its turn."""
        if self._pace.is_slow:
            return [function(item) for item in items]
        with self._lock:
            return self._pace.each(function, items)
