"""Locks of open files, which the kernel drops when their process dies, and whether a file is still in its place."""

import fcntl
import os
from pathlib import Path


def try_lock(descriptor: int) -> bool:
    """Lock an open file without waiting; return False if another process or descriptor has the lock.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(descriptor: int, place: str | Path) -> bool:
    """Return whether the open file is still the file at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(place))
    except (FileNotFoundError, NotADirectoryError):
        return False
