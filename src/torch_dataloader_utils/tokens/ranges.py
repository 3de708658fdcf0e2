"""Byte ranges of files: mapped, read in place, or fetched from a store; one method for all three.

`ByteSource.read` takes ranges and gives buffers of exactly those sizes, or raises. A mapped source gives views that
keep the mapping alive, so tokens stay valid after the data set that handed them out is gone.
"""

import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import fsspec

from torch_dataloader_utils.errors import CorruptFileError, MissingDependencyError, NoDataError, StoreError

Buffer = bytes | memoryview
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """Which bytes a path holds: the size and a tag that changes when they do (mtime, or the store's etag)."""

    size_bytes: int
    tag: str


class RangeStore(Protocol):
    """A store that reads ranges; everything remote goes through these two calls."""

    def identify(self, path: str) -> FileIdentity:
        """Size and tag of the object at `path`; NoDataError when there is none."""

    def read_ranges(self, path: str, ranges: Sequence[Span]) -> list[bytes]:
        """The bytes of each range [start, stop), in order, fetched together."""


class ByteSource(Protocol):
    """One file that gives ranges of its bytes."""

    path: str
    identity: FileIdentity

    def read(self, ranges: Sequence[Span]) -> list[Buffer]:
        """One buffer per range [start, stop), each of exactly stop − start bytes."""


def is_remote(path: str) -> bool:
    """Whether `path` is a URL of a store other than the local disk."""
    return "://" in path and not path.startswith(("file://", "local://"))


def local_path(path: str) -> Path:
    """The local path behind a plain path or a file:// URL."""
    return Path(path.removeprefix("file://").removeprefix("local://"))


def identify_local(path: str) -> FileIdentity:
    """Size and modification time (ns) of a local file.

    Raises:
        NoDataError: there is no such file.
        StoreError: the file cannot be looked at.
    """
    descriptor = _open_local(path)
    try:
        return _identify(descriptor)
    finally:
        os.close(descriptor)


def _open_local(path: str) -> int:
    try:
        return os.open(local_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoDataError(f"There is no file {path}. A corpus is named by its prefix, without .bin or .idx.") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error}.") from error


def _identify(descriptor: int) -> FileIdentity:
    status = os.fstat(descriptor)
    return FileIdentity(size_bytes=status.st_size, tag=str(status.st_mtime_ns))


def _check_ranges(path: str, size_bytes: int, ranges: Sequence[Span]) -> None:
    for start, stop in ranges:
        if not 0 <= start <= stop <= size_bytes:
            raise CorruptFileError(f"{path} has {size_bytes} bytes; bytes [{start}, {stop}) were asked for.")


class MappedFile:
    """A local file mapped into memory; views are zero-copy, read-only, and keep the mapping alive."""

    def __init__(self, path: str) -> None:
        self.path = path
        descriptor = _open_local(path)
        try:
            self.identity = _identify(descriptor)
            # An empty file cannot be mapped. The map outlives the descriptor, and the views outlive this object:
            # nobody closes the map by hand, it goes when the last view goes.
            size_bytes = self.identity.size_bytes
            content = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ) if size_bytes else b""
        finally:
            os.close(descriptor)
        self._view = memoryview(content)

    def read(self, ranges: Sequence[Span]) -> list[Buffer]:
        """Views of the mapping."""
        _check_ranges(self.path, len(self._view), ranges)
        return [self._view[start:stop] for start, stop in ranges]


class PlainFile:
    """A local file read with positioned reads: safe from several threads and across a fork."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = _open_local(path)
        self.identity = _identify(self._descriptor)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, ranges: Sequence[Span]) -> list[Buffer]:
        """Copies of the ranges; a file that became shorter raises instead of giving fewer bytes."""
        _check_ranges(self.path, self.identity.size_bytes, ranges)
        return [self._read_exactly(start, stop) for start, stop in ranges]

    def _read_exactly(self, start: int, stop: int) -> bytes:
        pieces: list[bytes] = []
        # One read may give less than asked for: on Linux never more than 2 GiB.
        while start < stop:
            piece = os.pread(self._descriptor, stop - start, start)
            if not piece:
                raise CorruptFileError(
                    f"{self.path} ends at byte {start}, {stop - start} bytes before its planned end."
                )
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class StoredFile:
    """A remote object read by ranges; nothing is copied to local disk."""

    def __init__(self, path: str, store: RangeStore) -> None:
        self.path = path
        self.identity = store.identify(path)
        self._store = store

    def read(self, ranges: Sequence[Span]) -> list[Buffer]:
        """The ranges in one request to the store, each checked for its size."""
        _check_ranges(self.path, self.identity.size_bytes, ranges)
        wanted = [span for span in ranges if span[0] < span[1]]
        fetched = iter(self._store.read_ranges(self.path, wanted) if wanted else ())
        buffers: list[Buffer] = [next(fetched) if start < stop else b"" for start, stop in ranges]
        for (start, stop), buffer in zip(ranges, buffers, strict=True):
            if len(buffer) != stop - start:
                raise CorruptFileError(f"{self.path} gave {len(buffer)} bytes for the range [{start}, {stop}).")
        return buffers


class FsspecStore:
    """A `RangeStore` over any fsspec file system; pickles as its options and connects again in each process."""

    def __init__(self, storage_options: dict[str, Any] | None = None) -> None:
        self._storage_options = dict(storage_options or {})

    def identify(self, path: str) -> FileIdentity:
        """Size and etag (or version, or modification time) as the file system reports them."""
        filesystem, key = self._open(path)
        try:
            info = filesystem.info(key)
        except FileNotFoundError as error:
            raise NoDataError(f"There is no object {path}. Give the prefix without .bin or .idx.") from error
        except OSError as error:
            raise StoreError(f"{path} cannot be looked at: {error}.") from error
        tags = (
            info.get(name) for name in ("ETag", "etag", "generation", "version_id", "LastModified", "mtime", "created")
        )
        return FileIdentity(size_bytes=int(info["size"]), tag=str(next((tag for tag in tags if tag is not None), "")))

    def read_ranges(self, path: str, ranges: Sequence[Span]) -> list[bytes]:
        """All ranges through one `cat_ranges`, which fetches them concurrently where the store can."""
        filesystem, key = self._open(path)
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        try:
            return [bytes(part) for part in filesystem.cat_ranges([key] * len(ranges), starts, stops, on_error="raise")]
        except OSError as error:
            raise StoreError(f"{path}: reading {len(ranges)} ranges failed: {error}.") from error

    def _open(self, path: str) -> tuple[Any, str]:
        # fsspec keeps instances per process and drops them after a fork, so asking each time is cheap and safe.
        try:
            filesystem, key = fsspec.core.url_to_fs(path, **self._storage_options)
        except ImportError as error:
            raise MissingDependencyError(f"{path} needs a file system that is not installed: {error}.") from error
        return filesystem, key

    def __repr__(self) -> str:
        # Options may hold credentials: only their names are shown.
        return f"FsspecStore(options={sorted(self._storage_options)})"
