"""When row groups are read next on this host: every rank writes down its coming reads, and marks the reads it has done.

    schedules/TOKEN-PID     locked by a process that trains: row groups and times of this pass and the next passes, and
                            a byte for each use of this pass, which the process that reads the row group sets

A process that needs room thus knows the next uses of all ranks on its host, of all jobs, without asking them. A
schedule of a dead process no longer counts, and is removed.
"""

import fcntl
import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import Self

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._runtime.file_locks import is_at
from torch_dataloader_utils.cache.entries import open_locked

Uint64s = npt.NDArray[np.uint64]
Float64s = npt.NDArray[np.float64]

_HEAD = struct.Struct("<8sQQI4x")
_MAGIC = b"TDUSCHD1"
_MOST_BYTES = 1 << 30  # 60 million uses


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadSchedule:
    """Uses of row groups by one rank.

    keys, times: Row group and time of each use, this pass first; times only grow. A time is the number of bytes that
        the rank reads before the use.
    num_present: Number of uses in this pass.
    """

    keys: Uint64s
    times: Float64s
    num_present: int

    @cached_property
    def order(self) -> npt.NDArray[np.intp]:
        """Indices of the uses sorted by key, and by time within a key."""
        return np.argsort(self.keys, kind="stable")

    @cached_property
    def sorted_keys(self) -> Uint64s:
        """Keys in the order of `order`."""
        return self.keys[self.order]

    def uses_of(self, key: int) -> npt.NDArray[np.intp]:
        """Return the uses of one row group, by time."""
        wanted = np.uint64(key)
        first, stop = self.sorted_keys.searchsorted(wanted), self.sorted_keys.searchsorted(wanted, side="right")
        return self.order[first:stop]

    def distances(self, done: npt.NDArray[np.uint8]) -> Float64s:
        """Return the distance of each use from now; infinite for the uses of this pass that are done."""
        spent = self.times[: self.num_present][done != 0]
        now = float(spent.max()) if len(spent) else 0.0
        distances = np.maximum(self.times - now, 0.0)
        distances[: self.num_present][done != 0] = np.inf
        return distances

    def encoded(self) -> bytes:
        """Return the content of the schedule's file, with no use done."""
        body = self.keys.astype("<u8").tobytes() + self.times.astype("<f8").tobytes()
        head = _HEAD.pack(_MAGIC, len(self.keys), self.num_present, zlib.crc32(body))
        return head + body + bytes(self.num_present)

    @classmethod
    def decoded(cls, content: bytes) -> Self | None:
        """Return the schedule in a file; None if the file is damaged."""
        if len(content) < _HEAD.size:
            return None
        magic, count, present, seal = _HEAD.unpack_from(content)
        end = _HEAD.size + 16 * count
        is_whole = magic == _MAGIC and present <= count and len(content) == end + present
        if not is_whole or zlib.crc32(content[_HEAD.size : end]) != seal:
            return None
        keys = np.frombuffer(content, "<u8", count, _HEAD.size).astype(np.uint64)
        times = np.frombuffer(content, "<f8", count, _HEAD.size + 8 * count).astype(np.float64)
        return cls(keys=keys, times=times, num_present=present)

    @property
    def marks_at(self) -> int:
        """Offset of the marks of this pass in the schedule's file."""
        return _HEAD.size + 16 * len(self.keys)


