"""Thread pools that are safe with forks, quick jobs one thread at a time, and executors that users pass.

pyarrow's allocator takes a lock when a thread begins and when a thread ends, and does not prepare for forks: a child
forked in that moment has the lock held forever, and its first new thread waits for the lock. This happened to 6 of
110,000 children forked just after threads had ended, and to none of 105,000 whose fork waited. Joining a thread is not
enough, because a thread frees its memory after the join.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

_TASKS = Path("/proc/self/task")  # on systems without this directory, processes are spawned
# Seconds after `shutdown` of its pool during which a fork waits for a thread that is still in a job.
_JOB_SEC = 1.0
# Seconds that a fork waits for a thread that has left Python: a moment, unless the machine is very busy.
_END_SEC = 10.0
_POLL_SEC = 0.0005


@dataclass(frozen=True, slots=True, eq=False)
class _ShutDown:
    """Threads of a pool that was shut down, and the time; a thread that had just begun may still add itself."""

    threads: list[threading.Thread]
    at: float = field(default_factory=time.monotonic)

    def in_jobs(self) -> set[threading.Thread]:
        """Return the threads that have not left Python; no thread leaves while the caller keeps the interpreter."""
        return {thread for thread in self.threads if thread.is_alive()}


_shut_down: deque[_ShutDown] = deque(maxlen=64)


class ThreadPool(ThreadPoolExecutor):
    """`ThreadPoolExecutor` that makes forks wait while its threads end.

    A fork waits for a thread that is in a job until a second after `shutdown`; then it stops waiting, and the thread
    may end later.
    """

    def __init__(self, count: int, name: str) -> None:
        self._begun: list[threading.Thread] = []
        super().__init__(count, thread_name_prefix=name, initializer=partial(_note, self._begun))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `ThreadPoolExecutor`."""
        for pool in list(_shut_down):
            if not any(map(_is_there, pool.threads)):
                _forget(pool)  # before the system gives an id of its threads to another thread
        _shut_down.append(_ShutDown(self._begun))
        super().shutdown(wait, cancel_futures=cancel_futures)


def _note(begun: list[threading.Thread]) -> None:
    begun.append(threading.current_thread())


def _wait_for_ended() -> None:
    pools = list(_shut_down)
    for pool in pools:
        while pool.in_jobs() - {threading.current_thread()} and time.monotonic() < pool.at + _JOB_SEC:
            time.sleep(_POLL_SEC)
    gone: set[threading.Thread] = set()
    # Other threads may leave Python while this waits for the first threads.
    while left := {thread for pool in pools for thread in set(pool.threads) - pool.in_jobs()} - gone:
        deadline = time.monotonic() + _END_SEC
        while any(map(_is_there, left)) and time.monotonic() < deadline:
            time.sleep(_POLL_SEC)
        gone |= left
    for pool in pools:
        if gone.issuperset(pool.threads):
            _forget(pool)


def _forget(pool: _ShutDown) -> None:
    with suppress(ValueError):  # another thread has removed it
        _shut_down.remove(pool)


def _is_there(thread: threading.Thread) -> bool:
    """Return whether the system still has a thread."""
    return (_TASKS / str(thread.native_id)).exists()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_ended, after_in_child=_shut_down.clear)


def available_cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Future(Protocol):
    """Result of `submit`."""

    def result(self) -> Any:
        """Wait, and return the value or raise the error."""

    def cancel(self) -> Any:
        """Do not start the function, if it has not started."""


class Executor(Protocol):
    """Anything that runs a function elsewhere: `concurrent.futures`, mpi4py.futures, a dask client."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Run function(*arguments) at some time."""


T = TypeVar("T")
R = TypeVar("R")

# A longer item is mostly C++, which threads run in parallel: a footer of 10 columns takes 0.1 ms and a row group of
# 20 KB 0.15 ms, half of either in Python; 65,536 rows of 51 columns take 10 ms, with 1 ms of Python.
_LONG_SECONDS = 0.5e-3
# A thread that uses a smaller part of the time than this waits for disks. Threads that wait only for the interpreter's
# lock use more: two of them share the time.
_BUSY_PART = 0.25
# One slow batch may be chance: the first batch of a thread with a cold allocator took 0.6 ms an item.
_SLOW_IN_A_ROW = 3


class QuickWork:
    """Stopwatch for batches of items, to tell whether they are quick.

    is_over: Whether several batches in a row took long or mostly waited; once true, it stays true.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._slow_in_a_row = 0

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the results of one batch of items, each computed here when it is asked for."""
        passed = busy = 0.0
        for item in items:
            begin, begin_busy = time.perf_counter(), time.thread_time()
            result = function(item)
            passed += time.perf_counter() - begin
            busy += time.thread_time() - begin_busy
            yield result
        self._learn(len(items), passed, busy)

    def measured(self, job: Callable[[], R], num_items: int) -> R:
        """Return the result of `job`, which works on one batch of `num_items` items."""
        begin, begin_busy = time.perf_counter(), time.thread_time()
        result = job()
        self._learn(num_items, time.perf_counter() - begin, time.thread_time() - begin_busy)
        return result

    def _learn(self, num_items: int, passed: float, busy: float) -> None:
        is_slow = busy > _LONG_SECONDS * num_items or busy < _BUSY_PART * passed
        self._slow_in_a_row = self._slow_in_a_row + 1 if is_slow else 0
        self.is_over = self.is_over or self._slow_in_a_row == _SLOW_IN_A_ROW


class QuickJobs:
    """Runner of jobs in the calling threads: one at a time while jobs are quick, after that all in parallel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._quick = QuickWork()

    def run(self, job: Callable[[], R], num_items: int) -> R:
        """Return the result of `job`, which works on `num_items` items."""
        if self._quick.is_over:
            return job()
        with self._lock:
            return self._quick.measured(job, num_items)
