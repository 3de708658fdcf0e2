"""Waits that end when the process ends, or when the work that they belong to is interrupted.

At exit Python first joins the threads of pools, and a thread that waits for a dead server would delay the exit for
minutes. The same is true of Ctrl-C, because the caller goes on only when the threads have ended.
"""

import concurrent.futures.thread  # noqa: F401  # its own hook must be registered before ours, so that ours runs first
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from torch_dataloader_utils.errors import StoreError

POLL_SECONDS = 0.5
_ending = threading.Event()


class _OfThread(threading.local):
    """State of a thread.

    interrupted: In threads of `request_threads`, an event that is set once nobody wants their results any more.
    """

    interrupted: threading.Event | None = None


_of_thread = _OfThread()


@contextmanager
def request_threads(count: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of `count` threads with this name; no thread uses a storage any more when the block has ended.

    At the end, also after an error, requests under way are waited for. After an interrupt (Ctrl-C) they are given up.
    """
    interrupted = threading.Event()
    with ThreadPoolExecutor(count, name, lambda: setattr(_of_thread, "interrupted", interrupted)) as pool:
        try:
            yield pool
        except BaseException as error:
            if not isinstance(error, Exception):
                interrupted.set()
            raise


def pause(seconds: float) -> None:
    """Sleep.

    Raises:
        StoreError: the process began to end, or the work of this thread was interrupted.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        _ending.wait(min(left, POLL_SECONDS))
        check_wanted()


def check_wanted() -> None:
    """Raise StoreError if the process began to end, or the work of this thread was interrupted."""
    if _ending.is_set():
        raise StoreError("The process is ending; a request to the storage was given up.")
    if _of_thread.interrupted is not None and _of_thread.interrupted.is_set():
        raise StoreError("The work that needs this request to the storage was interrupted; the request was given up.")


# Private, but the only hook that runs before pools are joined; concurrent.futures uses it for the same reason.
_at_exit = getattr(threading, "_register_atexit", None)
if _at_exit is not None:
    _at_exit(_ending.set)
if hasattr(os, "register_at_fork"):
    # A worker that was forked while the process began to end would otherwise never read a byte.
    os.register_at_fork(after_in_child=_ending.clear)
