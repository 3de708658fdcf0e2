"""Read one span of an object on condition that the object is the planned one; one function for each storage client.

Source: RFC 9110, section 14.4 (Content-Range).
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import numpy as np

from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._store.diagnosis import (
    OtherObjectError,
    ShortReplyError,
    StalledError,
    WholeReplyError,
    WrongReplyError,
)
from torch_dataloader_utils._store.identity import names_no_version, stat_of
from torch_dataloader_utils._store.retry import RetryPolicy

_PIECE_BYTES = 1 << 20


@asynccontextmanager
async def reply_within(seconds: float) -> AsyncIterator[None]:
    """Raise StalledError if the block takes longer."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise StalledError(f"no reply in {seconds:.3g} s") from error


class RangeReply:
    """Bytes of one span received so far; another attempt asks only for the missing bytes.

    identity: Identity of the object, required of every reply; the first reply sets it if no identity was planned.
    into: Memory of the span's length that the bytes are written into; None for memory of its own.
    is_pinned: Whether all bytes so far are known to be bytes of that object.
    note_begun: Function that is called when a reply begins; if it raises, the reply is given up.
    """

    def __init__(self, span: Span, identity: str | None, into: memoryview | None = None) -> None:
        self.span = span
        self.identity = identity
        self.have = 0
        self.is_pinned = True
        self.note_begun: Callable[[], None] = lambda: None
        self._num_silences = 0
        self._into = into
        self._memory: Buffer = np.empty(span[1], np.uint8).data if into is None else into
        self._writing = threading.Lock()

    @property
    def data(self) -> Buffer:
        """Bytes of the span, once all have come; the very memory of `into` if they were written there."""
        return self._memory if self._memory is self._into else memoryview(self._memory).toreadonly()

    def detach(self) -> None:
        """Write no more into the memory of `into`, whose owner no longer waits; bytes so far are kept."""
        with self._writing:
            self._memory = memoryview(bytearray(self._memory))

    @property
    def is_missing(self) -> bool:
        """Whether any byte is still to come."""
        return self.have < self.span[1]

    @property
    def missing(self) -> tuple[int, int]:
        """First and last byte that are still to come."""
        return self.span[0] + self.have, sum(self.span) - 1

    @asynccontextmanager
    async def begun(self, policy: RetryPolicy) -> AsyncIterator[None]:
        """Raise StalledError if the block, in which the reply begins, takes longer than `progress_seconds`.

        After each silence the limit is doubled, up to four times: a server may need longer, a lost connection is not
        worth a wait.
        """
        num_silences = self._num_silences
        try:
            async with reply_within(policy.progress_seconds * min(4, 2**num_silences)):
                yield
        except StalledError:
            self._num_silences = num_silences + 1  # a second request at the same time counts once
            raise
        self.note_begun()

    def check_range(self, content_range: str | None, content_length: int | None) -> None:
        """Raise WrongReplyError unless the reply holds the missing bytes."""
        first, last = self.missing
        wanted, seen = f"bytes {first}-{last}/", content_range or ""
        is_whole = not seen and first == 0 and content_length == last + 1
        if not seen and not is_whole:
            raise WholeReplyError(f"asked for {wanted[:-1]}, got the whole object")
        if seen and not seen.startswith(wanted):
            raise WrongReplyError(f"asked for {wanted[:-1]}, got {seen}")

    def check_identity(self, seen: str | None) -> None:
        """Take the identity of the object that the reply is from; None if the reply does not say.

        Raises:
            OtherObjectError: the identity differs from the required identity.
        """
        if not seen:
            self.is_pinned = False
        elif self.identity and seen != self.identity:
            raise OtherObjectError(seen)
        else:
            self.identity = seen

    def put(self, data: bytes) -> None:
        """Take the whole span from a client that gives only bytes and no headers.

        Raises:
            ShortReplyError: fewer or more bytes than asked for.
        """
        if len(data) != self.span[1]:
            raise ShortReplyError(f"bytes {self.span[0]} to {sum(self.span)} gave {len(data)} of {self.span[1]} bytes")
        self._memory, self.have = data, len(data)

    async def receive(self, body: Any, policy: RetryPolicy) -> None:
        """Take the missing bytes from a stream, and watch its progress.

        Raises:
            StalledError: the stream stopped. WrongReplyError: fewer or more bytes than asked for.
        """
        begin, since = time.monotonic(), self.have
        while self.have < self.span[1]:
            left = begin + policy.progress_seconds - time.monotonic()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    piece = await body.read(_PIECE_BYTES)
            except TimeoutError as error:
                raise StalledError(
                    f"{self.have - since} bytes in {policy.progress_seconds:g} s, {since} of {self.span[1]} before that"
                ) from error
            if not piece:
                raise WrongReplyError(f"the reply ended after {self.have} of {self.span[1]} bytes")
            if len(piece) > self.span[1] - self.have:
                raise WrongReplyError(f"the reply is longer than {self.span[1]} bytes")
            self._take(piece)
            if self.have - since >= policy.progress_bytes:
                begin, since = time.monotonic(), self.have

    def _take(self, piece: Any) -> None:
        with self._writing:
            memoryview(self._memory)[self.have : self.have + len(piece)] = piece
            self.have += len(piece)


