"""The entries of a host's cache, the same in all processes; and the choice of entries that make room for other files.

    journal     a random name, then added and removed entries, in records of one length; its lock is the lock of the
                directory

The files are the truth. A process lists the files once, and then reads the records that others append to the journal.
If the journal was cut, replaced, deleted or damaged, the process lists the files again.

All files count: entries, the journal, pending files and schedules.
"""

import fcntl
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from threading import Lock

import numpy as np

from torch_dataloader_utils._core.spans import Buffer
from torch_dataloader_utils._runtime.file_locks import is_at, try_lock
from torch_dataloader_utils._runtime.waiting import pause
from torch_dataloader_utils.cache.entries import HEAD_BYTES, Claim, EntryFiles, is_entry, is_value, key_number
from torch_dataloader_utils.cache.schedules import ReadSchedule, ReadSchedules

_RECORD = struct.Struct("<40sq")
_LEAST_JOURNAL_BYTES, _MOST_JOURNAL_BYTES = 1 << 10, 16 << 20
# The journal and a schedule have at most these parts of the whole.
_JOURNAL_PART, _SCHEDULE_PART = 256, 4
# Values have at least this part: they are small, and every job needs them again. They may have what is free beyond.
_VALUES_PART = 16
# An entry up to this size is written while the lock is held, and takes it once instead of twice.
_SMALL_BYTES = 64 << 10
# A process holds the lock for milliseconds; a stopped process holds it forever.
_MOST_WAIT_SECONDS = 2.0
_POLL_SECONDS = 0.001
# Entries are ranked again when at least one in this many has changed or asked for room.
_RANKING_AGE = 64


