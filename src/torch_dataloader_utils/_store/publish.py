"""Local files that appear whole or not at all: written beside their final path, synced, renamed.

A crash at any point leaves the old file or the new one, and at worst a hidden temporary file. The next writer of the
same path removes it: at once if its writer was a process of this host that is gone, else once it is an hour old; never
while a living process holds it.
"""

import contextlib
import fcntl
import glob
import os
import secrets
import socket
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from torch_dataloader_utils.errors import ConfigError, NoDataError

_SUFFIX = ".pending"

# A pending file younger than this may belong to a writer, on another host, that has not taken its lock yet.
_SWEEP_AGE_SECONDS = 3600.0


class PendingFile:
    """A file that will appear at `path`: write to `file`, then call `publish` or `discard`, once.

    If several processes write one path at the same time, the last one wins.

    Args:
        path: where it will appear; its directory must exist.
        mode: its permissions, before the user's umask is applied.

    Raises:
        NoDataError: there is no such directory. OSError: it cannot be written.
        ConfigError: the path is there and no file (a directory, a pipe, /dev/null).
    """

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        if not path.parent.is_dir():
            raise NoDataError(f"The directory of {path} does not exist. Make it first.")
        # A user who may write in /dev, as root in a container, would replace the device by renaming.
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is a directory, a device or a pipe. Pass the path of a file, new or old.")
        self.path = path
        _sweep(path)
        self._pending, self.file = _make(path, mode)

    def publish(self) -> None:
        """Make the file visible under its path, replacing what was there."""
        self.sync()
        self._pending.replace(self.path)
        self.file.close()  # locked for as long as it can be swept
        sync_directory(self.path.parent)

    def sync(self) -> None:
        """Flush to the disk; the file stays invisible."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def discard(self) -> None:
        """Remove the pending file; harmless after `publish`."""
        with contextlib.suppress(OSError):  # a full disk: what could not be written is not wanted
            self.file.close()
        self._pending.unlink(missing_ok=True)


@contextlib.contextmanager
def write_atomically(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write to; it takes the place of `path` when the block ends without an exception. See `PendingFile`."""
    pending = PendingFile(path, mode)
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


def _make(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A pending file of `path`, new and locked."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        pending = path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}")
        file = os.fdopen(os.open(pending, flags, mode), "w+b")
        # Before it was locked, a container that shares this host's name and not its processes may have swept it.
        try:
            _lock(file)
            if pending.exists():
                return pending, file
        except BlockingIOError:
            pass  # it is being swept right now
        except OSError:
            return pending, file  # a file system without locks: nobody sweeps there either
        file.close()


def _sweep(path: Path) -> None:
    """Remove what dead writers of `path` left behind."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{_SUFFIX}"):
        # Another sweeper may be faster, and a file system may know no locks: then the file simply stays.
        with contextlib.suppress(OSError), left.open("rb") as file:
            if _writer_is_gone(left, path) or time.time() - left.stat().st_mtime > _SWEEP_AGE_SECONDS:
                # Containers may share a host's name and not its processes; the lock is the last word.
                _lock(file)
                left.unlink()


def _lock(file: BinaryIO) -> None:
    """Take the lock of a file until it is closed; OSError where another process has it, or the file system has none."""
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _writer_is_gone(left: Path, path: Path) -> bool:
    """Whether the name says that its writer was a process of this host, and there is none of that number."""
    host, _, process = left.name.removeprefix(f".{path.name}.").partition("-")
    pid = process.partition("-")[0]
    if host != _host() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's
    return False


def _host() -> str:
    return blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
