"""Ctrl-C that waits for a moment in which it harms nothing."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

_handlers: list[Any] = []
"""What handles SIGINT otherwise, while it is held."""


@contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Holds SIGINT back inside; yields what hands it on to whoever handles it, to be called afterwards.

    Only the main thread is ever interrupted, so that nothing is held in others. Processes that are forked inside hold
    nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield lambda: None
        return
    held: list[tuple[Any, ...]] = []

    def deliver() -> None:
        for signalled in held[:1]:
            handler(*signalled)

    try:
        _handlers.append(handler)
        signal.signal(signal.SIGINT, lambda *signalled: held.append(signalled))
        yield deliver
    finally:
        _let_go()


def _let_go() -> None:
    if _handlers:
        signal.signal(signal.SIGINT, _handlers.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
