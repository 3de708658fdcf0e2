"""Objects that are written: whole, in blocks that are sent again, and nothing left of those that failed."""

import gc
import random
from dataclasses import replace
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from tests.store.moto_server import BUCKET, Failure, MotoS3, Silence
from torch_dataloader_utils._store import FsspecStore, StoreAccess, write
from torch_dataloader_utils.errors import CorruptFileError, StoreError

pytestmark = pytest.mark.slow

MIB = 1 << 20
DATA = random.Random(0).randbytes(11 * MIB)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "BLOCK_BYTES", 5 * MIB)  # the least that S3 takes


def read(start: int, length: int) -> bytes:
    return DATA[start : start + length]


def uploads(s3: MotoS3) -> list[Any]:
    found: list[Any] = s3.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    return found


@pytest.mark.parametrize("size", [0, 1, 5 * MIB, 5 * MIB + 1, len(DATA)])
def test_an_object_of_any_size_is_what_was_written(s3: MotoS3, s3_access: StoreAccess, size: int) -> None:
    url = s3.put("a", b"old")
    FsspecStore(access=s3_access).write(url, size, read)
    assert s3.get("a") == DATA[:size]


def test_blocks_that_fail_are_sent_again_by_themselves(s3: MotoS3, s3_access: StoreAccess) -> None:
    url = f"s3://{BUCKET}/a"
    s3.failures.append(Failure("PUT", r"partNumber=2", count=2))
    s3.failures.append(Failure("POST", r"uploads", count=1))
    s3.failures.append(Failure("POST", r"uploadId", count=1))
    FsspecStore(access=s3_access).write(url, len(DATA), read)
    assert s3.get("a") == DATA
    parts = [path.partition("partNumber=")[2][:1] for method, path, _ in s3.requests if method == "PUT"]
    assert sorted(parts) == ["1", "2", "2", "2", "3"]


def test_a_write_that_fails_for_good_leaves_the_old_object_and_no_parts(s3: MotoS3, s3_access: StoreAccess) -> None:
    url = s3.put("a", b"old")
    s3.failures.append(Failure("PUT", r"partNumber=3", status="403 Forbidden", code="AccessDenied"))
    with pytest.raises(StoreError, match=r"s3://bucket/a: no permission to write .*AccessDenied"):
        FsspecStore(access=s3_access).write(url, len(DATA), read)
    assert s3.get("a") == b"old"
    assert uploads(s3) == []


def test_ctrl_c_gives_up_the_blocks_that_a_store_does_not_answer(s3: MotoS3, s3_access: StoreAccess) -> None:
    with Silence() as silence:
        s3.failures.append(Failure("PUT", r"partNumber=2", count=1, meanwhile=silence.interrupt_and_wait))
        with pytest.raises(KeyboardInterrupt):
            FsspecStore(access=s3_access).write(f"s3://{BUCKET}/a", len(DATA), read)
        assert not silence.outlasted
        assert uploads(s3) == []


def test_ctrl_c_does_not_wait_for_the_end_of_an_upload_either(s3: MotoS3, s3_access: StoreAccess) -> None:
    with Silence() as silence:
        s3.failures.append(Failure("PUT", r"partNumber=2", count=1, meanwhile=silence.interrupt_and_wait))
        s3.failures.append(Failure("DELETE", r"uploadId", meanwhile=silence.wait))
        with pytest.raises(KeyboardInterrupt):
            FsspecStore(access=s3_access).write(f"s3://{BUCKET}/a", len(DATA), read)
        assert not silence.outlasted


def test_an_upload_whose_last_answer_was_lost_is_found_to_be_done(s3: MotoS3, s3_access: StoreAccess) -> None:
    url = s3.put("a", b"old")
    s3.failures.append(Failure("POST", r"uploadId", count=1, takes_effect=True))
    s3.failures.append(Failure("POST", r"uploadId", first=1, status="404 Not Found", code="NoSuchUpload"))
    FsspecStore(access=s3_access).write(url, len(DATA), read)
    assert s3.get("a") == DATA


@pytest.mark.parametrize("gone_at", [0, 1])
@pytest.mark.parametrize("old", [b"old", DATA])
def test_an_upload_that_is_gone_is_told_and_no_older_object_is_taken_for_it(
    s3: MotoS3, s3_access: StoreAccess, gone_at: int, old: bytes
) -> None:
    url = s3.put("a", old)  # in one piece: its etag is that of no upload of parts
    s3.failures.append(Failure("POST", r"uploadId", count=gone_at))
    s3.failures.append(Failure("POST", r"uploadId", first=gone_at, status="404 Not Found", code="NoSuchUpload"))
    with pytest.raises(StoreError, match=r"s3://bucket/a: the store no longer knows the upload.*Write it again"):
        FsspecStore(access=s3_access).write(url, len(DATA), read)
    assert s3.get("a") == old
    s3.failures[:] = [Failure("PUT", r"partNumber=2", status="404 Not Found", code="NoSuchUpload")]
    with pytest.raises(StoreError, match="no longer knows the upload"):
        FsspecStore(access=s3_access).write(url, len(DATA), read)


