"""`HostCache`: the bytes that this host reads of remote files, kept on its disk by next use.

    entries        one file for each range or value, and the right to fetch a missing one
    schedules      when each row group is read next, by all ranks of this host
    index          the present entries, and the entries that make room for a new entry
    kept_values    values of a file, such as its footer
    breaker        when a cache that fails is left alone

If the directory fails, bytes are fetched as without a cache: a fault costs requests, never rows.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from torch_dataloader_utils._core.arguments import parse_bytes
from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._observe.counters import count, thread_counts
from torch_dataloader_utils._runtime.waiting import pause
from torch_dataloader_utils.cache.breaker import Breaker
from torch_dataloader_utils.cache.entries import (
    MOST_ENTRY_BYTES,
    Claim,
    DamagedEntryError,
    GroupKey,
    OpenEntry,
    TokensKey,
    ValueKey,
    is_private,
)
from torch_dataloader_utils.cache.index import CacheIndex
from torch_dataloader_utils.cache.schedules import ReadSchedule
from torch_dataloader_utils.errors import ConfigTypeError, LoaderError, of_type

_log = logging.getLogger("torch_dataloader_utils.cache")

_FIRST_POLL_SECONDS = 0.002
_MOST_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class HostCache:
    """Cache on this host's disk of the byte ranges that plans read; for `RemoteOptions(cache=)`.

    Attributes:
        directory: Directory on a local disk. The cache makes its own directory inside, which only this user can read.
            All processes of a host that name the same directory share the cache.
        max_bytes: Limit for all files of the cache, an int or text such as "500GiB".
    """

    directory: str | os.PathLike[str]
    max_bytes: int | str = field(kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike):
            raise ConfigTypeError(f"directory is {of_type(self.directory)}: pass the path of a directory.")
        object.__setattr__(self, "directory", os.path.abspath(self.directory))  # noqa: PTH100 - a str is wanted
        object.__setattr__(self, "max_bytes", parse_bytes("max_bytes", self.max_bytes, least=1))

    @property
    def root(self) -> Path:
        """Directory of the cache's own."""
        return cache_root(self.directory)

    @property
    def most_bytes(self) -> int:
        """max_bytes as a number of bytes."""
        return int(self.max_bytes)


def cache_root(directory: str | os.PathLike[str]) -> Path:
    """Return the path of this user's cache in a directory."""
    return Path(directory) / f"tdu-cache-{os.geteuid()}"


_Wanted = TypeVar("_Wanted", bound=Hashable)


class _Entry(NamedTuple):
    """Entry to read. length: Required length, None for any. into: Memory of that length to read the bytes into."""

    name: str
    length: int | None = None
    into: memoryview | None = None


