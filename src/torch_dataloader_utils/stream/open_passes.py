"""Close passes that are still open when the program exits, and stop passes that a fork has copied.

At exit Python closes generators last, when modules are already empty: threads and worker processes would not be ended,
callbacks would fail, and each open pass would print a traceback.

A pass that a fork copied has no threads in the child, so the child would wait for a batch forever. The worker processes
of the pass belong to the parent.
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

import torch.utils.data  # noqa: F401 - torch and multiprocessing must register their exit hooks first: ours runs before

from torch_dataloader_utils.errors import ConfigError

T = TypeVar("T")

# Every pass with the thread that took its first batch; an empty list before the first batch. Another thread may have
# made the pass.
_begun_by: WeakKeyDictionary[Generator[Any], list[threading.Thread]] = WeakKeyDictionary()


def closed_at_exit(batches: Generator[T]) -> Generator[T]:
    """Return the same pass, closed at the exit of this process if it is still open.

    In a forked process the pass raises ConfigError. At exit only daemon threads still run. Passes of daemon threads are
    not closed: their loops would go on as if the epoch had ended.
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
                    "and worker processes of the pass are not here. Begin a new pass here: for batch in loader."
                )
    finally:
        if os.getpid() == process:
            batches.close()
        else:  # keep it for ever: Python closes a generator that is dropped, and only the parent may close this one
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(batches))


def _close_all() -> None:
    with ExitStack() as closing:  # closes the other passes if a callback of one pass raises
        for batches, begun_by in list(_begun_by.items()):
            is_left_alone = any(thread.daemon and thread.is_alive() for thread in begun_by)
            if getgeneratorstate(batches) == GEN_SUSPENDED and not is_left_alone:
                closing.callback(batches.close)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    # A child must not close its parent's passes.
    os.register_at_fork(after_in_child=_begun_by.clear)