def test_an_abort_is_tried_once(s3: MotoS3, s3_access: StoreAccess) -> None:
    url = f"s3://{BUCKET}/a"
    s3.failures.append(Failure("PUT", r"partNumber=3", status="403 Forbidden", code="AccessDenied"))
    s3.failures.append(Failure("DELETE", r"uploadId"))
    with pytest.raises(StoreError, match="AccessDenied"):
        FsspecStore(access=s3_access).write(url, len(DATA), read)
    assert s3.counts()["DELETE"] == 1
    s3.failures.clear()
    for upload in uploads(s3):
        s3.client.abort_multipart_upload(Bucket=BUCKET, Key="a", UploadId=upload["UploadId"])


def test_an_upload_goes_on_with_renewed_credentials(s3: MotoS3, s3_access: StoreAccess) -> None:
    url, asked = f"s3://{BUCKET}/a", []

    def credentials() -> dict[str, Any]:
        asked.append(1)
        return {"key": f"key-{len(asked)}"}

    s3.failures.append(Failure("PUT", r"partNumber=2", count=1, status="400 Bad Request", code="ExpiredToken"))
    access = replace(s3_access, credentials=credentials, token="renewed")
    FsspecStore(access=access).write(url, len(DATA), read)
    assert s3.get("a") == DATA
    assert len(asked) == 2


def test_deleting_twice_is_no_error(s3: MotoS3, s3_access: StoreAccess) -> None:
    url = s3.put("a", b"old")
    store = FsspecStore(access=s3_access)
    store.delete(url)
    store.delete(url)
    store.make_directory(f"s3://{BUCKET}/b")
    assert s3.names() == []


def test_a_stream_that_fails_is_begun_again_as_a_whole() -> None:
    url = "memory://test_write/a"
    store = FsspecStore(access=StoreAccess())
    failing = [True]

    def read_once_broken(start: int, length: int) -> bytes:
        if start and failing:
            failing.pop()
            raise ConnectionResetError("reset by peer")
        return read(start, length)

    store.make_directory("memory://test_write")
    store.write(url, len(DATA), read_once_broken)
    filesystem = fsspec.filesystem("memory")
    assert filesystem.cat_file("/test_write/a") == DATA
    store.delete(url)
    store.delete(url)
    assert not filesystem.exists("/test_write/a")


class BufferedSink(AbstractBufferedFile):
    """As the streams of most clients: whole objects, published when they are closed."""

    def _initiate_upload(self) -> None:
        self.sent = b""

    def _upload_chunk(self, final: bool = False) -> bool:
        self.sent += self.buffer.getvalue()
        if final:
            self.fs.objects[self.path] = self.sent
        return True


class BufferedStore(AbstractFileSystem):
    """A store that streams; its objects are shared by all clients."""

    protocol = "buffered"
    objects: ClassVar[dict[str, bytes]] = {}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BufferedSink:
        return BufferedSink(self, path, mode, block_size=MIB)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.objects[path]), "type": "file"}


@pytest.mark.parametrize("failed_at", [0, 5 * MIB])
def test_a_stream_that_failed_publishes_nothing_when_it_is_collected(failed_at: int) -> None:
    fsspec.register_implementation("buffered", BufferedStore, clobber=True)
    BufferedStore.objects["b/a"] = b"old"
    store = FsspecStore(access=StoreAccess())

    def read_until(start: int, length: int) -> bytes:
        if start >= failed_at:
            raise CorruptFileError("the local part ends early")
        return read(start, length)

    with pytest.raises(CorruptFileError, match="ends early"):
        store.write("buffered://b/a", len(DATA), read_until)
    gc.collect()
    assert BufferedStore.objects["b/a"] == b"old"
    store.write("buffered://b/a", len(DATA), read)
    assert BufferedStore.objects["b/a"] == DATA


def test_blocks_are_no_more_than_a_store_takes() -> None:
    assert write.cut_blocks(0) == []
    assert write.cut_blocks(11 * MIB) == [(0, 5 * MIB), (5 * MIB, 5 * MIB), (10 * MIB, MIB)]
    blocks = write.cut_blocks(1 << 40)
    assert len(blocks) == 10_000
    assert sum(length for _, length in blocks) == 1 << 40
