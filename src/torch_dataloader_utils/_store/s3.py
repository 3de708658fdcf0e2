"""A range of an S3 object: one GET that carries its own condition, watched while it comes in.

Source: S3 API, GetObject (Range, If-Match); RFC 9110, section 14.4 (Content-Range).
"""

import asyncio
import time
from typing import Any

from torch_dataloader_utils._store.diagnosis import OtherObjectError, ShortReplyError, StalledError, WrongReplyError
from torch_dataloader_utils._store.interface import Span
from torch_dataloader_utils._store.retry import RetryPolicy

_PIECE_BYTES = 1 << 20


class RangeReply:
    """The bytes of one span, as far as they have come; a further attempt asks for what is missing only.

    identity: the object's etag, required of every reply; the first reply's where none was planned.
    """

    def __init__(self, span: Span, identity: str | None) -> None:
        self.span = span
        self.identity = identity
        self.have = 0
        self._buffer = bytearray()
        self._whole: bytes | None = None

    @property
    def data(self) -> memoryview:
        """The bytes of the span, once all have come."""
        return memoryview(self._buffer if self._whole is None else self._whole).toreadonly()

    async def fetch(self, filesystem: Any, key: str, policy: RetryPolicy) -> None:
        """Get what is missing.

        Raises:
            WrongReplyError: another range. OtherObjectError: another object. StalledError: it stopped coming.
            Or what s3fs raises.
        """
        bucket, name, version = filesystem.split_path(key)
        first, last = self.span[0] + self.have, sum(self.span) - 1
        condition = {"IfMatch": f'"{self.identity}"'} if self.identity else {}
        if version:
            condition["VersionId"] = version
        await filesystem.set_session()  # half a second, once; no fault of the server
        reply = await asyncio.wait_for(
            filesystem._call_s3("get_object", Bucket=bucket, Key=name, Range=f"bytes={first}-{last}", **condition),
            4 * policy.progress_seconds,
        )
        body = reply["Body"]
        try:
            self._check(reply, first, last)
            await self._receive(body, policy)
        finally:
            body.close()

    def put(self, data: bytes) -> None:
        """Take the whole span from a client that gives no more than its bytes.

        Raises:
            ShortReplyError: fewer or more bytes than asked for.
        """
        if len(data) != self.span[1]:
            raise ShortReplyError(f"bytes {self.span[0]} to {sum(self.span)} gave {len(data)} of {self.span[1]} bytes")
        self._whole, self.have = data, len(data)

    def _check(self, reply: Any, first: int, last: int) -> None:
        wanted, seen = f"bytes {first}-{last}/", str(reply.get("ContentRange") or "")
        is_whole = not seen and first == 0 and reply.get("ContentLength") == last + 1
        if not seen.startswith(wanted) and not is_whole:
            raise WrongReplyError(f"asked for {wanted[:-1]}, got {seen or 'the whole object'}")
        etag = str(reply.get("ETag") or "").strip('"')
        if etag and self.identity and etag != self.identity:
            raise OtherObjectError(etag)
        self.identity = self.identity or etag or None

    async def _receive(self, body: Any, policy: RetryPolicy) -> None:
        begin, since = time.monotonic(), self.have
        while self.have < self.span[1]:
            left = begin + policy.progress_seconds - time.monotonic()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    piece = await body.read(_PIECE_BYTES)
            except TimeoutError as error:
                piece = b""
                if self.have - since < policy.progress_bytes:
                    raise StalledError(
                        f"{self.have - since} bytes in {policy.progress_seconds:g} s, {self.have} of "
                        f"{self.span[1]} before that"
                    ) from error
            else:
                if not piece:
                    raise WrongReplyError(f"the reply ended after {self.have} of {self.span[1]} bytes")
                if len(piece) > self.span[1] - self.have:
                    raise WrongReplyError(f"the reply is longer than {self.span[1]} bytes")
            self._buffer += piece
            self.have += len(piece)
            if self.have - since >= policy.progress_bytes:
                begin, since = time.monotonic(), self.have
