"""The ranges of one file, as far as they have come: each attempt asks for what is missing, all at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

from torch_dataloader_utils._observe.requests import thread_requests
from torch_dataloader_utils._store.client import is_s3
from torch_dataloader_utils._store.diagnosis import Kind, WrongReplyError, diagnose
from torch_dataloader_utils._store.ending import run_on_loop
from torch_dataloader_utils._store.interface import Buffer, Span
from torch_dataloader_utils._store.obstore import fetch_range, is_obstore
from torch_dataloader_utils._store.retry import RetryPolicy
from torch_dataloader_utils._store.s3 import RangeReply

# A reply of a client that cannot be watched while it comes in may take this much longer for its size.
_LEAST_BYTES_PER_SECOND = 1 << 20

# Others may say that they are asynchronous and wrap one that is not.
_ASYNC_CLIENTS = ("gcsfs", "adlfs", "fsspec.implementations.http")


class PendingReads:
    """Spans of one file, to be read at the planned identity.

    are_pinned: after `fetch`, whether every reply was checked to be of that identity.
    """

    def __init__(self, spans: Sequence[Span], identity: str | None, policy: RetryPolicy) -> None:
        self._replies = [RangeReply(span, identity) for span in spans]
        self._policy = policy
        self.are_pinned = False

    @property
    def data(self) -> list[Buffer]:
        """The bytes of each span, in the order of the spans."""
        return [reply.data for reply in self._replies]

    @property
    def are_missing(self) -> bool:
        """Whether any byte is still to come."""
        return bool(self._missing())

    def _missing(self) -> list[RangeReply]:
        return [reply for reply in self._replies if reply.have < reply.span[1]]

    def fetch(self, filesystem: Any, key: str) -> None:
        """One attempt at all that is missing.

        Raises:
            The failure that is hardest to mend, if any request failed; what came in is kept for the next attempt.
        """
        missing = self._missing()
        before = sum(reply.have for reply in missing)
        thread_requests().requests += len(missing)
        if is_s3(filesystem):
            self.are_pinned = True
            errors = run_on_loop(filesystem.loop, _all(reply.fetch(filesystem, key, self._policy) for reply in missing))
        elif is_obstore(filesystem):
            self.are_pinned = True
            errors = run_on_loop(filesystem.loop, _all(self._by_obstore(filesystem, key, reply) for reply in missing))
        elif type(filesystem).__module__.startswith(_ASYNC_CLIENTS):
            errors = run_on_loop(filesystem.loop, _all(self._whole(filesystem, key, reply) for reply in missing))
        else:
            errors = _sync(filesystem, key, missing)
        thread_requests().fetched_bytes += sum(reply.have for reply in missing) - before
        failures = [error for error in errors if error is not None]
        if failures:
            raise max(failures, key=_hardness)

    async def _by_obstore(self, filesystem: Any, key: str, reply: RangeReply) -> None:
        async with asyncio.timeout(self._policy.most_seconds):
            reply.put(await fetch_range(filesystem, key, reply.span, reply.identity))

    async def _whole(self, filesystem: Any, key: str, reply: RangeReply) -> None:
        start, length = reply.span
        most_seconds = 2 * self._policy.progress_seconds + length / _LEAST_BYTES_PER_SECOND
        async with asyncio.timeout(most_seconds):
            data = await filesystem._cat_file(key, start=start, end=start + length)
        reply.put(data)


async def _all(works: Any) -> list[BaseException | None]:
    return list(await asyncio.gather(*works, return_exceptions=True))


def _sync(filesystem: Any, key: str, missing: Sequence[RangeReply]) -> list[BaseException | None]:
    starts = [reply.span[0] for reply in missing]
    stops = [sum(reply.span) for reply in missing]
    data = filesystem.cat_ranges([key] * len(missing), starts, stops, on_error="return")
    return [_taken(reply, each) for reply, each in zip(missing, data, strict=True)]


def _taken(reply: RangeReply, data: bytes | BaseException) -> BaseException | None:
    if isinstance(data, BaseException):
        return data
    try:
        reply.put(data)
    except WrongReplyError as error:
        return error
    return None


def _hardness(error: BaseException) -> int:
    order = (Kind.TRANSIENT, Kind.WRONG_REPLY, Kind.EXPIRED, Kind.MAYBE_EXPIRED, Kind.CHANGED, Kind.FINAL)
    return order.index(diagnose(error).kind)