class CacheIndex:
    """Entries of one directory; thread-safe. Every method may raise OSError.

    most_bytes: Limit for all files.
    """

    def __init__(self, root: Path, most_bytes: int) -> None:
        self.files = EntryFiles(root)
        self.schedules = ReadSchedules(root)
        self._most_bytes = most_bytes
        self._most_journal_bytes = max(_LEAST_JOURNAL_BYTES, min(_MOST_JOURNAL_BYTES, most_bytes // _JOURNAL_PART))
        self._journal = root / "journal"
        self._lock = Lock()
        self._seen = b""
        self._offset = 0
        self._sizes: dict[str, int] = {}
        self._values: dict[str, int] = {}  # the part of the sizes that are values, oldest first
        self._num_bytes = self._value_bytes = 0
        self._ranking: list[tuple[float, str]] = []
        self._changes = 0

    def unlock(self) -> None:
        """Replace the lock in a forked child, where the thread that held the lock may not exist."""
        self._lock = Lock()

    def keep(self, entries: Sequence[tuple[Claim, Buffer]]) -> int:
        """Write and publish each entry, if there is room or entries that are read later; return how many they replace.

        The lock is taken once for all of them, and once more for entries that are written without it.
        """
        num_removed, unwritten = 0, []
        with self._locked() as records:
            unfinished = self.files.unfinished_bytes()
            for claim, data in entries:
                size = HEAD_BYTES + len(data)
                victims = self._victims(claim.name, size, unfinished)
                if victims is None:
                    continue
                num_removed += sum(self._remove(records, victim) for victim in victims)
                if size <= _SMALL_BYTES:
                    claim.write(data)
                    self._publish(records, claim, size)
                else:
                    claim.reserve(size)
                    unfinished += size
                    unwritten.append((claim, data))
        for claim, data in unwritten:
            claim.write(data)
        if unwritten:
            with self._locked() as records:
                for claim, data in unwritten:
                    self._publish(records, claim, HEAD_BYTES + len(data))
        return num_removed

    def announce(self, token: str, schedule: ReadSchedule) -> None:
        """Publish the schedule of this process, if there is room for it."""
        content = schedule.encoded()
        if len(content) > self._most_bytes // _SCHEDULE_PART:
            return
        with self._locked() as records:
            size = len(content) - self.schedules.published_bytes(token)
            victims = self._victims("", size, self.files.unfinished_bytes())
            if victims is None:
                return
            for victim in victims:
                self._remove(records, victim)
        self.schedules.publish(token, schedule, content)

    def remove(self, name: str) -> None:
        """Remove an entry."""
        with self._locked() as records:
            self._remove(records, name)

    def _remove(self, records: list[bytes], name: str) -> bool:
        was_there = self.files.remove(name)
        self._record(records, name, -1)
        return was_there

    def _publish(self, records: list[bytes], claim: Claim, size: int) -> None:
        if claim.publish():
            self._record(records, claim.name, size)

    def _record(self, records: list[bytes], name: str, size: int) -> None:
        self._apply(name, size)
        records.append(_RECORD.pack(name.encode(), size))
        self._offset += _RECORD.size

    def _apply(self, name: str, size: int) -> None:
        self._num_bytes -= self._sizes.pop(name, 0)
        self._value_bytes -= self._values.pop(name, 0)
        if size >= 0:
            self._sizes[name] = size
            self._num_bytes += size
            if is_value(name):
                self._values[name] = size
                self._value_bytes += size
        self._changes += 1

    @contextmanager
    def _locked(self) -> Iterator[list[bytes]]:
        """Hold the lock: no other thread or process changes the entries, and this index knows all of them.

        Yields a list for records, which are appended to the journal at the end.
        """
        deadline, lock = time.monotonic() + _MOST_WAIT_SECONDS, self._lock
        if not lock.acquire(timeout=_MOST_WAIT_SECONDS):
            raise BlockingIOError(f"another thread waits for {self._journal}")
        try:
            journal = self._open_journal(deadline)
            try:
                self._catch_up(journal)
                records: list[bytes] = []
                try:
                    yield records
                finally:
                    self._append(journal, b"".join(records))
                if self._offset > self._most_journal_bytes:
                    self._journal.unlink(missing_ok=True)
            finally:
                fcntl.flock(journal, fcntl.LOCK_UN)
                os.close(journal)
        finally:
            lock.release()

    def _open_journal(self, deadline: float) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        while True:
            journal = os.open(self._journal, flags, 0o600)
            try:
                if try_lock(journal):
                    if not S_ISREG(os.fstat(journal).st_mode):
                        self._journal.unlink(missing_ok=True)
                    elif is_at(journal, self._journal):
                        return journal
            except BaseException:
                os.close(journal)
                raise
            os.close(journal)
            if time.monotonic() > deadline:
                raise BlockingIOError(f"another process has the lock of {self._journal}")
            pause(_POLL_SECONDS)

    def _append(self, journal: int, records: bytes) -> None:
        seen, self._seen = self._seen, b""  # if the disk is full, the files are listed again
        if not records or os.write(journal, records) == len(records):
            self._seen = seen

    def _catch_up(self, journal: int) -> None:
        status = os.fstat(journal)
        rest = status.st_size % _RECORD.size
        if rest:  # a full disk cut a record
            os.ftruncate(journal, status.st_size - rest)
        stop = status.st_size - rest
        if not stop:
            # A new journal may have the inode of an old one.
            stop = os.write(journal, os.urandom(_RECORD.size // 2).hex().encode())
        seen = os.pread(journal, _RECORD.size, 0)
        if rest or seen != self._seen or not self._follow(journal, stop):
            self._sizes, self._values, self._num_bytes, self._value_bytes = {}, {}, 0, 0
            for name, size in self.files.sizes():
                self._apply(name, size)
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

    def _victims(self, name: str, size: int, unfinished: int) -> list[str] | None:
        """Return the entries to remove before a file of `size` bytes; None if earlier reads would lose entries.

        Ranges with the farthest next use go first (Belady 1966); ranges without a known use by age, oldest first.
        Before all ranges go values beyond their part of the whole, oldest first.

        name: Entry, or "" for a schedule. unfinished: Bytes of pending entries and schedules.
        """
        others = self._num_bytes - self._sizes.get(name, 0) + self._offset + unfinished
        missing = others + size + _RECORD.size - self._most_bytes
        if missing <= 0:
            return []
        if size > self._most_bytes:
            return None
        excess = self._value_bytes - self._most_bytes // _VALUES_PART + (size if is_value(name) else 0)
        victims = []
        for value, value_size in self._values.items():
            if missing <= 0 or excess <= 0:
                break
            victims.append(value)
            missing, excess = missing - value_size + _RECORD.size, excess - value_size
        if missing > 0 and excess > 0 and is_value(name):
            return None
        ranges = [] if missing <= 0 else self._latest_ranges(name, missing)
        return None if ranges is None else victims + ranges

    def _latest_ranges(self, name: str, missing: int) -> list[str] | None:
        """Return ranges of `missing` bytes that are read after the entry; None if there are none."""
        self._changes += 1
        uses = self.schedules.next_uses()
        own = uses.of(key_number(name)) if name and not is_value(name) else -1.0
        if not self._ranking or self._changes * _RANKING_AGE >= len(self._sizes):
            names = [each for each in self._sizes if not is_value(each)]
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
            missing -= self._sizes[other] - _RECORD.size
            if missing <= 0:
                return victims
        return None
