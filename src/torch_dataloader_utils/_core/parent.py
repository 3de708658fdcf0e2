"""Processes that do not outlive the one that started them, however that one ends."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing import connection


def end_with_parent(before_end: Callable[[], object] | None = None) -> None:
    """In a worker, early: a thread that waits for the end of the parent, and then ends this process at once.

    The parent is who asked for this process, under forkserver too; where there is none, nothing is done. An idle worker
    waits on pipes that its siblings hold open as well, and would not see that end. before_end: what to clean up then.
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
