"""Ends a process when its parent ends, however that happens."""

import multiprocessing
import os
import shutil
import threading
from multiprocessing import connection


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
