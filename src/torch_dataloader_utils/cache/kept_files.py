"""A cache on this host of footers, row lengths and results of whole reads, for other processes and the next job.

Each value is one file, named by a hash of (path, identity), so that a replaced data file never gets an old value. Only
this user can read the files: a directory that others can enter is not used. Files appear whole or not at all, and have
a checksum over name and bytes. A fault here costs a request, never a row.
"""

import logging
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from torch_dataloader_utils._core.spans import Buffer

_log = logging.getLogger(__name__)

VARIABLE = "TORCH_DATALOADER_UTILS_CACHE"
"""Environment variable with the directory of the cache, or "off"."""

_MAGIC = b"TDUTAIL2"
_DIGEST_BYTES = 16
# Room for 40,000 footers of 26 KB (50 columns, 4 row groups).
_MOST_BYTES = 1 << 30
_PUTS_BETWEEN_SWEEPS = 4096
_STALE_SECONDS = 3600

_numbers = count()


class KeptFiles:
    """Values below one directory, which is made on the first `put`.

    private: Directory that only this user may enter: `root`, or a directory that holds `root`.
    """

    def __init__(self, root: Path, most_bytes: int = _MOST_BYTES, private: Path | None = None) -> None:
        self._root = root
        self._private = private or root
        self._most_bytes = most_bytes
        # Some short jobs should sweep too, but not all: listing a million files takes seconds.
        self._puts = random.SystemRandom().randrange(_PUTS_BETWEEN_SWEEPS)

    def get(self, path: str, identity: str) -> bytes | None:
        """Return the value for this version of the file, if it is kept and whole."""
        place = self._place(path, identity)
        try:
            check_private(self._private)
            # Without waiting: opening a pipe would wait forever for a writer.
            with os.fdopen(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                status = os.fstat(file.fileno())
                if not S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > self._most_bytes:
                    return None
                content = file.read()
        except OSError:
            return None
        data = content[len(_MAGIC) + _DIGEST_BYTES :]
        return data if content == _sealed(place, data) else None

    def put(self, path: str, identity: str, data: Buffer) -> None:
        """Keep a value; a value that cannot be written is not kept."""
        place = self._place(path, identity)
        try:
            make_private(self._private)
            check_private(self._private)
            descriptor, name = self._created(place)
            try:
                try:
                    _write_all(descriptor, _sealed(place, bytes(data)))
                finally:
                    os.close(descriptor)
                os.replace(name, place)  # noqa: PTH105 - one call a footer; Path is slower
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            self._puts += 1
            if self._puts % _PUTS_BETWEEN_SWEEPS == 0:
                self._sweep()
        except OSError as error:
            _log.debug("a value is not kept in %s: %s", self._root, error)

    def _created(self, place: Path) -> tuple[int, str]:
        """Open a new file beside `place` for writing; return descriptor and name.

        Only this user can enter the directory, so names need not be hard to guess, only new.
        """
        name = f"{place}.{os.getpid()}-{next(_numbers)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            return os.open(name, flags, 0o600), name
        except FileNotFoundError:
            make_private(place.parent)
            return os.open(name, flags, 0o600), name

    def _place(self, path: str, identity: str) -> Path:
        name = blake2b(f"{path}\0{identity}".encode(), digest_size=20).hexdigest()
        return self._root / name[:2] / name[2:]

    def _sweep(self) -> None:
        """Remove the oldest files until a fifth of the capacity is free, and unfinished files of killed processes."""
        now = time.time()
        found = sorted((status.st_mtime, status.st_size, name) for status, name in self._entries())
        left = sum(size for _, size, _ in found)
        wanted = left if left <= self._most_bytes else self._most_bytes * 4 // 5
        for modified, size, name in found:
            is_stale = name.endswith(".tmp") and now - modified > _STALE_SECONDS
            if is_stale or left > wanted:
                Path(name).unlink(missing_ok=True)
                left -= size

    def _entries(self) -> Iterator[tuple[os.stat_result, str]]:
        """Yield all kept files; skip folders that are not ours, and files that disappear meanwhile."""
        for folder in self._root.iterdir():
            with suppress(OSError), os.scandir(folder) as entries:
                yield from ((entry.stat(), entry.path) for entry in entries if entry.is_file(follow_symlinks=False))


def make_private(directory: Path) -> None:
    """Make a directory, and its missing parents, for this user alone."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def check_private(directory: Path) -> None:
    """Raise PermissionError unless this is a directory of this user alone: others could exchange the files in it."""
    status = directory.lstat()
    if not S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{directory} is not a directory of this user alone")


def footer_cache() -> KeptFiles | None:
    """Return this user's cache of footers on this host; None if it is switched off."""
    return _kept("footers")


def row_length_cache() -> KeptFiles | None:
    """Return this user's cache of row lengths on this host; None if it is switched off."""
    return _kept("lengths")


def scan_cache() -> KeptFiles | None:
    """Return this user's cache of results of whole reads of large local files; None if it is switched off."""
    return _kept("scans")


_opened: dict[tuple[str, str], KeptFiles] = {}


def _own_directory() -> str | None:
    """Return the directory of this user's caches; None for a user without a home (a bare number in a container)."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    except RuntimeError:
        return None
    return str(home / "torch_dataloader_utils")


def _kept(kind: str) -> KeptFiles | None:
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() == "off":
        return None
    root = chosen or _own_directory()
    if root is None:
        return None
    return _opened.setdefault((root, kind), KeptFiles(Path(root) / kind))


def _sealed(place: Path, data: bytes) -> bytes:
    digest = blake2b(f"{place.parent.name}{place.name}".encode(), digest_size=_DIGEST_BYTES)
    digest.update(data)
    return _MAGIC + digest.digest() + data


def _write_all(descriptor: int, data: bytes) -> None:
    # A nearly full disk takes a part, and fails only at the next write.
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
