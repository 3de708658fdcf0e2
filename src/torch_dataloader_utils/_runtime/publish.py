"""Local files that appear whole or not at all: written beside their final path, synced, renamed.

A crash at any point leaves the old file or the new file, and at worst a hidden temporary file. The next writer of the
same path removes the temporary file: at once if its writer was a process of this host that is gone, otherwise once it
is an hour old; never while a living process holds it.
"""

import contextlib
import glob
import os
import secrets
import socket
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from torch_dataloader_utils._runtime.file_locks import try_lock
from torch_dataloader_utils.errors import ConfigError, NoDataError

_SUFFIX = ".pending"

# A pending file younger than this may belong to a writer, on another host, that has not locked the file yet.
_SWEEP_AGE_SECONDS = 3600.0


class PendingFile:
    """File that will appear at `path`: write to `file` or to `place`, then call `publish` or `discard`, once.

    If several processes write one path at the same time, the last one wins.

    Args:
        path: Path at which the file will appear; its directory must exist.
        mode: Permissions of the file, before the user's umask is applied.

    Raises:
        NoDataError: the directory does not exist. OSError: the file cannot be written.
        ConfigError: the path exists and is not a file (a directory, a pipe, /dev/null).
    """

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        if not path.parent.is_dir():
            raise NoDataError(f"The directory of {path} does not exist. Make it first.")
        # A user who may write in /dev, such as root in a container, would replace the device by renaming.
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is a directory, a device or a pipe. Pass the path of a file, new or old.")
        self.path = path
        _sweep(path)
        self.place, self.file = _make(path, mode)

    def publish(self) -> None:
        """Make the file visible under its path, replacing an older file."""
        self.sync()
        self.place.replace(self.path)
        self.file.close()  # stays locked as long as it could be swept
        sync_directory(self.path.parent)

    def sync(self) -> None:
        """Flush to the disk; the file stays invisible."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def discard(self) -> None:
        """Remove the pending file; harmless after `publish`."""
        with contextlib.suppress(OSError):  # a full disk: the unwritten bytes are not wanted
            self.file.close()
        self.place.unlink(missing_ok=True)


@contextlib.contextmanager
def write_atomically(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file to write to; it replaces `path` when the block ends without an exception. See `PendingFile`."""
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
    """Return a new, locked pending file of `path`."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        pending = path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}")
        file = os.fdopen(os.open(pending, flags, mode), "w+b")
        # A container with this host's name, but other processes, may sweep the file before it is locked.
        try:
            _lock(file)
            if pending.exists():
                return pending, file
        except BlockingIOError:
            pass  # another process is sweeping it right now
        except OSError:
            return pending, file  # a file system without locks: nobody sweeps there either
        file.close()


def _sweep(path: Path) -> None:
    """Remove what dead writers of `path` left behind."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{_SUFFIX}"):
        # Another sweeper may be faster, and a file system may have no locks: then the file simply stays.
        with contextlib.suppress(OSError), left.open("rb") as file:
            if _writer_is_gone(left, path) or time.time() - left.stat().st_mtime > _SWEEP_AGE_SECONDS:
                # Containers may share a host's name but not its processes; the lock decides.
                _lock(file)
                left.unlink()


def _lock(file: BinaryIO) -> None:
    """Lock a file until it is closed; OSError if another process holds the lock, or the file system has no locks."""
    if not try_lock(file.fileno()):
        raise BlockingIOError(f"another process has locked {file.name}")


def _writer_is_gone(left: Path, path: Path) -> bool:
    """Return whether the name says that the writer was a process of this host, and no such process lives."""
    host, _, process = left.name.removeprefix(f".{path.name}.").partition("-")
    pid = process.partition("-")[0]
    if host != _host() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # a process of another user
    return False


def _host() -> str:
    return blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()
