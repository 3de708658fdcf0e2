"""`HostCache`: the bytes that this host reads of remote files, kept on its disk by next use.

    entries      one file for each range, and the right to fetch a missing range
    schedules    when each row group is read next, by all ranks of this host
    index        the present entries, and the entries that make room for a new entry

If the directory fails, bytes are fetched as without a cache: a fault costs requests, never rows.
"""

import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from torch_dataloader_utils._core.arguments import parse_bytes
from torch_dataloader_utils._core.option_values import footer_bytes
from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._observe.counters import count, thread_counts
from torch_dataloader_utils._runtime.waiting import pause
from torch_dataloader_utils.cache.entries import (
    MOST_ENTRY_BYTES,
    Claim,
    DamagedEntryError,
    GroupKey,
)
from torch_dataloader_utils.cache.index import CacheIndex
from torch_dataloader_utils.cache.kept_files import KeptFiles, check_private, make_private
from torch_dataloader_utils.cache.schedules import ReadSchedule
from torch_dataloader_utils.errors import ConfigTypeError, of_type

_log = logging.getLogger("torch_dataloader_utils.cache")

# Errors of the kernel for a disk or a directory, and of Python and numpy for unforeseen content. Only the cache's own
# work is guarded: requests are made outside.
_FAULTS = (OSError, ValueError, LookupError, OverflowError, MemoryError, struct.error)

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


class OpenCache:
    """Cache as one process uses it; thread-safe."""

    def __init__(self, options: HostCache) -> None:
        for_footers = footer_bytes(options.most_bytes)
        self.footers = KeptFiles(options.root / "footers", for_footers, options.root)
        self._root = options.root
        self._index = CacheIndex(options.root, options.most_bytes - for_footers)
        self._files = self._index.files
        self._is_ready = False
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
        found: dict[Span, Buffer] = {}
        names = {span: key.entry_name(span) for span in spans}
        deadline, poll = time.monotonic() + wait_seconds, _FIRST_POLL_SECONDS
        while True:
            found |= self._read_all({span: name for span, name in names.items() if span not in found}, into)
            missing = {span: name for span, name in names.items() if span not in found}
            if not missing:
                return [found[span] for span in spans]
            with self._claims(missing) as claims:
                if time.monotonic() > deadline:
                    claims = dict.fromkeys(missing) | claims
                # Another process may have published a span before it was claimed here.
                found |= self._read_all(
                    {span: missing[span] for span, claim in claims.items() if claim is not None}, into
                )
                claimed = [span for span in claims if span not in found]
                if claimed:
                    count("cache_events", "misses", len(claimed))
                    for span, data in zip(claimed, fetch(claimed), strict=True):
                        found[span] = data
                        self._keep(claims[span], data)
            if not claims:
                pause(poll)
                poll = min(2 * poll, _MOST_POLL_SECONDS)

    def mark(self, token: str, key: GroupKey) -> None:
        """Mark that a row group is being read."""
        with self._tolerating_faults():
            self._index.schedules.mark(token, key.number)

    def foresee(self, token: str, schedule: ReadSchedule) -> None:
        """Announce to all processes of this host what this process reads from now on."""
        with self._tolerating_faults():
            self._make()
            self._index.schedules.publish(token, schedule)

    def withdraw(self, token: str) -> None:
        """Withdraw the schedule that `foresee` published."""
        with self._tolerating_faults():
            self._index.schedules.withdraw(token)

    def _read_all(self, names: Mapping[Span, str], into: Mapping[Span, memoryview]) -> dict[Span, Buffer]:
        """Return the spans that are on the disk."""
        found: dict[Span, Buffer] = {}
        for span, name in names.items():
            with self._tolerating_faults():
                self._make()
                try:
                    data = self._files.read(name, span[1], into.get(span))
                except DamagedEntryError:
                    count("cache_events", "damaged")
                    self._index.remove(name)
                    continue
                if data is not None:
                    found[span] = data
                    count("cache_events", "hits")
                    thread_counts().cached_bytes += span[1]
        return found

    @contextmanager
    def _claims(self, names: Mapping[Span, str]) -> Iterator[dict[Span, Claim | None]]:
        """Yield the claims of free spans, released at the end; None for a span to be fetched without a claim."""
        claims: dict[Span, Claim | None] = {}
        try:
            for span, name in names.items():
                claims[span] = None
                if 0 < span[1] <= MOST_ENTRY_BYTES:
                    with self._tolerating_faults():
                        claims[span] = self._files.claim(name)
                        if claims[span] is None:
                            del claims[span]
            yield claims
        finally:
            for claim in claims.values():
                if claim is not None:
                    with self._tolerating_faults():
                        claim.release()

    def _keep(self, claim: Claim | None, data: Buffer) -> None:
        if claim is None:
            return
        with self._tolerating_faults():
            if self._index.admits(claim.name, len(data)):
                claim.write(data)
                evicted = self._index.add(claim.name, len(data), claim.publish)
                count("cache_events", "evictions", evicted or 0)

    def _make(self) -> None:
        """Make the directory, unless it exists, and check that only this user can enter it."""
        if self._is_ready:
            return
        make_private(self._root)
        check_private(self._root)
        self._files.make()
        self._files.sweep()
        self._is_ready = True

    @contextmanager
    def _tolerating_faults(self) -> Iterator[None]:
        """End the block at a fault of the disk or of its content, and only log the fault."""
        try:
            yield
        except _FAULTS as error:
            # Somebody may have deleted the directory.
            self._is_ready = False
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
