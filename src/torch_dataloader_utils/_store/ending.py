"""Waits that end when the process does.

At exit Python joins the threads of pools before anything else; one that still tried to reach a dead server would
hold the process for minutes.
"""

import asyncio
import concurrent.futures.thread  # its own hook must be registered before ours, so that ours runs first
import inspect
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from torch_dataloader_utils.errors import StoreError

T = TypeVar("T")

_POLL_SECONDS = 0.5
_ending = threading.Event()


def pause(seconds: float) -> None:
    """Sleeps.

    Raises:
        StoreError: the process began to end.
    """
    if _ending.wait(seconds):
        raise _stopped()


def run_on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, run on a loop of another thread; cancelled if this thread is interrupted.

    Raises:
        StoreError: the process began to end.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        while True:
            done, _ = concurrent.futures.wait([future], _POLL_SECONDS)
            if done:
                return future.result()
            if _ending.is_set():
                raise _stopped()
    finally:
        future.cancel()


def ask(filesystem: Any, method: str, *arguments: Any, **options: Any) -> Any:
    """What a method of a storage client gives; one that waits for a coroutine does so as `run_on_loop`.

    Raises:
        StoreError: the process began to end. Or what the client raises.
    """
    blocking = getattr(filesystem, method)
    if not inspect.iscoroutinefunction(inspect.unwrap(blocking)):
        return blocking(*arguments, **options)
    return run_on_loop(filesystem.loop, getattr(filesystem, f"_{method}")(*arguments, **options))


def _stopped() -> StoreError:
    return StoreError("The process is ending; a request to the storage was given up.")


# Private, but the only hook that runs before pools are joined; concurrent.futures uses it for the same reason.
_at_exit = getattr(threading, "_register_atexit", None)
if _at_exit is not None:
    _at_exit(_ending.set)
if hasattr(os, "register_at_fork"):
    # A worker forked by a thread that saw the end coming would never read a byte.
    os.register_at_fork(after_in_child=_ending.clear)
