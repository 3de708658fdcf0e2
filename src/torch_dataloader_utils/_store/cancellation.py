"""Calls of storage clients that end when nobody wants their result any more; see `_runtime/waiting`."""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from torch_dataloader_utils._runtime.waiting import POLL_SECONDS, check_wanted
from torch_dataloader_utils._store.diagnosis import OverdueError

T = TypeVar("T")


def run_on_loop(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], left_seconds: Callable[[], float] = lambda: math.inf
) -> T:
    """Run `work` on the loop of another thread and return its result; cancelled if this thread is interrupted.

    left_seconds: Function that is called again and again while `work` runs, since the time left may grow.

    Raises:
        StoreError: the process began to end, or the work of this thread was interrupted.
        OverdueError: no seconds were left.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        while True:
            try:
                return future.result(max(0.0, min(POLL_SECONDS, left_seconds())))
            except TimeoutError:
                if future.done():  # the work's own error, or its end came just now
                    return future.result()
            check_wanted()
            if left_seconds() <= 0:
                raise OverdueError("the reply was not complete when the time for this request was over")
    finally:
        future.cancel()


def ask(
    filesystem: Any,
    method: str,
    *arguments: Any,
    left_seconds: Callable[[], float] = lambda: math.inf,
    **options: Any,
) -> Any:
    """Return the result of a storage client's method; a coroutine is waited for as in `run_on_loop`.

    Raises:
        StoreError: as `run_on_loop`. Any other error of the client.
    """
    blocking = getattr(filesystem, method)
    if not inspect.iscoroutinefunction(inspect.unwrap(blocking)):
        return blocking(*arguments, **options)
    return run_on_loop(filesystem.loop, getattr(filesystem, f"_{method}")(*arguments, **options), left_seconds)
