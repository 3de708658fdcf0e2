"""A thread pool that is safe beside forks: a fork waits until threads of ended pools are gone.

pyarrow's allocator takes a lock when a thread begins and when one ends, and does not prepare for forks: a child that is
forked in that moment has the lock held for ever, and its first new thread waits for it. That happened to 6 of 110,000
children forked just after threads had ended, and to none of 105,000 whose fork waited. To join a thread is not enough,
because it frees its memory after that.
"""

import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

_TASKS = Path("/proc/self/task")  # where there is none, processes are spawned
# How long after its pool was shut down a fork waits for a thread that is in the middle of a job.
_JOB_SEC = 1.0
# How long it waits for a thread that has left Python: a moment, unless the machine is very busy.
_END_SEC = 10.0
_POLL_SEC = 0.0005


@dataclass(frozen=True, slots=True, eq=False)
class _ShutDown:
    """The threads of a pool that was shut down, and when; a thread that had just begun may still add itself."""

    threads: list[threading.Thread]
    at: float = field(default_factory=time.monotonic)

    def in_jobs(self) -> set[threading.Thread]:
        """Those that have not left Python; none of them does while the caller keeps the interpreter."""
        return {thread for thread in self.threads if thread.is_alive()}


_shut_down: deque[_ShutDown] = deque(maxlen=64)


class ThreadPool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` whose threads no fork meets while they end.

    A fork waits for a thread that is in a job until a second after `shutdown`; it may go on then, and ends later.
    """

    def __init__(self, count: int, name: str) -> None:
        self._begun: list[threading.Thread] = []
        super().__init__(count, thread_name_prefix=name, initializer=partial(_note, self._begun))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `ThreadPoolExecutor`."""
        for pool in list(_shut_down):
            if not any(map(_is_there, pool.threads)):
                _forget(pool)  # before the system gives an id of its threads to another one
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
    # Others may leave while this waits for the first ones.
    while left := {thread for pool in pools for thread in set(pool.threads) - pool.in_jobs()} - gone:
        deadline = time.monotonic() + _END_SEC
        while any(map(_is_there, left)) and time.monotonic() < deadline:
            time.sleep(_POLL_SEC)
        gone |= left
    for pool in pools:
        if gone.issuperset(pool.threads):
            _forget(pool)


def _forget(pool: _ShutDown) -> None:
    with suppress(ValueError):  # another thread has done it
        _shut_down.remove(pool)


def _is_there(thread: threading.Thread) -> bool:
    """Whether the system still has a thread."""
    return (_TASKS / str(thread.native_id)).exists()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_ended, after_in_child=_shut_down.clear)
