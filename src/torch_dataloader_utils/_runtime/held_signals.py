"""Signals that wait for a moment in which their handlers harm nothing."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

_handlers: dict[int, Any] = {}
"""What handles each signal otherwise, while it is held."""


@contextmanager
def held(*numbers: int) -> Iterator[Callable[[], None]]:
    """Holds these signals back inside; yields what hands one of each that came to its handler, to be called afterwards.

    Python runs handlers in the main thread only, so that nothing is held in others. Nothing is held in processes that
    are forked inside either.
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
