"""Ranges of one file that are being read: each attempt asks, in parallel, for the bytes that are still missing."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from fsspec.asyn import get_loop

from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._observe.counters import count_times, thread_counts
from torch_dataloader_utils._store.cancellation import ask, run_on_loop
from torch_dataloader_utils._store.conditional_reads import (
    RangeReply,
    fetch_from_azure,
    fetch_from_gcs,
    fetch_from_http,
    fetch_from_s3,
)
from torch_dataloader_utils._store.diagnosis import Kind, OverdueError, WrongReplyError, diagnose
from torch_dataloader_utils._store.hedge import Race, ReplyTimes, run_races
from torch_dataloader_utils._store.hub import fetch_from_hub
from torch_dataloader_utils._store.obstore import fetch_from_obstore
from torch_dataloader_utils._store.retry import Attempts, RetryPolicy

Fetch = Callable[[Any, str, RangeReply, RetryPolicy], Awaitable[None]]

# Keys are the package of the client's class: other clients may claim to be asynchronous and wrap a synchronous client.
_FETCHES: dict[str, Fetch] = {
    "s3fs": fetch_from_s3,
    "obstore": fetch_from_obstore,
    "fsspec.implementations.http": fetch_from_http,
    "gcsfs": fetch_from_gcs,
    "adlfs": fetch_from_azure,
    "huggingface_hub": fetch_from_hub,
}
# Their clients show no reply before its end.
_UNHEDGED = (fetch_from_gcs, fetch_from_azure)


class _Ahead(NamedTuple):
    """Attempt that was made ahead: the client, the errors, and the time of its end."""

    filesystem: Any
    failures: Sequence[BaseException]
    end: float


class PendingReads:
    """Spans of one file, to be read at the planned identity, in the memory that `into` has for them."""

    def __init__(
        self,
        spans: Sequence[Span],
        identity: str | None,
        attempts: Attempts,
        into: Mapping[Span, memoryview] = MappingProxyType({}),
    ) -> None:
        self._replies = [RangeReply(span, identity, into.get(span)) for span in spans]
        self.attempts = attempts
        self._ahead: _Ahead | None = None

    @property
    def data(self) -> list[Buffer]:
        """Bytes of each span, in the order of the spans."""
        return [reply.data for reply in self._replies]

    @property
    def are_pinned(self) -> bool:
        """Whether all bytes received so far are known to have the planned identity."""
        return all(reply.is_pinned for reply in self._replies)

    @property
    def are_missing(self) -> bool:
        """Whether any byte is still to come."""
        return bool(self._missing())

    def _missing(self) -> list[RangeReply]:
        return [reply for reply in self._replies if reply.is_missing]

    def fetch(self, filesystem: Any, key: str) -> None:
        """Make one attempt at all missing bytes, unless `fetch_ahead` has just made it with this client.

        Raises:
            The most severe failure, if any request failed (of equal failures, the first by offset). Received bytes are
            kept for the next attempt.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self.attempts.leave_out(time.monotonic() - ahead.end)
        if ahead is not None and ahead.filesystem is filesystem:
            failures = ahead.failures
        else:
            (failures,) = _attempt(filesystem, [(key, self)])
        if failures:
            raise max(failures, key=_hardness)

    def _received_bytes(self) -> int:
        return sum(reply.have for reply in self._replies)

    def _left_seconds(self) -> float:
        self.attempts.received(self._received_bytes())
        return self.attempts.left_seconds


def can_fetch_ahead(filesystem: Any) -> bool:
    """Return whether the client sends requests for several files at once."""
    return _fetch_of(filesystem) is not None


def fetch_ahead(filesystem: Any, reads: Sequence[tuple[str, PendingReads]]) -> None:
    """Make one attempt at the missing bytes of all files together; `PendingReads.fetch` tells what failed.

    reads: Key and spans of each file, with the attempts of one policy.
    """
    for (_, read), failures in zip(reads, _attempt(filesystem, reads), strict=True):
        read._ahead = _Ahead(filesystem, failures, time.monotonic())


