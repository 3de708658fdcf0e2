"""Passes that are left in the middle: closed as the program ends, while all that they need is there.

Python itself would close them last of all, when modules are empty already. Threads and worker processes would not be
ended then, callbacks would fail, and every pass would be a traceback on stderr.

And passes that a fork copied: their threads did not come along, so that a batch would be waited for without end, and
their worker processes are the parent's to end.
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

# By the thread that takes the first batch, which need not be the one that makes the iterator; none is there before.
_begun_by: WeakKeyDictionary[Generator[Any], list[threading.Thread]] = WeakKeyDictionary()


def closed_at_exit(batches: Generator[T]) -> Generator[T]:
    """The same pass, which this process closes at its exit if it is still open then, and no other goes on with.

    Of all threads only daemons still run by then. Their passes are left alone: a loop over a pass that somebody else
    closes goes on as if the epoch were over.
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
        else:  # one reference that nobody drops, for what is dropped is closed, and that is the parent's to do
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(batches))


def _close_all() -> None:
    with ExitStack() as closing:  # closes the others if a callback of one of them raises
        for batches, begun_by in list(_begun_by.items()):
            is_left_alone = any(thread.daemon and thread.is_alive() for thread in begun_by)
            if getgeneratorstate(batches) == GEN_SUSPENDED and not is_left_alone:
                closing.callback(batches.close)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # Its parent's passes are not a child's to close.
    os.register_at_fork(after_in_child=_begun_by.clear)
