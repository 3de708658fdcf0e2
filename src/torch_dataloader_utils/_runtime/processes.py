"""End a process when its parent ends; hold back signals, and garbage collection, where they would do harm."""

import gc
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection
from threading import current_thread, main_thread
from types import FrameType
from typing import Any


def end_with_parent(directory: str) -> None:
    """Start a thread that ends this process as soon as its parent has ended; call it early in a worker.

    The parent is the process that asked for this process, under forkserver too; without a parent nothing is done. An
    idle worker would not notice the end by itself: it waits on pipes that its siblings hold open as well.

    directory: Directory of temporary files. It is removed first, since a killed process cannot remove it.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, name="tdu-parent-watch", daemon=True).start()


_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
"""Handlers of the signals that are held."""


@contextmanager
def held(*numbers: int) -> Iterator[Callable[[], None]]:
    """Hold back the handlers of these signals in the block; yield a function that runs them for signals that came.

    A handler runs once, however often its signal came. Nothing is held in threads other than the main thread, where
    Python runs no handlers, and in processes that are forked inside the block.
    """
    if current_thread() is not main_thread():
        yield lambda: None
        return
    came: dict[int, FrameType | None] = {}
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}

    def deliver() -> None:
        for number, frame in came.items():
            handlers[number](number, frame)

    try:
        for number, handler in handlers.items():
            _handlers[number] = handler
            signal.signal(number, came.setdefault)
        yield deliver
    finally:
        try:
            _let_go()
        finally:  # a restored handler may have raised before the others were restored
            _let_go()


def _let_go() -> None:
    for number, handler in list(_handlers.items()):
        signal.signal(number, handler)
        _handlers.pop(number, None)


_collects_after_fork: bool | None = None
"""Whether processes that are forked now collect garbage; None outside `garbage_left_to_parent`."""


@contextmanager
def garbage_left_to_parent() -> Iterator[None]:
    """Keep processes that are forked in this block from collecting earlier garbage: reference cycles stay the parent's.

    Some objects must not die in another process. Memory and events of CUDA end a forked process: torch calls CUDA as
    they die, and raises in a destructor.
    """
    global _collects_after_fork
    collects = _collects_after_fork = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _collects_after_fork = None
        if collects:
            gc.enable()


def _leave_garbage() -> None:
    global _collects_after_fork
    collects, _collects_after_fork = _collects_after_fork, None
    if collects is not None:
        gc.freeze()
    if collects:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
    os.register_at_fork(after_in_child=_leave_garbage)
