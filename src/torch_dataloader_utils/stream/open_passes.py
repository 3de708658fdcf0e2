"""Passes that are left in the middle: closed as the program ends, while all that they need is there.

Python itself would close them last of all, when modules are empty already. Threads and worker processes would not be
ended then, callbacks would fail, and every pass would be a traceback on stderr.
"""

import atexit
import os
import threading
from collections.abc import Generator
from contextlib import ExitStack
from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch.utils.data  # noqa: F401 - its hooks, and multiprocessing's, must be registered before ours, which runs first

T = TypeVar("T")

_begun_by: WeakKeyDictionary[Generator[Any], threading.Thread] = WeakKeyDictionary()


def closed_at_exit(batches: Generator[T]) -> Generator[T]:
    """The same pass, which this process closes at its exit if it is still open then.

    Of all threads only daemons still run by then. Their passes are left alone: a loop over a pass that somebody else
    closes goes on as if the epoch were over.
    """
    _begun_by[batches] = threading.current_thread()
    return batches


def _close_all() -> None:
    with ExitStack() as closing:  # closes the others if a callback of one of them raises
        for batches, thread in list(_begun_by.items()):
            is_left_alone = thread.daemon and thread.is_alive()
            if getgeneratorstate(batches) == GEN_SUSPENDED and not is_left_alone:
                closing.callback(batches.close)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # Its parent's passes are not a child's to close.
    os.register_at_fork(after_in_child=_begun_by.clear)
