"""All remote stores, through fsspec: the one place that sends requests and retries them."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from torch_dataloader_utils._core.paths import check_no_password, redact
from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._observe.counters import count, count_times, fetching, thread_counts
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils._runtime.waiting import pause
from torch_dataloader_utils._store.access import StoreAccess
from torch_dataloader_utils._store.cancellation import ask
from torch_dataloader_utils._store.censor import censor
from torch_dataloader_utils._store.client import (
    clients,
    exclusive_use,
    has_buckets,
    is_obstore,
    open_client,
)
from torch_dataloader_utils._store.coalesce import coalesce
from torch_dataloader_utils._store.default_client import has_s3fs, is_for_s3fs, log_fallback, names_more_than_a_key
from torch_dataloader_utils._store.diagnosis import Diagnosis, Kind, OverdueError, diagnose
from torch_dataloader_utils._store.identity import check_identity, names_no_version, stat_of
from torch_dataloader_utils._store.interface import BegunTail, FileEntry, FileStat, Listing, Tail
from torch_dataloader_utils._store.obstore import PanicError, no_panic
from torch_dataloader_utils._store.pending_reads import PendingReads, can_fetch_ahead, fetch_ahead
from torch_dataloader_utils._store.remote_pattern import Infos, directories_in, find_files
from torch_dataloader_utils._store.remote_url import RemoteUrl
from torch_dataloader_utils._store.retry import Attempts
from torch_dataloader_utils._store.retry_log import RetryLog
from torch_dataloader_utils._store.store_errors import store_error
from torch_dataloader_utils._store.wildcards import before_wildcard, check_pattern, is_pattern
from torch_dataloader_utils._store.write import Read, delete_object, make_directory, write_object
from torch_dataloader_utils.cache.entries import GroupKey, OpenEntry
from torch_dataloader_utils.cache.host_cache import OpenCache, opened
from torch_dataloader_utils.cache.kept_values import KeptValues, user_cache
from torch_dataloader_utils.errors import ConfigError, LoaderError, NoDataError, StoreError

T = TypeVar("T")

_LOOK_UP_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FsspecStore:
    """Store that reads ranges in parallel, pinned to an identity, with retries.

    One store serves all URLs of one access; the URL decides which client is used.
    """

    access: StoreAccess
    _scope: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.access.remote.cache is not None or self.access.remote.keep_footers:
            object.__setattr__(self, "_scope", self.access.scope)

    @property
    def is_local(self) -> bool:
        """False."""
        return False

    def local_path(self, path: str) -> str:
        """Raise ConfigError: the files are not on this machine."""
        raise ConfigError(f"{redact(path)} is remote and has no local path. Read it through its store.")

    def stat(self, path: str) -> FileStat:
        """Return size and identity by one metadata request, past the listing cache."""
        return _sized(path, self._look_up(path, None))

    def tail(self, path: str, length: int, stat: FileStat | None = None) -> Tail:
        """Return the last bytes: one request with `stat`, otherwise two."""
        now = stat or self.stat(path)
        return self._end_tail(path, now, self._begin_tail(now, length))

    def begin_tails(self, files: Sequence[FileEntry], lengths: Sequence[int]) -> list[BegunTail]:
        """Make one attempt at the tail of each file, all at once if their client is open."""
        reads = [self._begin_tail(file.stat, length) for file, length in zip(files, lengths, strict=True)]
        self._fetch_ahead([(file.path, each) for file, each in zip(files, reads, strict=True) if each.are_missing])
        return [
            BegunTail(
                data=None if each.are_missing else each.data[0],
                end=partial(self._end_tail, file.path, file.stat, each),
            )
            for file, each in zip(files, reads, strict=True)
        ]

    def _begin_tail(self, stat: FileStat, length: int) -> PendingReads:
        start = max(0, stat.size - length)
        return PendingReads([(start, stat.size - start)], stat.identity, Attempts(self.access.remote.retry))

    def _end_tail(self, path: str, stat: FileStat, reads: PendingReads) -> Tail:
        self._complete(path, stat.identity, reads)
        return Tail(data=reads.data[0], size=stat.size, identity=stat.identity)

    def ranges(
        self, path: str, spans: Sequence[Span], identity: str | None = None, row_group: int | None = None
    ) -> list[Buffer]:
        """Return the bytes of each span; without conditional requests a look-up checks the identity afterwards."""
        plan = coalesce(spans, self.access.remote.coalesce)
        return plan.slices(self._reads(path, plan.reads, identity, row_group, {}))

    def read_into(
        self,
        path: str,
        spans: Sequence[Span],
        buffers: Sequence[memoryview],
        identity: str | None = None,
        row_group: int | None = None,
    ) -> None:
        """Read the bytes of each span from a cache into its buffer, or copy them into it."""
        plan = coalesce(spans, self.access.remote.coalesce)
        # A read that joins several spans uses none of their buffers.
        reads = self._reads(path, plan.reads, identity, row_group, dict(zip(spans, buffers, strict=True)))
        filled = set(map(id, reads))
        for buffer, data in zip(buffers, plan.slices(reads), strict=True):
            if id(buffer) not in filled:
                buffer[:] = data

    def kept_range(
        self, path: str, span: Span, identity: str, row_group: int
    ) -> AbstractContextManager[OpenEntry | None]:
        """Return a context of the entry of this host's cache with these bytes; see `OpenCache.open_range`."""
        cache = self._cache(identity)
        return nullcontext() if cache is None else cache.open_range(self._key(path, identity, row_group), span)

    def note_read(self, path: str, identity: str, row_group: int) -> None:
        """Mark the row group in the schedule of this host's cache."""
        cache = self._cache(identity)
        if cache is not None:
            cache.mark(self.access.token, self._key(path, identity, row_group))

    def _reads(
        self,
        path: str,
        reads: Sequence[Span],
        identity: str | None,
        row_group: int | None,
        into: Mapping[Span, memoryview],
    ) -> list[Buffer]:
        """Return the bytes of each span, by one request or cache entry each, in the memory that `into` has for it."""
        fetch = partial(self._fetch, path, identity, into)
        cache = None if row_group is None else self._cache(identity)
        if cache is None:
            return fetch(reads)
        key = self._key(path, identity, row_group)
        return cache.ranges(key, reads, fetch, self._wait_seconds, into)

    @property
    def _wait_seconds(self) -> float:
        """Limit for waiting while another process of this host fetches: two attempts that bring nothing."""
        return 2 * self.access.remote.retry.progress_seconds

    def _fetch(
        self, path: str, identity: str | None, into: Mapping[Span, memoryview], spans: Sequence[Span]
    ) -> list[Buffer]:
        reads = self._read(path, spans, identity, into)
        if identity is not None and not reads.are_pinned:
            check_identity(path, identity, stat_of(self._look_up(path, identity)))
        return reads.data

    def _key(self, path: str, identity: str | None, row_group: int | None) -> GroupKey:
        return GroupKey(self._scope, path, identity or "", row_group or 0)

    def _cache(self, identity: str | None) -> OpenCache | None:
        # Where the server gives no more than a size, another file may have the same size.
        options = self.access.remote.cache
        return None if options is None or identity is None or names_no_version(identity) else opened(options)

    def values(self, path: str, identity: str) -> KeptValues:
        """Return the values of the file on this host's disk; none if the options or the environment forbid it."""
        # Where the server gives no more than a size, the next job's file may be another file of the same size.
        if not self.access.remote.keep_footers or names_no_version(identity):
            return KeptValues()
        cache = self._cache(identity) or user_cache()
        return KeptValues(cache=cache, scope=self._scope, path=path, identity=identity, wait_seconds=self._wait_seconds)

    def directories(self, path: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names that are directories: one listing, unless the client has just made it."""
        there = self._request(path, "list", None, directories_in)
        return tuple(name for name in names if name in there)

    def list_files(self, path: str) -> Listing:
        """Return the files at, below or matching `path`; sizes and identities come with the listing."""
        check_no_password(path)
        url = self._url(path)
        if is_pattern(url.own):
            check_pattern(url.own)
        key, found = self._request(path, "list", None, partial(find_files, url, self._url))
        if not found:
            raise NoDataError(f"{redact(path)} does not exist, or matches no file. Check the path and the pattern.")
        stats = self._stats({url.of_key(name): info for name, info in found.items()})
        listed = tuple(FileEntry(path=each, stat=stats[each]) for each in sorted(stats))
        if key in found:
            return Listing(entries=listed)
        directory = url.of_key(before_wildcard(key) if is_pattern(key) else key.rstrip("/"))
        return Listing(entries=listed, directory=directory, is_pattern=is_pattern(key))

    def _stats(self, infos: Infos) -> dict[str, FileStat]:
        """Return the stats of each URL from the listing; files without a size (as on a page of links) are looked up."""
        unsized = [url for url, info in infos.items() if info.get("size") is None]
        looked_up = map_watched(self.stat, unsized, threads=_LOOK_UP_THREADS, name="tdu-look-up")
        return dict(zip(unsized, looked_up, strict=True)) | {
            url: stat_of(info) for url, info in infos.items() if info.get("size") is not None
        }

    def write(self, path: str, size: int, read: Read) -> None:
        """Write an object of `size` bytes from `read(offset, length)`; replaces an older object.

        Raises:
            StoreError: the storage failed for good, or has stored another number of bytes.
        """
        write_object(partial(self._request, path, "write", None), size, read)
        seen = self.stat(path).size
        if seen != size:
            raise StoreError(f"{redact(path)} has {seen} bytes after {size} were written. Write it again.")

    def delete(self, path: str) -> None:
        """Delete the object, if it exists."""
        self._request(path, "delete", None, delete_object)

    def make_directory(self, path: str) -> None:
        """Make the directory and its parents, if the store has directories."""
        self._request(path, "make", None, make_directory)

    def _read(
        self,
        path: str,
        spans: Sequence[Span],
        identity: str | None,
        into: Mapping[Span, memoryview] = MappingProxyType({}),
    ) -> PendingReads:
        reads = PendingReads(spans, identity, Attempts(self.access.remote.retry), into)
        self._complete(path, identity, reads)
        return reads

    def _complete(self, path: str, identity: str | None, reads: PendingReads) -> None:
        if reads.are_missing:
            self._request(path, "read", identity, reads.fetch, reads.attempts)

    @fetching()
    def _fetch_ahead(self, reads: Sequence[tuple[str, PendingReads]]) -> None:
        """Make one attempt at the reads of several files together; `_complete` goes on with what is missing.

        Files without an open client are left to `_complete`.
        """
        together: dict[int, tuple[Any, list[tuple[str, PendingReads]]]] = {}
        for path, each in reads:
            url = self._url(path)
            store = (self.access.token, *url.client)
            filesystem = clients.of((self._access_for("read", path, store).remote.backend, *store)).present
            if filesystem is not None and can_fetch_ahead(filesystem):
                together.setdefault(id(filesystem), (filesystem, []))[1].append((url.key(filesystem), each))
        for filesystem, of_client in together.values():
            fetch_ahead(filesystem, of_client)

    def _look_up(self, path: str, identity: str | None) -> Mapping[str, Any]:
        attempts = Attempts(self.access.remote.retry)
        return self._request(path, "look up", identity, partial(_look_up, attempts), attempts)

    @fetching()
    def _request(
        self,
        path: str,
        action: str,
        identity: str | None,
        call: Callable[[Any, str], T],
        attempts: Attempts | None = None,
    ) -> T:
        """Run `call(filesystem, key)` until it succeeds; raise one of our errors when it fails for good.

        attempts: Passed where `call` itself ends an attempt by `left_seconds`; the default attempts only decide
            whether another attempt follows.
        """
        attempts, log = attempts or Attempts(self.access.remote.retry), RetryLog(path, action)
        url = self._url(path)
        store = (self.access.token, *url.client)
        access = self._access_for(action, path, store)
        filesystem, is_expired, failure = None, False, None
        handled = sys.exception()  # the error of another place, if the user tries this place after a failure
        while True:
            local = clients.of((access.remote.backend, *store))
            connect = partial(open_client, url.address, url.scheme, access)
            try:
                begin = time.monotonic()
                if is_expired:
                    filesystem = local.renew(filesystem, partial(connect, renews=True))
                    is_expired = False
                else:
                    filesystem = local.get(connect)
                attempts.leave_out(time.monotonic() - begin)
                with exclusive_use(filesystem), no_panic():
                    answer = call(filesystem, url.key(filesystem))
                clients.reached.add(store)
                return answer
            except LoaderError:
                raise
            except Exception as error:  # whatever a storage client raises
                diagnosis = diagnose(error, handled=handled)
                # The client's options include the result of `credentials`; without a client, see `open_client`.
                censor(error, getattr(filesystem, "storage_options", None), handled=handled)
                if access.remote.backend == "auto" and is_obstore(filesystem) and has_s3fs():
                    reason = is_for_s3fs(error, diagnosis)
                    if reason:
                        log_fallback(redact(path), reason)
                        access = _through_fsspec(access)
                        if diagnosis.status or isinstance(error, PanicError):
                            clients.without_obstore.add(store)
                        continue
                count("request_errors", _counted_as(diagnosis))
                if not diagnosis.unreached:
                    clients.reached.add(store)
                # Who knows the identity has reached the server before, perhaps in another process.
                is_first = identity is None and store not in clients.reached
                renews = self.access.credentials is not None
                delay = attempts.failed(diagnosis, can_renew=renews, is_first_contact=is_first)
                # An attempt that the limit cut off says less than the failure before it.
                failure = failure if failure and isinstance(error, OverdueError) else (error, diagnosis)
                if delay is None:
                    seen, diagnosis = failure
                    raise store_error(
                        seen, path, action, identity, diagnosis=diagnosis, attempts=attempts, handled=handled
                    ) from error
                log.failed(error, diagnosis, attempts, delay)
            thread_counts().retries += 1
            pause(delay)
            # Stays true if a new client could not be opened, whatever the reason.
            is_expired = is_expired or diagnosis.kind in (Kind.EXPIRED, Kind.MAYBE_EXPIRED)

    def _access_for(self, action: str, path: str, store: Sequence[str]) -> StoreAccess:
        """Return the access of one request: by default s3fs writes, and reads what obstore cannot read."""
        if self.access.remote.backend != "auto" or not has_s3fs():
            return self.access
        is_for_fsspec = action not in ("read", "list", "look up") or names_more_than_a_key(path)
        return _through_fsspec(self.access) if is_for_fsspec or store in clients.without_obstore else self.access

    def _url(self, path: str) -> RemoteUrl:
        return RemoteUrl.of(path, backend=self.access.remote.backend)


def _through_fsspec(access: StoreAccess) -> StoreAccess:
    return replace(access, remote=replace(access.remote, backend="fsspec"))


def _look_up(attempts: Attempts, filesystem: Any, key: str) -> Mapping[str, Any]:
    filesystem.invalidate_cache()  # of the whole client: some clients look a file up in the listing of its directory
    thread_counts().requests += 1
    begin = time.perf_counter()
    # Elsewhere a look-up may be several requests, which the client limits.
    most_seconds = attempts.most_silent_seconds if has_buckets(filesystem) else math.inf

    def left_seconds() -> float:
        return min(attempts.left_seconds, begin + most_seconds - time.perf_counter())

    try:
        info: Mapping[str, Any] = ask(filesystem, "info", key, left_seconds=left_seconds)
    finally:
        count_times([time.perf_counter() - begin])
    return info


def _counted_as(diagnosis: Diagnosis) -> str:
    """Return the kind of `request_errors` that counts this failure."""
    if diagnosis.status in (429, 503, 509) or diagnosis.code == "SlowDown":
        return "throttled"
    if diagnosis.kind not in (Kind.TRANSIENT, Kind.WRONG_REPLY):
        return "refused"
    return "server" if diagnosis.status else "connection"


def _sized(path: str, info: Mapping[str, Any]) -> FileStat:
    if info.get("size") is None:
        raise StoreError(
            f"{redact(path)}: the server does not say how large the file is, so that no part of it can be requested. "
            "Serve it with Content-Length, or copy it."
        )
    return stat_of(info)
