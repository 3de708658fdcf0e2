"""Processes that do not outlive the one that started them, however that one ends."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing import connection


def end_with_parent(before_end: Callable[[], object] | None = None) -> None:
    """Start a thread that ends this process as soon as its parent has ended; call it early in a worker.

    The parent is the process that asked for this one, under forkserver too; without a parent nothing is done. An idle
    worker would not notice by itself: it waits on pipes that its siblings hold open as well.

    before_end: called first, to clean up.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        if before_end is not None:
            before_end()
        os._exit(1)

    threading.Thread(target=wait, name="tdu-parent-watch", daemon=True).start()