class OpenSchedule:
    """Schedule in its file, of this process or of another process."""

    def __init__(self, descriptor: int, schedule: ReadSchedule) -> None:
        self.schedule = schedule
        self.descriptor = descriptor

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)

    @classmethod
    def open(cls, place: Path) -> "OpenSchedule | None":
        """Return the schedule at a path; None if it does not exist, is damaged or is not this user's."""
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        status = os.fstat(descriptor)
        is_ours = S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_size <= _MOST_BYTES
        content = os.pread(descriptor, status.st_size, 0) if is_ours else b""
        schedule = ReadSchedule.decoded(content)
        if schedule is None:
            os.close(descriptor)
            return None
        return cls(descriptor, schedule)

    def done(self) -> npt.NDArray[np.uint8]:
        """Return the marks of this pass."""
        count = self.schedule.num_present
        marks = np.frombuffer(os.pread(self.descriptor, count, self.schedule.marks_at), np.uint8)
        return marks if len(marks) == count else np.zeros(count, np.uint8)

    def mark(self, key: int) -> None:
        """Mark the first use of a row group that is not done."""
        for use in self.schedule.uses_of(key).tolist():
            place = self.schedule.marks_at + use
            if use < self.schedule.num_present and os.pread(self.descriptor, 1, place) == b"\0":
                os.pwrite(self.descriptor, b"\1", place)
                return

    def has_owner(self) -> bool:
        """Return whether the process that wrote the schedule lives; that process itself must not ask."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False


class ReadSchedules:
    """Schedules below one directory, as one process sees them; only `mark` is thread-safe."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "schedules"
        self._known: dict[str, OpenSchedule] = {}
        self._marked: dict[str, tuple[Path, OpenSchedule]] = {}

    def publish(self, token: str, schedule: ReadSchedule, content: bytes) -> None:
        """Write down the coming reads of this process, in place of its earlier schedule.

        The file stays open, and so locked, as long as the process lives, or until `withdraw`.

        content: The encoded schedule.
        """
        place = self._directory / f"{token}-{os.getpid()}"
        pending = place.with_name(f".{place.name}")
        descriptor = open_locked(pending)
        if descriptor is None:
            return  # another thread publishes a schedule of this token
        mine = OpenSchedule(descriptor, schedule)
        try:
            os.ftruncate(descriptor, 0)
            left, at = memoryview(content), 0
            while at < len(left):
                at += os.pwrite(descriptor, left[at:], at)
            pending.replace(place)
        except BaseException:
            pending.unlink(missing_ok=True)
            raise
        self._marked[token] = (place, mine)

    def published_bytes(self, token: str) -> int:
        """Return the size of the schedule that `publish` would replace."""
        _, mine = self._marked.get(token, (None, None))
        return 0 if mine is None else mine.schedule.marks_at + mine.schedule.num_present

    def withdraw(self, token: str) -> None:
        """Remove this process's schedule: it reads nothing more."""
        place, _ = self._marked.pop(token, (None, None))
        if place is not None and place.name == f"{token}-{os.getpid()}":
            place.unlink(missing_ok=True)

    def mark(self, token: str, key: int) -> None:
        """Mark that a process that reads for `token` is about to read a row group."""
        _, mine = self._marked.get(token, (None, None))
        # The file of a schedule that was replaced or withdrawn has no name any more.
        if mine is None or os.fstat(mine.descriptor).st_nlink == 0:
            found = self._find(token)
            if found is None:
                return
            self._marked[token] = found
            mine = found[1]
        mine.mark(key)

    def _find(self, token: str) -> "tuple[Path, OpenSchedule] | None":
        for place in self._directory.glob(f"{token}-*"):
            found = OpenSchedule.open(place)
            if found is not None:
                return place, found
        return None

    def next_uses(self) -> "NextUses":
        """Return when every row group is read next, as far as schedules say."""
        return NextUses([(each.schedule, each.schedule.distances(each.done())) for each in self.living()])

    def living(self) -> list[OpenSchedule]:
        """Return the schedules of living processes; remove the schedules of dead processes."""
        names = [name for name in os.listdir(self._directory) if not name.startswith(".")]  # noqa: PTH208
        ending = f"-{os.getpid()}"
        own = {place.name: mine for place, mine in list(self._marked.values()) if place.name.endswith(ending)}
        known = {}
        for name in names:
            place = self._directory / name
            found = own.get(name) or self._known.get(name)
            if found is None or not is_at(found.descriptor, place):
                found = OpenSchedule.open(place)
            if found is None:
                continue
            if name not in own and not found.has_owner():
                with suppress(OSError):
                    place.unlink()
                continue
            known[name] = found
        self._known = known
        return list(known.values())


class NextUses:
    """Distances of row groups to their next use, in bytes that its reader reads before; infinite without a next use."""

    def __init__(self, schedules: list[tuple[ReadSchedule, Float64s]]) -> None:
        self._schedules = schedules

    def of(self, key: int) -> float:
        """Return the distance of one row group."""
        found = [distances[schedule.uses_of(key)] for schedule, distances in self._schedules]
        return min((float(each.min()) for each in found if len(each)), default=np.inf)

    def of_all(self, keys: Uint64s) -> Float64s:
        """Return the distances of many row groups."""
        nearest = np.full(len(keys), np.inf)
        for schedule, distances in self._schedules:
            ordered = schedule.sorted_keys
            if not len(ordered):
                continue
            firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
            nearest_of_key = np.minimum.reduceat(distances[schedule.order], firsts)
            distinct = ordered[firsts]
            place = np.minimum(distinct.searchsorted(keys), len(distinct) - 1)
            nearest = np.where(distinct[place] == keys, np.minimum(nearest, nearest_of_key[place]), nearest)
        return nearest
