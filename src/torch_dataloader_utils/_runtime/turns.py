"""Runs quick jobs one thread at a time, because most of their work holds the interpreter's lock.

Two threads with 0.1 ms of Python and 0.1 ms of C++ for each item pass that lock to each other several times an item,
and each change costs as much as the work: with 2,000 small Parquet files two threads took twice the time of one.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# An item that takes longer is mostly C++, which threads run in parallel: a footer of 10 columns takes 0.1 ms and a row
# group of 20 KB 0.15 ms, half of either in Python; 65,536 rows of 51 columns take 10 ms, with 1 ms of Python.
_LONG_SECONDS = 0.5e-3
# A thread that uses a smaller part of the time than this waits for disks. Threads that wait only for the interpreter's
# lock use more: two of them share it.
_BUSY_PART = 0.25
# One slow lot may be chance: the first lot of a thread whose allocator is cold took 0.6 ms an item.
_LOTS_IN_A_ROW = 3


class Pace:
    """Measures work on lots of items.

    is_slow: whether several lots in a row took long or mostly waited; once true, it stays true.
    """

    def __init__(self) -> None:
        self.is_slow = False
        self._slow_lots = 0

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """The results of one lot, each computed here when it is asked for."""
        passed = busy = 0.0
        for item in items:
            begin, begin_busy = time.perf_counter(), time.thread_time()
            result = function(item)
            passed += time.perf_counter() - begin
            busy += time.thread_time() - begin_busy
            yield result
        self._learn(len(items), passed, busy)

    def watch(self, job: Callable[[], R], num_items: int) -> R:
        """Run `job`, which works on one lot of `num_items` items, and return its result."""
        begin, begin_busy = time.perf_counter(), time.thread_time()
        result = job()
        self._learn(num_items, time.perf_counter() - begin, time.thread_time() - begin_busy)
        return result

    def _learn(self, num_items: int, passed: float, busy: float) -> None:
        is_slow_lot = busy > _LONG_SECONDS * num_items or busy < _BUSY_PART * passed
        self._slow_lots = self._slow_lots + 1 if is_slow_lot else 0
        self.is_slow = self.is_slow or self._slow_lots == _LOTS_IN_A_ROW


class Turns:
    """Lets only one thread at a time work on a lot of items while lots are quick; after that all in parallel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pace = Pace()

    def take(self, job: Callable[[], R], num_items: int) -> R:
        """Run `job`, over `num_items` items, in this thread when it is its turn; returns its result."""
        if self._pace.is_slow:
            return job()
        with self._lock:
            return self._pace.watch(job, num_items)
