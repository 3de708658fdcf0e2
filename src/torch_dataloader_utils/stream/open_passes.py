"""Closes passes that are still open when the program exits, and stops passes that a fork has copied.

At exit Python closes generators last, when modules are empty already: threads and worker processes would not be ended,
callbacks would fail, and each open pass would print a traceback.

A pass that a fork copied has no threads in the child, so that the child would wait for a batch without end; and its
worker processes belong to the parent.
"""

import atexit
import ctypes
import os
import threading
from collections.abc import Generator
from contextlib import ExitStack
from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch.utils.data  # noqa: F401 - its hooks, and multiprocessing's, must be registered before ours, which runs first

from torch_dataloader_utils.errors import ConfigError

T = TypeVar("T")

# Every pass, and the thread that took its first batch (none before that), which need not be the one that made it.
_begun_by: WeakKeyDictionary[Generator[Any], list[threading.Thread]] = WeakKeyDictionary()


def closed_at_exit(batches: Generator[T]) -> Generator[T]:
    """The same pass, closed at the exit of this process if it is still open; in a forked process it raises ConfigError.

    At exit only daemon threads still run. Their passes are not closed: the loops would go on as if the epoch had ended.
    """
    begun_by: list[threading.Thread] = []
    noted = _noted(batches, begun_by)
    _begun_by[noted] = begun_by
    return noted


def _noted(batches: Generator[T], begun_by: list[threading.Thread]) -> Generator[T]:
    begun_by.append(threading.current_thread())
    process = os.getpid()
    try:
        for batch in batches:
            yield batch
            if os.getpid() != process:
                raise ConfigError(
                    f"This pass was begun in process {process}, and this is {os.getpid()}, a fork of it: the threads "
                    "and worker processes of the pass are not here. Begin a pass of your own: for batch in loader."
                )
    finally:
        if os.getpid() == process:
            batches.close()
        else:  # keep it for ever: dropped, it would be closed, which only the parent may do
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(batches))


def _close_all() -> None:
    with ExitStack() as closing:  # closes the others if a callback of one of them raises
        for batches, begun_by in list(_begun_by.items()):
            is_left_alone = any(thread.daemon and thread.is_alive() for thread in begun_by)
            if getgeneratorstate(batches) == GEN_SUSPENDED and not is_left_alone:
                closing.callback(batches.close)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # A child must not close its parent's passes.
    os.register_at_fork(after_in_child=_begun_by.clear)
