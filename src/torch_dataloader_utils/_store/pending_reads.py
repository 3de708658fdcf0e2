"""Ranges of one file that are being read: each attempt asks, in parallel, for the bytes that are still missing."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

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
from torch_dataloader_utils._store.diagnosis import Kind, WrongReplyError, diagnose
from torch_dataloader_utils._store.hedge import Race, ReplyTimes, fetch_hedged
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
        self._attempts = attempts
        self._num_hedges = 0

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
        return [reply for reply in self._replies if reply.have < reply.span[1]]

    def fetch(self, filesystem: Any, key: str) -> None:
        """Make one attempt at all missing bytes.

        Raises:
            The most severe failure, if any request failed (of equal failures, the first by offset). Received bytes are
            kept for the next attempt.
        """
        missing = self._missing()
        before = self._received_bytes()
        thread_counts().requests += len(missing)
        fetch = _fetch_of(filesystem)
        begin, ended = time.perf_counter(), list[float]()
        try:
            if fetch is None:
                errors = _sync(filesystem, key, missing)
            else:
                works = _all(self._send(fetch, filesystem, key, reply, ended) for reply in missing)
                # The Hub's client has no loop; fsspec's loop runs it.
                loop = getattr(filesystem, "loop", None) or get_loop()
                errors = self._run(loop, works, missing)
        finally:
            received = self._received_bytes()
            self._attempts.received(received)
            thread_counts().fetched_bytes += received - before
            hedges, self._num_hedges = self._num_hedges, 0
            thread_counts().requests += hedges
            thread_counts().hedges += hedges
            # Given-up requests count with the whole time, as do requests of a client that reports only the end of all.
            num_requests = len(missing) + hedges
            ends = (ended + [time.perf_counter()] * num_requests)[:num_requests]
            count_times(end - begin for end in ends)
        failures = [error for error in errors if error is not None]
        if failures:
            raise max(failures, key=_hardness)

    def _run(self, loop: Any, works: Any, replies: Sequence[RangeReply]) -> list[BaseException | None]:
        try:
            return run_on_loop(loop, works, self._left_seconds)
        except BaseException:
            # Requests under way end a little later, when the caller may have other plans for its memory.
            for reply in replies:
                reply.detach()
            raise

    async def _send(self, fetch: Fetch, filesystem: Any, key: str, reply: RangeReply, ended: list[float]) -> None:
        """Fetch one reply, by a second request too if the first is silent; append the time at which each ended."""
        policy = self._attempts.policy
        call = partial(_timed, partial(fetch, filesystem, key, reply, policy), ended)
        if policy.hedge_share == 0 or fetch in _UNHEDGED:
            await call()
            return

        def begin(race: Race) -> None:
            reply.note_begun = race.begun

        def note_hedge() -> None:
            self._num_hedges += 1

        await fetch_hedged(call, ReplyTimes.of(filesystem), policy.hedge_share, begin, note_hedge)

    def _received_bytes(self) -> int:
        return sum(reply.have for reply in self._replies)

    def _left_seconds(self) -> float:
        self._attempts.received(self._received_bytes())
        return self._attempts.left_seconds


def _fetch_of(filesystem: Any) -> Fetch | None:
    """Return the function that reads a range with conditions for this client; None if the client has no conditions."""
    module = type(filesystem).__module__
    return next((fetch for name, fetch in _FETCHES.items() if module == name or module.startswith(f"{name}.")), None)


async def _all(works: Any) -> list[BaseException | None]:
    return list(await asyncio.gather(*works, return_exceptions=True))


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
