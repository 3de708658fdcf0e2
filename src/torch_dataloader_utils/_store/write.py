"""Write an object in blocks, each retried on its own where possible, so that one failed request costs little.

    content  ──►  one block:     one request
             ──►  more, on S3:   a multipart upload; its parts go out in parallel, and survive renewed credentials
             ──►  more, others:  the client's own stream, which is retried as a whole

A store shows an object whole or not at all, so nothing is ever renamed. Source: S3 API, "Uploading and copying objects
using multipart upload".

Requests are not counted here: metrics belong to loaders, which write nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fsspec.spec import AbstractBufferedFile

from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._runtime.waiting import request_threads
from torch_dataloader_utils._store.cancellation import ask, run_on_loop
from torch_dataloader_utils._store.client import has_buckets, is_s3
from torch_dataloader_utils._store.store_errors import translated
from torch_dataloader_utils.errors import LoaderError, StoreError

T = TypeVar("T")

# A part on S3 has at least 5 MiB; more parts cost requests, larger parts cost memory and time when one is sent again.
BLOCK_BYTES = 16 << 20
_MOST_BLOCKS = 10_000
_THREADS = 4
# Limit for the answer to an abort, since the user may have pressed Ctrl-C; the store may act on the abort later.
_MOST_ABORT_SECONDS = 1.0

Read = Callable[[int, int], Buffer]
"""Function that returns bytes (offset, length) of the content; may be called again, and from several threads."""


class Request(Protocol):
    """Runner of `call(filesystem, key)` until the call succeeds, or its failure is final (see FsspecStore)."""

    def __call__(self, call: Callable[[Any, str], T]) -> T:
        """Make the call, with retries, and return its result."""


def write_object(request: Request, size: int, read: Read) -> None:
    """Write an object of `size` bytes; replaces an older object.

    Raises:
        StoreError: the storage failed for good. Then no object exists, or the older object; or a part of the new
            object, if the client streams to a store without whole uploads.
    """
    blocks = cut_blocks(size)
    if len(blocks) <= 1:
        data = bytes(read(0, size))
        request(lambda filesystem, key: ask(filesystem, "pipe_file", key, data))
    elif request(lambda filesystem, _: is_s3(filesystem)):
        _write_parts(request, blocks, read)
    else:
        request(lambda filesystem, key: _stream(filesystem, key, blocks, read))


def cut_blocks(size: int) -> list[Span]:
    """Return spans of one length (the last may be shorter): `BLOCK_BYTES`, or more so that 10,000 spans suffice.

    40 MiB      (0, 16 MiB) (16 MiB, 16 MiB) (32 MiB, 8 MiB)
    """
    block_bytes = max(BLOCK_BYTES, -(-size // _MOST_BLOCKS))
    return [(start, min(block_bytes, size - start)) for start in range(0, size, block_bytes)]


def delete_object(filesystem: Any, key: str) -> None:
    """Delete the object, if it exists."""
    with suppress(FileNotFoundError):
        ask(filesystem, "rm_file", key)


def make_directory(filesystem: Any, key: str) -> None:
    """Make a directory, if the store has directories: in an object store, the call would make a bucket."""
    if not has_buckets(filesystem):
        ask(filesystem, "makedirs", key, exist_ok=True)


def _stream(filesystem: Any, key: str, blocks: list[Span], read: Read) -> None:
    sink = filesystem.open(key, "wb")
    try:
        for block in blocks:
            sink.write(read(*block))
    except BaseException:
        _give_up(sink)
        raise
    sink.close()


def _give_up(sink: Any) -> None:
    # Closing publishes the bytes so far as the whole object, and fsspec closes collected files at any later time. Few
    # clients have a `discard` that prevents both.
    is_buffered = isinstance(sink, AbstractBufferedFile)
    if is_buffered:
        sink.closed = True
    discard = getattr(sink, "discard", None)
    if discard is not None:
        discard()
    if is_buffered:
        sink.close()  # resources that a client holds besides: adlfs its connection


def _write_parts(request: Request, blocks: list[Span], read: Read) -> None:
    upload = request(lambda filesystem, key: _call(filesystem, "create_multipart_upload", key))["UploadId"]

    def put(number: int, block: Span) -> dict[str, Any]:
        data = bytes(read(*block))
        answer = request(lambda filesystem, key: _put_part(filesystem, key, upload, number, data))
        return {"PartNumber": number, "ETag": answer["ETag"]}

    try:
        with request_threads(_THREADS, "tdu-upload") as pool:
            parts = list(pool.map(put, range(1, len(blocks) + 1), blocks))
        request(_Completion(upload=upload, parts=parts, size=sum(blocks[-1])))
    except BaseException:
        # Parts of an incomplete upload cost money until the upload is aborted. One try: the store may be gone.
        with suppress(LoaderError):
            request(lambda filesystem, key: _abort(filesystem, key, upload))
        raise


@dataclass(slots=True, kw_only=True)
class _Completion:
    """Request that makes the object of its parts. upload: Id. size: Bytes of the object. tries: Number of requests."""

    upload: str
    parts: list[dict[str, Any]]
    size: int
    tries: int = 0

    def __call__(self, filesystem: Any, key: str) -> None:
        """Send one request; and a look-up if the upload is gone: an earlier request may have succeeded unanswered.

        Raises:
            StoreError: the upload is gone, and its object does not exist.
        """
        self.tries += 1
        try:
            _call(
                filesystem,
                "complete_multipart_upload",
                key,
                UploadId=self.upload,
                MultipartUpload={"Parts": self.parts},
            )
        except FileNotFoundError as error:
            # At the first try an object there is an older object, however well it fits.
            if self.tries == 1 or not self._is_made(filesystem, key):
                raise _lost(key) from error

    def _is_made(self, filesystem: Any, key: str) -> bool:
        filesystem.invalidate_cache(key)
        try:
            info = ask(filesystem, "info", key)
        except FileNotFoundError:
            return False
        is_ours = str(info.get("ETag") or "").strip('"').endswith(f"-{len(self.parts)}")
        return is_ours and info["size"] == self.size


def _put_part(filesystem: Any, key: str, upload: str, number: int, data: bytes) -> Any:
    try:
        return _call(filesystem, "upload_part", key, UploadId=upload, PartNumber=number, Body=data)
    except FileNotFoundError as error:
        raise _lost(key) from error


def _abort(filesystem: Any, key: str, upload: str) -> None:
    with translated(f"s3://{key}", "abort the upload of"):  # errors of ours are not retried
        answer = _ask_s3(filesystem, "abort_multipart_upload", key, UploadId=upload)
        run_on_loop(filesystem.loop, asyncio.wait_for(answer, _MOST_ABORT_SECONDS))


def _lost(key: str) -> StoreError:
    return StoreError(
        f"s3://{key}: the store no longer knows the upload that was under way; somebody, or a rule of the bucket, "
        "aborted it. Write it again."
    )


def _call(filesystem: Any, method: str, key: str, **arguments: Any) -> Any:
    return run_on_loop(filesystem.loop, _ask_s3(filesystem, method, key, **arguments))


def _ask_s3(filesystem: Any, method: str, key: str, **arguments: Any) -> Coroutine[Any, Any, Any]:
    bucket, name, _ = filesystem.split_path(key)
    asking: Coroutine[Any, Any, Any] = filesystem._call_s3(method, Bucket=bucket, Key=name, **arguments)
    return asking
