"""Collects the bytes of one span: checks that they are the right ones, and keeps them if a reply breaks off.

Source: RFC 9110, section 14.4 (Content-Range).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from torch_dataloader_utils._store.diagnosis import OtherObjectError, ShortReplyError, StalledError, WrongReplyError
from torch_dataloader_utils._store.interface import Span
from torch_dataloader_utils._store.retry import RetryPolicy

_PIECE_BYTES = 1 << 20


@asynccontextmanager
async def reply_within(seconds: float) -> AsyncIterator[None]:
    """Raises StalledError if what is inside takes longer."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise StalledError(f"no reply in {seconds:.3g} s") from error


class RangeReply:
    """The bytes of one span received so far; another attempt asks only for the missing ones.

    identity: of the object, required of every reply; that of the first reply if none was planned.
    is_pinned: whether all bytes so far are known to be of that object.
    """

    def __init__(self, span: Span, identity: str | None) -> None:
        self.span = span
        self.identity = identity
        self.have = 0
        self.is_pinned = True
        self._buffer = bytearray()
        self._whole: bytes | None = None

    @property
    def data(self) -> memoryview:
        """The bytes of the span, once all have come."""
        return memoryview(self._buffer if self._whole is None else self._whole).toreadonly()

    @property
    def missing(self) -> tuple[int, int]:
        """The first and the last byte that are still to come."""
        return self.span[0] + self.have, sum(self.span) - 1

    def check_range(self, content_range: str | None, content_length: int | None) -> None:
        """Raises WrongReplyError unless the reply holds what is missing."""
        first, last = self.missing
        wanted, seen = f"bytes {first}-{last}/", content_range or ""
        is_whole = not seen and first == 0 and content_length == last + 1
        if not seen.startswith(wanted) and not is_whole:
            raise WrongReplyError(f"asked for {wanted[:-1]}, got {seen or 'the whole object'}")

    def check_identity(self, seen: str | None) -> None:
        """Takes the identity of the object that the reply is from; None if the reply does not say.

        Raises:
            OtherObjectError: another one than required.
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
        self._whole, self.have = data, len(data)

    async def receive(self, body: Any, policy: RetryPolicy) -> None:
        """Take what is missing from a stream, watched while it comes in.

        Raises:
            StalledError: it stopped coming. WrongReplyError: fewer or more bytes than asked for.
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
            self._buffer += piece
            self.have += len(piece)
            if self.have - since >= policy.progress_bytes:
                begin, since = time.monotonic(), self.have