class OpenCache:
    """Cache as one process uses it; thread-safe."""

    def __init__(self, options: HostCache) -> None:
        self._root = options.root
        self._index = CacheIndex(options.root, options.most_bytes)
        self._files = self._index.files
        self._made: tuple[int, int] | None = None
        self._reading, self._keeping = Breaker(), Breaker()
        self._warned = False

    def ranges(
        self,
        key: GroupKey,
        spans: Sequence[Span],
        fetch: Callable[[Sequence[Span]], list[Buffer]],
        wait_seconds: float,
        into: Mapping[Span, memoryview] = MappingProxyType({}),
    ) -> list[Buffer]:
        """Return the bytes of each span: from the disk, into the memory that `into` has for it, or fetched and kept.

        If several threads and processes want a span, one of them fetches it. The others wait for at most
        `wait_seconds`, and take over if it failed or died.
        """
        entries = {span: _Entry(key.entry_name(span), span[1], into.get(span)) for span in spans}
        missed: list[Span] = []

        def count_and_fetch(missing: Sequence[Span]) -> dict[Span, Buffer]:
            missed.extend(missing)
            count("cache_events", "misses", len(missing))
            return dict(zip(missing, fetch(missing), strict=True))

        found = self._obtain(entries, count_and_fetch, wait_seconds)
        hits = entries.keys() - set(missed)
        count("cache_events", "hits", len(hits))
        thread_counts().cached_bytes += sum(length for _, length in hits)
        return [found[span] for span in spans]

    @contextmanager
    def open_range(self, key: GroupKey, span: Span) -> Iterator[OpenEntry | None]:
        """Yield the entry with these bytes, which the caller reads and checks; None if they are not on the disk.

        The entry counts as a hit if it was found sound.
        """
        entry = None
        if not self._reading.is_open:
            with self._tolerating_faults(self._reading), suppress(DamagedEntryError):
                self._make()
                entry = self._files.open(key.entry_name(span), span[1])
        try:
            yield entry
        finally:
            if entry is not None:
                os.close(entry.descriptor)
        if entry is not None and entry.is_sound:
            self._reading.succeeded()
            count("cache_events", "hits")
            thread_counts().cached_bytes += span[1]

    def once(self, key: ValueKey, make: Callable[[], Buffer], wait_seconds: float) -> Buffer:
        """Return a value: from the disk, or made and kept, by one thread and process as in `ranges`."""
        return self.once_each([key], lambda _: {key: make()}, wait_seconds)[key]

    def once_each(
        self,
        keys: Sequence[ValueKey],
        make: Callable[[Sequence[ValueKey]], Mapping[ValueKey, Buffer]],
        wait_seconds: float,
    ) -> dict[ValueKey, Buffer]:
        """Return the values as `once`, without the values that `make` leaves out."""
        return self._obtain({key: _Entry(key.entry_name) for key in keys}, make, wait_seconds)

    def get(self, key: ValueKey | TokensKey) -> Buffer | None:
        """Return a value, or tokens, if they are kept."""
        return None if self._reading.is_open else self._read_all({key: _Entry(key.entry_name)}).get(key)

    def put(self, key: ValueKey | TokensKey, value: Buffer) -> None:
        """Keep a value, or tokens, unless another process is making them."""
        with self._claims({key: _Entry(key.entry_name)}) as claims:
            self._keep([(claims.get(key), value)])

    def _obtain(
        self,
        entries: Mapping[_Wanted, _Entry],
        fetch: Callable[[Sequence[_Wanted]], Mapping[_Wanted, Buffer]],
        wait_seconds: float,
    ) -> dict[_Wanted, Buffer]:
        """Return the bytes of each entry, found or fetched; without the entries that `fetch` leaves out."""
        found: dict[_Wanted, Buffer] = {}
        left_out: set[_Wanted] = set()
        begin, poll = time.monotonic(), _FIRST_POLL_SECONDS
        while True:
            if not self._reading.is_open:
                found |= self._read_all({each: entry for each, entry in entries.items() if each not in found})
            missing = {each: entry for each, entry in entries.items() if each not in found and each not in left_out}
            if not missing:
                return found
            with self._claims(missing) as claims:
                # Another process may have published an entry before it was claimed here.
                found |= self._read_all({each: missing[each] for each, claim in claims.items() if claim is not None})
                claimed = [each for each in claims if each not in found]
                if claimed:
                    fetched = fetch(claimed)
                    self._keep([(claims[each], data) for each, data in fetched.items()])
                    found |= fetched
                    left_out.update(each for each in claimed if each not in fetched)
            if not claims and (waited := time.monotonic() - begin) > wait_seconds:
                self._revoke(missing.values(), waited)
            elif not claims:
                pause(poll)
                poll = min(2 * poll, _MOST_POLL_SECONDS)

    def mark(self, token: str, key: GroupKey) -> None:
        """Mark that a row group is being read."""
        with self._tolerating_faults(self._keeping):
            self._index.schedules.mark(token, key.number)

    def foresee(self, token: str, schedule: ReadSchedule) -> None:
        """Announce to all processes of this host what this process reads from now on."""
        with self._tolerating_faults(self._keeping):
            self._make()
            self._index.announce(token, schedule)

    def withdraw(self, token: str) -> None:
        """Withdraw the schedule that `foresee` published."""
        with self._tolerating_faults(self._keeping):
            self._index.schedules.withdraw(token)

    def _read_all(self, entries: Mapping[_Wanted, _Entry]) -> dict[_Wanted, Buffer]:
        """Return the entries that are on the disk."""
        found: dict[_Wanted, Buffer] = {}
        for wanted, (name, length, into) in self._in_place(entries, self._reading).items():
            with self._tolerating_faults(self._reading):
                try:
                    data = self._files.read(name, length, into)
                except DamagedEntryError:
                    count("cache_events", "damaged")
                    self._index.remove(name)
                    continue
                self._reading.succeeded()
                if data is not None:
                    found[wanted] = data
        return found

    @contextmanager
    def _claims(self, entries: Mapping[_Wanted, _Entry]) -> Iterator[dict[_Wanted, Claim | None]]:
        """Yield the claims of free entries, released at the end; None for an entry to be fetched without a claim."""
        claims: dict[_Wanted, Claim | None] = dict.fromkeys(entries)
        try:
            if self._reading.is_open or self._keeping.is_open:
                count("cache_events", "bypassed", len(entries))
                entries = {}
            for wanted, (name, length, _) in self._in_place(entries, self._keeping).items():
                if length is None or 0 < length <= MOST_ENTRY_BYTES:
                    with self._tolerating_faults(self._keeping):
                        claims[wanted] = self._files.claim(name)
                        if claims[wanted] is None:
                            del claims[wanted]
            yield claims
        finally:
            for claim in claims.values():
                if claim is not None:
                    with self._tolerating_faults(self._keeping):
                        claim.release()

    def _keep(self, entries: Iterable[tuple[Claim | None, Buffer]]) -> None:
        kept = [(claim, data) for claim, data in entries if claim is not None and 0 < len(data) <= MOST_ENTRY_BYTES]
        if not kept or self._keeping.is_open:
            return
        with self._tolerating_faults(self._keeping):
            count("cache_events", "evictions", self._index.keep(kept))
            self._keeping.succeeded()

    def _revoke(self, entries: Iterable[_Entry], waited_seconds: float) -> None:
        """Take the entries from a process that has not fetched them in time: it may be stopped."""
        self._keeping.failed(waited_seconds)
        for entry in entries:
            with self._tolerating_faults(self._keeping):
                self._files.revoke(entry.name)

    def _in_place(self, entries: Mapping[_Wanted, _Entry], breaker: Breaker) -> Mapping[_Wanted, _Entry]:
        """Return the entries; none if the directory cannot be made, or is not this user's alone."""
        if entries:
            with self._tolerating_faults(breaker):
                self._make()
                return entries
        return {}

    def _make(self) -> None:
        """Make the directory, unless it is as this process left it, and check that only this user can enter it."""
        with suppress(FileNotFoundError):
            status = self._root.lstat()
            if is_private(status) and (status.st_dev, status.st_ino) == self._made:
                return
        self._files.make()
        status = self._root.lstat()
        self._made = status.st_dev, status.st_ino

    @contextmanager
    def _tolerating_faults(self, breaker: Breaker) -> Iterator[None]:
        """End the block at any error but this library's own errors; only log it, and note it in the breaker."""
        begin = time.monotonic()
        try:
            yield
        except LoaderError:
            raise
        except Exception as error:  # noqa: BLE001 - a disk's content may raise anything; requests are made outside
            # Somebody may have deleted a part of the directory.
            self._made = None
            breaker.failed(time.monotonic() - begin)
            level = logging.DEBUG if self._warned else logging.WARNING
            _log.log(level, "the cache in %s is not used for some bytes: %r", self._root, error)
            self._warned = True


_opened: dict[HostCache, OpenCache] = {}
_opening = threading.Lock()


def opened(options: HostCache) -> OpenCache:
    """Return the cache of this process; files are touched only when it is used."""
    with _opening:
        if options not in _opened:
            _opened[options] = OpenCache(options)
        return _opened[options]


def _begin_anew() -> None:
    # Another thread of the parent may have held a lock during the fork.
    global _opening
    _opening = threading.Lock()
    for cache in _opened.values():
        cache._index.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
