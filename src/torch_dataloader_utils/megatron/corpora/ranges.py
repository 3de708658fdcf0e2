"""Read byte ranges of a file that is mapped, read in place or fetched from a store.

`ByteSource.read` takes ranges and returns buffers of exactly the sizes of the ranges, or raises. A mapped source
returns views that keep the mapping alive, so tokens stay valid after their data set is gone.
"""

import errno
import os
import weakref
from collections.abc import Sequence
from stat import S_ISREG
from typing import Protocol

import pyarrow as pa

from torch_dataloader_utils._store import (
    MOST_READ_BYTES,
    Buffer,
    FileStat,
    Store,
    StoreAccess,
    file_stat,
    open_store,
    open_to_read,
    redact,
)
from torch_dataloader_utils.errors import CorruptFileError, FileChangedError, NoDataError, StoreError

ByteRange = tuple[int, int]
"""Range [start, stop) in bytes."""

# Attempts to open a file that is replaced meanwhile.
_MOST_OPENINGS = 10


class ByteSource(Protocol):
    """File that returns ranges of its bytes."""

    path: str
    stat: FileStat

    def read(self, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return one buffer per range [start, stop), each of exactly stop − start bytes."""


def open_source(
    path: str, access: StoreAccess | None = None, *, maps: bool = True, stat: FileStat | None = None
) -> ByteSource:
    """Open a local file, or look up size and identity of a remote file.

    Args:
        path: path or URL of the file.
        access: how to read a remote file.
        maps: whether to map a local file. Otherwise the file is read in place.
        stat: size and identity of a remote file, if known. Then no request is made here, and every read must find
            this identity.

    Raises:
        NoDataError: the file does not exist. StoreError: the file cannot be opened or looked up.
    """
    store = open_store(path, access)
    if not store.is_local:
        return StoredFile(path, store, stat)
    return MappedFile(store.local_path(path)) if maps else PlainFile(store.local_path(path))


def _open_local(path: str) -> tuple[int, FileStat]:
    """Return a descriptor of the file, and its size and identity."""
    try:
        descriptor = open_to_read(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoDataError(f"There is no file {path}. Check the spelling.") from error
    except OSError as error:
        raise _not_opened(path, error) from error
    status = os.fstat(descriptor)
    if S_ISREG(status.st_mode):
        return descriptor, file_stat(status)
    os.close(descriptor)
    raise NoDataError(f"{path} is not a file but a directory, a pipe or a device. Pass the path of a file.")


def _not_opened(path: str, error: OSError) -> StoreError:
    hint = ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        hint = " Raise the limit of open files (ulimit -n), or keep fewer files open at once."
    return StoreError(f"{path} cannot be opened: {error}.{hint}")


def _check_ranges(path: str, size_bytes: int, ranges: Sequence[ByteRange]) -> None:
    for start, stop in ranges:
        if not 0 <= start <= stop <= size_bytes:
            raise CorruptFileError(f"{redact(path)} has {size_bytes} bytes; bytes [{start}, {stop}) were asked for.")


class MappedFile:
    """Local file mapped into memory. Views are read-only, copy nothing and keep the mapping alive.

    The file is not held open, so a process may map more files than it may open.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        mapped = (_map(path) for _ in range(_MOST_OPENINGS))
        found = next((each for each in mapped if each is not None), None)
        if found is None:
            raise FileChangedError(f"{path} was replaced each time it was opened. Open it when it is written.")
        # Views outlive this object, so nothing closes the mapping by hand: it ends with its last view.
        self._view, self.stat = found

    def read(self, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return one view of the mapping per range."""
        _check_ranges(self.path, len(self._view), ranges)
        return [self._view[start:stop] for start, stop in ranges]


def _map(path: str) -> tuple[memoryview, FileStat] | None:
    """Map the file at a path. Return the bytes, and size and identity; None if the file was replaced meanwhile.

    pyarrow maps the file and opens the path a second time: Python's mmap would keep a descriptor open.
    """
    descriptor, stat = _open_local(path)
    try:
        if not stat.size:  # cannot be mapped
            return memoryview(b""), stat
        with pa.memory_map(os.fsencode(path)) as file:
            if file.size() < stat.size or not os.path.samestat(os.fstat(descriptor), os.stat(path)):  # noqa: PTH116
                return None
            # One byte only: pyarrow lets the system read ahead everything that it is asked for.
            first = file.read_buffer(1)
        return memoryview(pa.foreign_buffer(first.address, stat.size, base=first)).cast("B"), stat
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _not_opened(path, error) from error
    finally:
        os.close(descriptor)


class PlainFile:
    """Local file read with positioned reads: safe from several threads and across a fork."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor, self.stat = _open_local(path)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return one copy per range.

        Raises:
            CorruptFileError: the file became shorter and does not have all the bytes.
        """
        _check_ranges(self.path, self.stat.size, ranges)
        return [self._read_exactly(start, stop) for start, stop in ranges]

    def _read_exactly(self, start: int, stop: int) -> bytes:
        pieces: list[bytes] = []
        while start < stop:
            piece = os.pread(self._descriptor, min(stop - start, MOST_READ_BYTES), start)
            if not piece:
                raise CorruptFileError(
                    f"{self.path} ends at byte {start}, {stop - start} bytes before its planned end."
                )
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class StoredFile:
    """Remote object read by ranges. All ranges are of the opened version; nothing is copied to local disk."""

    def __init__(self, path: str, store: Store, stat: FileStat | None = None) -> None:
        self.path = path
        self.stat = store.stat(path) if stat is None else stat
        self._store = store

    def read(self, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return one buffer per range. Ranges are fetched together; neighbouring ranges share a request.

        Raises:
            FileChangedError: the object was replaced since it was opened. StoreError: the storage failed.
        """
        _check_ranges(self.path, self.stat.size, ranges)
        spans = [(start, stop - start) for start, stop in ranges]
        return self._store.ranges(self.path, spans, self.stat.identity)
