"""The entries of a host's cache, the same in all processes; and the choice of entries that make room for a new entry.

    journal     added and removed entries, in records of one length; its lock is the lock of the directory

The files are the truth. A process lists the files once, and then reads the records that others append to the journal.
If the journal was cut, replaced, deleted or damaged, the process lists the files again.
"""

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from threading import Lock

import numpy as np

from torch_dataloader_utils._runtime.waiting import pause
from torch_dataloader_utils.cache.entries import HEAD_BYTES, EntryFiles, is_entry, key_number
from torch_dataloader_utils.cache.schedules import ReadSchedules

_RECORD = struct.Struct("<40sq")
_MOST_JOURNAL_BYTES = 16 << 20
# A process holds the lock for milliseconds; a stopped process holds it forever.
_MOST_WAIT_SECONDS = 5.0
_POLL_SECONDS = 0.001
# Entries are ranked again when at least one in this many has changed or asked for room.
_RANKING_AGE = 64


class CacheIndex:
    """Entries of one directory; thread-safe. Every method may raise OSError.

    most_bytes: Limit for all entries.
    """

    def __init__(self, root: Path, most_bytes: int) -> None:
        self.files = EntryFiles(root)
        self.schedules = ReadSchedules(root)
        self._most_bytes = most_bytes
        self._journal = root / "journal"
        self._lock = Lock()
        self._seen: tuple[int, int] | None = None
        self._offset = 0
        self._sizes: dict[str, int] = {}
        self._num_bytes = 0
        self._ranking: list[tuple[float, str]] = []
        self._changes = 0

    def unlock(self) -> None:
        """Replace the lock in a forked child, where the thread that held the lock may not exist."""
        self._lock = Lock()

    def admits(self, name: str, length: int) -> bool:
        """Return whether an entry should be kept: space is free, or other entries are read later than this entry."""
        with self._locked():
            return self._victims(name, HEAD_BYTES + length) is not None

    def add(self, name: str, length: int, publish: Callable[[], None]) -> int | None:
        """Publish an entry after making room; return the number of removed entries, None if it is not to be kept."""
        with self._locked() as journal:
            victims = self._victims(name, HEAD_BYTES + length)
            if victims is None:
                return None
            removed = [victim for victim in victims if self._remove(journal, victim)]
            publish()
            self._record(journal, name, HEAD_BYTES + length)
            return len(removed)

    def remove(self, name: str) -> None:
        """Remove an entry."""
        with self._locked() as journal:
            self._remove(journal, name)

    def _remove(self, journal: int, name: str) -> bool:
        was_there = self.files.remove(name)
        self._record(journal, name, -1)
        return was_there

    def _record(self, journal: int, name: str, size: int) -> None:
        self._apply(name, size)
        record = _RECORD.pack(name.encode(), size)
        if os.write(journal, record) == len(record):
            self._offset += len(record)

    def _apply(self, name: str, size: int) -> None:
        self._num_bytes -= self._sizes.pop(name, 0)
        if size >= 0:
            self._sizes[name] = size
            self._num_bytes += size
        self._changes += 1

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock: no other thread or process changes the entries, and this index knows all of them."""
        with self._lock:
            journal = self._open_journal()
            try:
                self._catch_up(journal)
                yield journal
                if self._offset > _MOST_JOURNAL_BYTES:
                    self._journal.unlink(missing_ok=True)
            finally:
                fcntl.flock(journal, fcntl.LOCK_UN)
                os.close(journal)

    def _open_journal(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        deadline = time.monotonic() + _MOST_WAIT_SECONDS
        while True:
            journal = os.open(self._journal, flags, 0o600)
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(journal)
                if not S_ISREG(status.st_mode):
                    self._journal.unlink()
                elif os.path.samestat(status, self._journal.lstat()):
                    return journal
            except (BlockingIOError, FileNotFoundError):
                if time.monotonic() > deadline:
                    os.close(journal)
                    raise
            except BaseException:
                os.close(journal)
                raise
            os.close(journal)
            pause(_POLL_SECONDS)

    def _catch_up(self, journal: int) -> None:
        status = os.fstat(journal)
        rest = status.st_size % _RECORD.size
        if rest:  # a full disk cut a record
            os.ftruncate(journal, status.st_size - rest)
        seen, stop = (status.st_dev, status.st_ino), status.st_size - rest
        if rest or seen != self._seen or not self._follow(journal, stop):
            self._sizes = dict(self.files.sizes())
            self._num_bytes = sum(self._sizes.values())
            self._changes += len(self._sizes)
        self._seen, self._offset = seen, stop

    def _follow(self, journal: int, stop: int) -> bool:
        """Apply the records up to `stop`; return False, and apply nothing, if they do not continue this index."""
        if not 0 <= stop - self._offset <= 2 * _MOST_JOURNAL_BYTES:
            return False
        records = os.pread(journal, stop - self._offset, self._offset)
        changes = [(name.decode("ascii", "replace"), size) for name, size in _RECORD.iter_unpack(records)]
        if not all(is_entry(name, size) for name, size in changes):
            return False
        for name, size in changes:
            self._apply(name, size)
        return True

    def _victims(self, name: str, size: int) -> list[str] | None:
        """Return the entries to remove before an entry of `size` bytes; None if earlier reads would lose entries.

        Entries with the farthest next use go first (Belady 1966); entries without a known use by age, oldest first.
        """
        missing = self._num_bytes - self._sizes.get(name, 0) + size - self._most_bytes
        if missing <= 0:
            return []
        if size > self._most_bytes:
            return None
        self._changes += 1
        uses = self.schedules.next_uses()
        own = uses.of(key_number(name))
        if not self._ranking or self._changes * _RANKING_AGE >= len(self._sizes):
            names = list(self._sizes)
            distances = uses.of_all(np.array([key_number(each) for each in names], np.uint64))
            farthest = np.argsort(-distances, kind="stable").tolist()
            self._ranking = [(float(distances[index]), names[index]) for index in farthest]
            self._changes = 0
        victims = []
        for distance, other in self._ranking:
            if other == name or other not in self._sizes:
                continue
            if distance < own:
                break
            victims.append(other)
            missing -= self._sizes[other]
            if missing <= 0:
                return victims
        return None
