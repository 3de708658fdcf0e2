"""Ends a process when its parent ends, and holds signals back where their handlers would do harm."""

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection
from threading import current_thread, main_thread
from typing import Any


def end_with_parent(directory: str) -> None:
    """Start a thread that ends this process as soon as its parent has ended; call it early in a worker.

    The parent is the process that asked for this one, under forkserver too; without a parent nothing is done. An idle
    worker would not notice by itself: it waits on pipes that its siblings hold open as well.

    directory: of temporary files, which is removed first: a process that is killed removes none.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, name="tdu-parent-watch", daemon=True).start()


_handlers: dict[int, Any] = {}
"""The handlers of the signals that are held."""


@contextmanager
def held(*numbers: int) -> Iterator[Callable[[], None]]:
    """Inside, the handlers of these signals do not run; for afterwards, yields a function that runs those which came.

    A handler runs once, however often its signal came. In threads other than the main one, where Python runs no
    handlers, and in processes that are forked inside, nothing is held.
    """
    if current_thread() is not main_thread():
        yield lambda: None
        return
    came: dict[int, Any] = {}
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
        finally:  # a handler that is back already may have raised before the others were
            _let_go()


def _let_go() -> None:
    for number, handler in list(_handlers.items()):
        signal.signal(number, handler)
        _handlers.pop(number, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
