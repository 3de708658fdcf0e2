"""Indices built once and kept: by one process per cache directory, for all of them.

A directory on a node's own disk is filled once per node, one on a shared file system once per job. Who builds is
decided by a lock file in the directory, not by ranks: no process group is needed, and if a builder dies, another takes
over.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_dataloader_utils.errors import CorruptFileError, NoDataError, StoreError
from torch_dataloader_utils.tokens.array_file import Arrays, read_arrays, write_arrays

_LOGGER = logging.getLogger(__name__)

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.01, 1.0

# Errors of file systems without locks. Every process builds there: all publish the same bytes by a rename.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCache:
    """A directory of built indices.

    `trusts_cache` takes files as they are: no lock, no build on a miss, no checksum pass.
    `lock_timeout_seconds` is how long one process waits for another that builds.
    """

    directory: Path
    trusts_cache: bool = False
    lock_timeout_seconds: float = 3600.0

    def path_of(self, name: str, description: Mapping[str, Any]) -> Path:
        """The file of these indices: a digest of everything they depend on, then a name for people."""
        canonical = json.dumps(dict(description), sort_keys=True, separators=(",", ":")).encode()
        return self.directory / f"{hashlib.blake2b(canonical, digest_size=16).hexdigest()}-{name}.index"

    def load_or_build(self, name: str, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """The arrays of `description`: mapped from the cache, or built, published, and mapped.

        A damaged cache file is built again; the process that does so logs it. A directory that cannot be written is no
        obstacle: the indices are then built in memory, and the log says so.

        Raises:
            NoDataError: with `trusts_cache`, when the file is not there.
            StoreError: another process builds and does not finish in time.
        """
        path = self.path_of(name, description)
        if self.trusts_cache:
            return self._load_trusted(path, description)
        found = _try_read(path, description)
        if isinstance(found, dict):
            return found
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = _open_lock(path.with_suffix(".lock"))
        except OSError as error:
            _log_damage(found)
            _LOGGER.warning("%s cannot be written (%s); indices are built in memory.", self.directory, error)
            return build()
        with _hold_lock(lock, path.with_suffix(".lock"), self.lock_timeout_seconds):
            found = _try_read(path, description)
            if isinstance(found, dict):
                return found
            _log_damage(found)
            return _build(path, description, build)

    def _load_trusted(self, path: Path, description: Mapping[str, Any]) -> Arrays:
        try:
            return read_arrays(path, description, checks_content=False)
        except NoDataError as error:
            raise NoDataError(
                f"There is no index {path} for {dict(description)}. fast_cache_load and defer_npy_index_mmap need a "
                f"full cache: run once without them, with the same configuration."
            ) from error


def _build(path: Path, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
    arrays = build()
    try:
        write_arrays(path, arrays, description)
        return read_arrays(path, description, checks_content=False)
    except CorruptFileError:
        raise
    except OSError as error:
        _LOGGER.warning("%s cannot be written (%s); indices stay in memory.", path, error)
        return arrays


def _try_read(path: Path, description: Mapping[str, Any]) -> Arrays | CorruptFileError | NoDataError:
    """The arrays, or why there are none: the file is missing, or damaged."""
    try:
        return read_arrays(path, description)
    except (NoDataError, CorruptFileError) as error:
        return error


def _log_damage(why_not: CorruptFileError | NoDataError) -> None:
    if isinstance(why_not, CorruptFileError):
        _LOGGER.warning("A damaged index is replaced: %s", why_not)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def _hold_lock(descriptor: int, path: Path, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock file, and remove it in the end.

    The kernel gives the lock up when its process dies, so nobody has to guess whether an owner is alive. A process may
    get the lock of a file that was removed while it waited. That lock excludes nobody, so the process opens the file
    that is there now and tries again.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_POLL_SECONDS
    try:
        while (state := _try_lock(descriptor)) is not None:
            if state and _is_at(descriptor, path):
                break
            if state:
                stale, descriptor = descriptor, _open_lock(path)
                os.close(stale)
                continue
            if time.monotonic() > deadline:
                raise StoreError(
                    f"Another process has held {path} for {timeout_seconds:.0f} s while it builds indices. Wait for "
                    f"it, or raise the timeout."
                )
            time.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_SECONDS)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool | None:
    """Whether the lock is ours; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