class PieceStream:
    """Pieces of a reply that a client iterates over, for `RangeReply.receive`."""

    def __init__(self, pieces: AsyncIterator[Any]) -> None:
        self._pieces = pieces

    async def read(self, _: int) -> memoryview:
        """Return the next piece, whatever its length; empty at the end."""
        return memoryview(await anext(self._pieces, b""))


async def fetch_from_s3(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get the missing bytes of `reply`, on condition that the object's etag is the identity.

    Raises:
        WrongReplyError: another range. OtherObjectError: another object. StalledError: the reply stopped.
        Any other error of s3fs.
    """
    bucket, name, version = filesystem.split_path(key)
    first, last = reply.missing
    condition = {"IfMatch": f'"{reply.identity}"'} if reply.identity else {}
    if version:
        condition["VersionId"] = version
    await filesystem.set_session()  # half a second, once; no fault of the server
    async with reply.begun(policy):
        answer = await filesystem._call_s3(
            "get_object", Bucket=bucket, Key=name, Range=f"bytes={first}-{last}", **condition
        )
    body = answer["Body"]
    try:
        reply.check_range(answer.get("ContentRange"), answer.get("ContentLength"))
        # The condition holds even where a server gives no etag with the bytes.
        reply.check_identity(str(answer.get("ETag") or "").strip('"') or reply.identity)
        await reply.receive(body, policy)
    finally:
        body.close()


# A reply that cannot be watched while it comes in gets this much more time for its size.
LEAST_BYTES_PER_SECOND = 1 << 20


async def fetch_from_gcs(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get the whole of `reply`, of the generation that is its identity.

    Raises:
        FileNotFoundError: the generation is gone. ShortReplyError: fewer or more bytes. Any other error of gcsfs.
    """
    start, length = reply.span
    pinned = {"generation": reply.identity} if reply.identity and reply.identity.isdigit() else {}
    async with reply_within(2 * policy.progress_seconds + length / LEAST_BYTES_PER_SECOND):
        data = await filesystem._cat_file(key, start=start, end=start + length, **pinned)
    reply.put(data)
    reply.check_identity(pinned.get("generation"))


async def fetch_from_azure(filesystem: Any, key: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get the whole of `reply`, on condition that the blob's etag is the identity.

    Raises:
        OtherObjectError: another blob. ShortReplyError: fewer or more bytes. FileNotFoundError, and errors of the SDK.
    """
    container, name, version = filesystem.split_path(key)
    start, length = reply.span
    # The SDK's own retries, of up to minutes, would neither be logged nor end with our limit.
    options: dict[str, Any] = {"version_id": version, "retry_total": 0}
    if reply.identity:
        unmodified = import_module("azure.core").MatchConditions.IfNotModified
        options |= {"etag": f'"{reply.identity}"', "match_condition": unmodified}
    async with (
        reply_within(2 * policy.progress_seconds + length / LEAST_BYTES_PER_SECOND),
        filesystem.service_client.get_blob_client(container=container, blob=name) as client,
    ):
        try:
            stream = await client.download_blob(offset=start, length=length, **options)
            data = await stream.readall()
        except Exception as error:
            if getattr(error, "status_code", 0) == 404:
                raise FileNotFoundError(key) from error
            raise
    reply.check_identity(str(stream.properties.etag or "").strip('"') or reply.identity)
    reply.put(data)


async def fetch_from_http(filesystem: Any, url: str, reply: RangeReply, policy: RetryPolicy) -> None:
    """Get the missing bytes of `reply`.

    Raises:
        WrongReplyError: another range, or a server without ranges. OtherObjectError: another file. StalledError: the
            reply stopped. FileNotFoundError, and errors of aiohttp.
    """
    first, last = reply.missing
    options = dict(filesystem.kwargs)
    # With a compressed transfer, the range would count compressed bytes.
    headers = {**options.pop("headers", {}), "Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
    if reply.identity and _is_strong_etag(reply.identity):
        headers["If-Match"] = f'"{reply.identity}"'
    session = await filesystem.set_session()
    async with reply.begun(policy):
        answer = await session.get(filesystem.encode_url(url), headers=headers, **options)
    async with answer:
        if answer.status == 404:
            raise FileNotFoundError(url)
        answer.raise_for_status()
        reply.check_range(answer.headers.get("Content-Range"), answer.content_length)
        reply.check_identity(_identity(answer.headers, reply))
        await reply.receive(answer.content, policy)


def _identity(headers: Any, reply: RangeReply) -> str | None:
    """Return the identity that a look-up would give, from the headers of a reply; None if the headers say less."""
    total = headers.get("Content-Range", "").rpartition("/")[2]
    size = int(total) if total.isdigit() else reply.span[1]
    seen = stat_of({"size": size, **{name: headers.get(name) for name in ("ETag", "Last-Modified")}})
    has_etag, wants_etag = bool(headers.get("ETag")), bool(reply.identity) and not _is_size_and_time(reply.identity)
    if names_no_version(seen.identity) or (reply.identity and has_etag != wants_etag):
        return None
    return seen.identity


def _is_strong_etag(identity: str) -> bool:
    return not _is_size_and_time(identity) and not identity.startswith("W/")


def _is_size_and_time(identity: str | None) -> bool:
    # `stat_of` writes "1024-Wed, 21 Oct 2026 07:28:00 GMT", or "1024-" if the server gives no time.
    size, dash, time = (identity or "").partition("-")
    return bool(dash) and size.isdigit() and (not time or "GMT" in time)
