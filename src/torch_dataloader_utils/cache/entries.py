"""The files of a host's cache, one for each entry; and the choice of the process that fetches a missing entry.

    entries/ab/NAME     a complete entry: a range of a file, or a value such as a footer
    pending/NAME        locked by the process that fetches this entry; the bytes that it has written so far

Only this user can read the files, and they carry a checksum over name, length and bytes. The kernel drops the lock of a
process that dies: another process takes the file over, or removes it.
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
from stat import S_ISDIR, S_ISREG
from typing import ClassVar, NamedTuple

import numpy as np

from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._engine import crc32
from torch_dataloader_utils._runtime.file_locks import is_at, try_lock

_MAGIC = b"TDUCACH1"
_HEAD = struct.Struct("<8sQI40s4x")
HEAD_BYTES = _HEAD.size
# One call of the kernel reads or writes a little less than 2 GiB.
MOST_ENTRY_BYTES = 1 << 30
_KEY_DIGITS = 16
# Size of the pieces in which an entry is read.
_PIECE_BYTES = 256 << 10
# The first letter of a value's name; names of ranges are digits.
_VALUE = "k"
_NAME = re.compile(rf"[0-9a-f{_VALUE}][0-9a-f]{{39}}")

# A file is opened so often if its owners keep removing it.
_MOST_OPENINGS = 100

# Without waiting: opening a pipe would wait forever for a writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LOCKED = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class GroupKey(NamedTuple):
    """Row group of one version of a file. scope: Access by which it is read; see `StoreAccess.scope`."""

    scope: str
    path: str
    identity: str
    row_group: int

    @property
    def number(self) -> int:
        """64 bits that stand for the row group: all its entries have the same next use."""
        return int.from_bytes(blake2b(self._text.encode(), digest_size=8).digest(), "big")

    def entry_name(self, span: Span) -> str:
        """Return the name of the entry with these bytes of the row group, 40 digits; the first 16 are `number`."""
        text = f"{self._text}\0{span[0]}\0{span[1]}".encode()
        return f"{self.number:016x}{blake2b(text, digest_size=12).hexdigest()}"

    @property
    def _text(self) -> str:
        return f"{self.scope}\0{self.path}\0{self.identity}\0{self.row_group}"


class ValueKey(NamedTuple):
    """Value made from one version of a file, such as its footer.

    scope, path, identity: As in `GroupKey`. what: Kind of value, and all options that decide it.
    """

    scope: str
    path: str
    identity: str
    what: str

    @property
    def entry_name(self) -> str:
        """Name of the entry with this value, 40 letters."""
        text = "\0".join(self).encode()
        return f"{_VALUE}{blake2b(text, digest_size=20).hexdigest()[1:]}"


class TokensKey(NamedTuple):
    """Tokens of a row group, which are read when the row group is read. what: Digest of all that decides them."""

    group: GroupKey
    what: str

    @property
    def entry_name(self) -> str:
        """Name of the entry with these tokens, 40 digits; the first 16 are the row group's number."""
        return f"{self.group.number:016x}{blake2b(self.what.encode(), digest_size=12).hexdigest()}"


def is_value(name: str) -> bool:
    """Return whether an entry is a value, and not a range of a row group."""
    return name.startswith(_VALUE)


def is_entry(name: str, size: int) -> bool:
    """Return whether a file of this name and size (head included) may be an entry. A size below 0: removed."""
    return bool(_NAME.fullmatch(name)) and size <= HEAD_BYTES + MOST_ENTRY_BYTES


def key_number(name: str) -> int:
    """Return the number of the row group that an entry belongs to."""
    return int(name[:_KEY_DIGITS], 16)


class DamagedEntryError(Exception):
    """An entry is cut, changed, another entry's, or another user's."""