def _attempt(filesystem: Any, reads: Sequence[tuple[str, PendingReads]]) -> list[list[BaseException]]:
    """Request all missing bytes at once, and return the errors of each file; count what was asked and received."""
    replies = [(key, reply) for key, read in reads for reply in read._missing()]
    counts, before = thread_counts(), sum(read._received_bytes() for _, read in reads)
    counts.requests += len(replies)
    begin, ended, hedges = time.perf_counter(), list[float](), list[None]()
    try:
        failures = _failures(filesystem, replies, [read for _, read in reads], ended, hedges)
    finally:
        for _, read in reads:
            read.attempts.received(read._received_bytes())
        counts.fetched_bytes += sum(read._received_bytes() for _, read in reads) - before
        counts.requests += len(hedges)
        counts.hedges += len(hedges)
        # Given-up requests count with the whole time, as do requests of a client that reports only the end of all.
        num_requests = len(replies) + len(hedges)
        ends = (ended + [time.perf_counter()] * num_requests)[:num_requests]
        count_times(end - begin for end in ends)
    return [[failures[reply] for reply in read._replies if reply in failures] for _, read in reads]


def _failures(
    filesystem: Any,
    replies: Sequence[tuple[str, RangeReply]],
    reads: Sequence[PendingReads],
    ended: list[float],
    hedges: list[None],
) -> dict[RangeReply, BaseException]:
    """Request all replies at once, and return the errors.

    replies: Replies of `reads`, each with its key. ended: List that gets the time at which each request ended. hedges:
    List that gets an item for each second request.
    """
    fetch, policy = _fetch_of(filesystem), reads[0].attempts.policy
    if fetch is None:
        errors = _sync(filesystem, replies[0][0], [reply for _, reply in replies])
    else:
        calls = [
            (reply, partial(_timed, partial(fetch, filesystem, key, reply, policy), ended)) for key, reply in replies
        ]
        share = 0.0 if fetch in _UNHEDGED else policy.hedge_share
        works = _all(calls, ReplyTimes.of(filesystem), share, partial(hedges.append, None))
        # The Hub's client has no loop; fsspec's loop runs it.
        loop = getattr(filesystem, "loop", None) or get_loop()
        try:
            errors = run_on_loop(loop, works, lambda: max(read._left_seconds() for read in reads))
        except BaseException as error:
            # Requests under way end a little later, when the caller may have other plans for its memory.
            for _, reply in replies:
                reply.detach()
            if not isinstance(error, OverdueError):
                raise
            errors = [error if reply.is_missing else None for _, reply in replies]
    return {reply: error for (_, reply), error in zip(replies, errors, strict=True) if error is not None}


def _fetch_of(filesystem: Any) -> Fetch | None:
    """Return the function that reads a range with conditions for this client; None if the client has no conditions."""
    module = type(filesystem).__module__
    return next((fetch for name, fetch in _FETCHES.items() if module == name or module.startswith(f"{name}.")), None)


async def _all(
    calls: Sequence[tuple[RangeReply, Callable[[], Coroutine[Any, Any, None]]]],
    times: ReplyTimes,
    hedge_share: float,
    note_hedge: Callable[[], None],
) -> list[BaseException | None]:
    """Fetch all replies at once, by second requests too if replies are silent; return the errors."""
    if hedge_share == 0:
        return list(await asyncio.gather(*(call() for _, call in calls), return_exceptions=True))
    races = []
    for reply, call in calls:
        races.append(Race(times, call))
        reply.note_begun = races[-1].begun
    return await run_races(races, times, hedge_share, note_hedge)


async def _timed(fetch: Callable[[], Awaitable[None]], ended: list[float]) -> None:
    """Fetch, and append the time at which the fetch ended.

    A task that is cancelled before it begins has not made its coroutine yet, so no coroutine is left unawaited.
    """
    try:
        await fetch()
    finally:
        ended.append(time.perf_counter())


def _sync(filesystem: Any, key: str, missing: Sequence[RangeReply]) -> list[BaseException | None]:
    starts = [reply.span[0] for reply in missing]
    stops = [sum(reply.span) for reply in missing]
    data = ask(filesystem, "cat_ranges", [key] * len(missing), starts, stops, on_error="return")
    return [_taken(reply, each) for reply, each in zip(missing, data, strict=True)]


def _taken(reply: RangeReply, data: bytes | BaseException) -> BaseException | None:
    if isinstance(data, BaseException):
        return data
    reply.is_pinned = False
    try:
        reply.put(data)
    except WrongReplyError as error:
        return error
    return None


def _hardness(error: BaseException) -> int:
    order = (Kind.TRANSIENT, Kind.WRONG_REPLY, Kind.EXPIRED, Kind.MAYBE_EXPIRED, Kind.CHANGED, Kind.FINAL)
    return order.index(diagnose(error).kind)
