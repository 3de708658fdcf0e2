"""Files that appear whole or not at all: written beside their final path, synced, renamed.

A crash at any point leaves the old file or the new one, and at worst a hidden temporary file, which the next writer
of the same path removes once it is an hour old and no living process holds it.
"""

import contextlib
import fcntl
import glob
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torch_dataloader_utils.errors import NoDataError

_SUFFIX = ".pending"

# A pending file younger than this may belong to a writer that has not taken its lock yet.
_SWEEP_AGE_SECONDS = 3600.0


class PendingFile:
    """A file on its way to `path`: write to `file`, then `publish` or `discard`, once."""

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise NoDataError(f"The directory of {path} does not exist. Make it first.")
        self.path = path
        _sweep(path)
        # Like mkstemp, but with the permissions of the user's umask: corpora and caches are shared with a group.
        self._pending = path.with_name(f".{path.name}.{secrets.token_hex(8)}{_SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file: BinaryIO = os.fdopen(os.open(self._pending, flags, 0o666), "w+b")
        with contextlib.suppress(OSError):  # a store without locks: nobody sweeps there either
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def publish(self) -> None:
        """Make the file visible under its path, replacing what was there."""
        self.sync()
        self._pending.replace(self.path)
        sync_directory(self.path.parent)

    def sync(self) -> None:
        """Flush to the disk and close; the file stays invisible."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def discard(self) -> None:
        """Remove the pending file."""
        self.file.close()
        self._pending.unlink(missing_ok=True)


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """A file to write to; it takes the place of `path` when the block ends without an exception."""
    pending = PendingFile(path)
    try:
        yield pending.file
        pending.publish()
    finally:
        pending.discard()


def sync_directory(path: Path) -> None:
    """Make renames inside a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(path: Path) -> None:
    """Remove what crashed writers of `path` left behind."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{_SUFFIX}"):
        # Another sweeper may be faster, and a store may know no locks: then the file simply stays.
        with contextlib.suppress(OSError), left.open("rb") as file:
            if time.time() - left.stat().st_mtime > _SWEEP_AGE_SECONDS:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