@dataclass(frozen=True, slots=True)
class EntryFiles:
    """Entries below one directory; every method may raise OSError."""

    root: Path

    def make(self) -> None:
        """Make the directories, and check that only this user can enter them; remove what dead processes left there."""
        for directory in (self.root, *(self.root / name for name in ("entries", "pending", "schedules"))):
            make_private(directory)
        for directory in map(Path, self._unfinished):
            sweep(directory)

    @property
    def _unfinished(self) -> tuple[str, str]:
        return f"{self.root}/pending", f"{self.root}/schedules"

    def unfinished_bytes(self) -> int:
        """Return the bytes of pending entries and of schedules."""
        total = 0
        for directory in self._unfinished:
            with os.scandir(directory) as files:
                for each in files:
                    # A file may be removed meanwhile.
                    with suppress(OSError):
                        status = each.stat(follow_symlinks=False)
                        if S_ISREG(status.st_mode) and status.st_size <= MOST_ENTRY_BYTES:
                            total += status.st_size
        return total

    def open(self, name: str, length: int | None = None) -> "OpenEntry | None":
        """Return an entry whose bytes the caller reads, checks and closes; None if it does not exist.

        length: Required length; None for any length.

        Raises:
            DamagedEntryError: its head or its length is not of an entry of this name.
        """
        try:
            descriptor = os.open(self._place(name), _READ)
        except FileNotFoundError:
            return None
        try:
            status, head = os.fstat(descriptor), os.pread(descriptor, HEAD_BYTES, 0)
            size = status.st_size - HEAD_BYTES
            if status.st_uid != os.geteuid() or len(head) != HEAD_BYTES or not 0 <= size <= MOST_ENTRY_BYTES:
                raise DamagedEntryError(name)
            seal = _HEAD.unpack(head)[2]
            if head != _HEAD.pack(_MAGIC, size, seal, name.encode()) or length not in (None, size):
                raise DamagedEntryError(name)
        except BaseException:
            os.close(descriptor)
            raise
        return OpenEntry(descriptor, size, _seal(name, size), seal)

    def read(self, name: str, length: int | None = None, into: memoryview | None = None) -> Buffer | None:
        """Return the bytes of an entry; None if it does not exist.

        length: Required length; None for any length. into: Memory of that length to read the bytes into.

        Raises:
            DamagedEntryError: these are not the bytes that were written under this name.
        """
        entry = self.open(name, length)
        if entry is None:
            return None
        try:
            data = np.empty(entry.length, np.uint8).data if into is None else into
            if not entry.read(data):
                raise DamagedEntryError(name)
        finally:
            os.close(entry.descriptor)
        return data

    def remove(self, name: str) -> bool:
        """Remove an entry; return whether it existed."""
        try:
            os.unlink(self._place(name))  # noqa: PTH108 - one call an entry; Path is slower
        except FileNotFoundError:
            return False
        return True

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield name and bytes (head included) of every entry, oldest first; other files are ignored."""
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
        """Return the right to fetch an entry; None if another thread or process has it."""
        pending = f"{self.root}/pending/{name}"
        descriptor = open_locked(pending)
        if descriptor is None:
            return None
        os.ftruncate(descriptor, 0)  # removes the bytes of a dead process
        return Claim(name, descriptor, pending, self._place(name))

    def revoke(self, name: str) -> None:
        """Let another process claim an entry whose fetching does not end; what is fetched after all is not kept."""
        (self.root / "pending" / name).unlink(missing_ok=True)

    def _place(self, name: str) -> str:
        return f"{self.root}/entries/{name[:2]}/{name}"


@dataclass(slots=True)
class OpenEntry:
    """Entry that is being read. Its bytes begin at `start` of the file.

    before: CRC-32 of what comes before the bytes. seal: CRC-32 with the bytes. is_sound: Whether `check` found so.
    """

    descriptor: int
    length: int
    before: int
    seal: int
    is_sound: bool = False

    start: ClassVar[int] = HEAD_BYTES

    def check(self, checksum: int) -> bool:
        """Return whether bytes with this CRC-32, after `before`, are the bytes that were written."""
        self.is_sound = checksum == self.seal
        return self.is_sound

    def read(self, data: memoryview) -> bool:
        """Read the bytes, and return whether they are the bytes that were written.

        Each piece is checked while a core's cache holds it.
        """
        checksum = self.before
        for at in range(0, len(data), _PIECE_BYTES):
            piece = data[at : at + _PIECE_BYTES]
            if os.preadv(self.descriptor, [piece], self.start + at) != len(piece):
                return False
            checksum = crc32(piece, checksum)
        return self.check(checksum)


class Claim:
    """Right to fetch one entry: write it, then `publish`; `release` in any case."""

    def __init__(self, name: str, descriptor: int, pending: str, place: str) -> None:
        self.name = name
        self._descriptor = descriptor
        self._pending = pending
        self._place = place
        self._is_published = False

    def reserve(self, size: int) -> None:
        """Give the pending file its final size, which other processes count before it is written."""
        os.ftruncate(self._descriptor, size)

    def write(self, data: Buffer) -> None:
        """Write the entry, which stays invisible until `publish`."""
        parts = [memoryview(_head(self.name, data)), memoryview(data)]
        at = 0
        while parts:
            written = os.pwritev(self._descriptor, parts, at)
            at += written
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][written:]

    def publish(self) -> bool:
        """Make the entry visible; return False, and do nothing, if the claim was revoked."""
        if not is_at(self._descriptor, self._pending):
            return False
        try:
            os.replace(self._pending, self._place)  # noqa: PTH105 - as in `remove`
        except FileNotFoundError:
            Path(self._place).parent.mkdir(mode=0o700, exist_ok=True)
            Path(self._pending).replace(self._place)
        self._is_published = True
        return True

    def release(self) -> None:
        """Let others fetch the entry, if it was not published."""
        try:
            if not self._is_published:
                with suppress(OSError):
                    if is_at(self._descriptor, self._pending):
                        Path(self._pending).unlink()
            # Closing alone is not enough: a forked process may have the descriptor too.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            os.close(self._descriptor)


def make_private(directory: Path) -> None:
    """Make a directory, and its missing parents, for this user alone.

    Raises:
        PermissionError: it exists and others can enter it, or it is no directory: others could exchange its files.
    """
    for parent in reversed(directory.parents):
        parent.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    if not is_private(directory.lstat()):
        raise PermissionError(f"{directory} is not a directory of this user alone")


def is_private(status: os.stat_result) -> bool:
    """Return whether this is the status of a directory that only this user can enter."""
    return S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def open_locked(place: str | Path) -> int | None:
    """Return the file at a path, opened and locked; it is made if it is missing.

    None if another thread or process has the lock, or if the owners of the file keep removing it. A pipe at the path is
    removed.

    Raises:
        OSError: the path cannot be opened, or its disk has no locks.
    """
    for _ in range(_MOST_OPENINGS):
        descriptor = os.open(place, _LOCKED, 0o600)
        try:
            if not try_lock(descriptor):
                os.close(descriptor)
                return None
            if is_at(descriptor, place):
                if S_ISREG(os.fstat(descriptor).st_mode):
                    return descriptor
                Path(place).unlink()
        except BaseException:
            os.close(descriptor)
            # Without locks (some network disks) nobody else would remove the file.
            Path(place).unlink(missing_ok=True)
            raise
        os.close(descriptor)  # its last owner has published or removed the file meanwhile
    return None


def sweep(directory: Path) -> None:
    """Remove the files that no living process has locked."""
    for place in directory.iterdir():
        with suppress(OSError):
            descriptor = os.open(place, _READ)
            try:
                if try_lock(descriptor) and is_at(descriptor, place):
                    place.unlink()
            finally:
                os.close(descriptor)


def _head(name: str, data: Buffer) -> bytes:
    return _HEAD.pack(_MAGIC, len(data), crc32(data, _seal(name, len(data))), name.encode())


def _seal(name: str, length: int) -> int:
    """Return the checksum of what comes before the bytes of an entry."""
    return zlib.crc32(f"{name}{length}".encode())
