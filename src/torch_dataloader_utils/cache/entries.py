"""The files of a host's cache, one for each entry; and which of several processes fetches an entry that is missing.

    entries/ab/NAME     an entry, whole; or it is not there
    pending/NAME        locked by whoever fetches this entry, and what it has written so far

Files are this user's alone and carry a checksum over name, length and bytes. The kernel drops the lock of a process
that dies: another one takes the file over, or removes it.
"""

import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils.cache.kept_files import make_private

_MAGIC = b"TDUCACH1"
_HEAD = struct.Struct("<8sQI40s4x")
HEAD_BYTES = _HEAD.size
# One call of the kernel reads or writes a little less than 2 GiB.
MOST_ENTRY_BYTES = 1 << 30
_KEY_DIGITS = 16
_NAME = re.compile(r"[0-9a-f]{40}")

# Without waiting: to open a pipe would wait for ever for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CLAIM = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class GroupKey(NamedTuple):
    """A row group of one version of a file. scope: by which access it is read; see `StoreAccess.scope`."""

    scope: str
    path: str
    identity: str
    row_group: int

    @property
    def number(self) -> int:
        """64 bits that stand for it: entries of one row group have the same next use."""
        return int.from_bytes(blake2b(self._text.encode(), digest_size=8).digest(), "big")

    def entry_name(self, span: Span) -> str:
        """The name of the entry with these bytes of it, 40 digits; the first 16 are its number."""
        text = f"{self._text}\0{span[0]}\0{span[1]}".encode()
        return f"{self.number:016x}{blake2b(text, digest_size=12).hexdigest()}"

    @property
    def _text(self) -> str:
        return f"{self.scope}\0{self.path}\0{self.identity}\0{self.row_group}"


def is_entry(name: str, size: int) -> bool:
    """Whether a file of this name and size (head included) may be an entry; a size below 0 is of one that is gone."""
    return bool(_NAME.fullmatch(name)) and size <= HEAD_BYTES + MOST_ENTRY_BYTES


def key_number(name: str) -> int:
    """The number of the row group that an entry belongs to."""
    return int(name[:_KEY_DIGITS], 16)


class DamagedEntryError(Exception):
    """An entry is cut, changed, another one's, or not this user's."""


@dataclass(frozen=True, slots=True)
class EntryFiles:
    """The entries below one directory; every method may raise OSError."""

    root: Path

    def make(self) -> None:
        """Make the directories, for this user alone."""
        for name in ("entries", "pending", "schedules"):
            make_private(self.root / name)

    def read(self, name: str, length: int | None = None, into: memoryview | None = None) -> Buffer | None:
        """The bytes of an entry; None if it is not there.

        length: that it must have; None for whatever it says. into: memory of that length to read them into.

        Raises:
            DamagedEntryError: these are not the bytes that were written under this name.
        """
        try:
            descriptor = os.open(self._place(name), _READ)
        except FileNotFoundError:
            return None
        try:
            status = os.fstat(descriptor)
            size = status.st_size if length is None else HEAD_BYTES + length
            fits = HEAD_BYTES <= size == status.st_size <= HEAD_BYTES + MOST_ENTRY_BYTES
            if status.st_uid != os.geteuid() or not fits:
                raise DamagedEntryError(name)
            head = bytearray(HEAD_BYTES)
            data = memoryview(bytearray(size - HEAD_BYTES)) if into is None else into
            is_whole = os.preadv(descriptor, [head, data], 0) == size
        finally:
            os.close(descriptor)
        if not is_whole or head != _head(name, data):
            raise DamagedEntryError(name)
        return data

    def remove(self, name: str) -> bool:
        """Remove an entry; whether it was there."""
        try:
            os.unlink(self._place(name))  # noqa: PTH108 - one call an entry; Path is slower
        except FileNotFoundError:
            return False
        return True

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Name and bytes (head included) of every entry, the oldest first; other files are not seen."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.root / "entries") as folders:
            for folder in folders:
                with suppress(OSError), os.scandir(folder) as files:
                    for each in files:
                        # An entry may be removed meanwhile.
                        with suppress(OSError):
                            status = each.stat(follow_symlinks=False)
                            is_here = each.is_file(follow_symlinks=False) and each.name.startswith(folder.name)
                            if is_here and is_entry(each.name, status.st_size):
                                found.append((status.st_mtime_ns, each.name, status.st_size))
        yield from ((name, size) for _, name, size in sorted(found))

    def claim(self, name: str) -> "Claim | None":
        """The right to fetch an entry; None if another thread or process has it."""
        place = self.root / "pending" / name
        while True:
            descriptor = os.open(place, _CLAIM, 0o600)
            try:
                if not _try_lock(descriptor):
                    os.close(descriptor)
                    return None
                if _is_at(descriptor, place):
                    return Claim(self, name, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its last owner has published or removed it meanwhile

    def sweep(self) -> None:
        """Remove what dead processes have left in `pending`."""
        for place in (self.root / "pending").iterdir():
            with suppress(OSError):
                descriptor = os.open(place, _READ)
                try:
                    if _try_lock(descriptor) and _is_at(descriptor, place):
                        place.unlink()
                finally:
                    os.close(descriptor)

    def _place(self, name: str) -> str:
        return f"{self.root}/entries/{name[:2]}/{name}"


class Claim:
    """The right to fetch one entry: write it, then `publish`; `release` in any case."""

    def __init__(self, files: EntryFiles, name: str, descriptor: int) -> None:
        self.name = name
        self._files = files
        self._descriptor = descriptor
        self._is_published = False

    def write(self, data: Buffer) -> None:
        """Write the entry, which is not to be seen yet."""
        os.ftruncate(self._descriptor, 0)  # of what a dead process had written
        parts = [memoryview(_head(self.name, data)), memoryview(data)]
        at = 0
        while parts:
            written = os.pwritev(self._descriptor, parts, at)
            at += written
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][written:]

    def publish(self) -> None:
        """Make the entry visible."""
        place = Path(self._files._place(self.name))
        pending = self._files.root / "pending" / self.name
        try:
            pending.replace(place)
        except FileNotFoundError:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            pending.replace(place)
        self._is_published = True

    def release(self) -> None:
        """Let others fetch it, if it was not published."""
        try:
            if not self._is_published:
                with suppress(OSError):
                    (self._files.root / "pending" / self.name).unlink(missing_ok=True)
            # Not by closing alone: a forked process may have the descriptor too.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            os.close(self._descriptor)


def _head(name: str, data: Buffer) -> bytes:
    sealed = zlib.crc32(data, zlib.crc32(f"{name}{len(data)}".encode()))
    return _HEAD.pack(_MAGIC, len(data), sealed, name.encode())


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, place: Path) -> bool:
    """Whether the open file still is the one of this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), place.lstat())
    except FileNotFoundError:
        return False
