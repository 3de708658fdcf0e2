"""Reads the bytes of one task's file, and checks that the file is the planned one."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from stat import S_ISFIFO

import pyarrow as pa

from torch_dataloader_utils._core.inventory import RowGroupTask
from torch_dataloader_utils._store import TAIL_BYTES, Buffer, Span, SparseFile, Store, planned_file
from torch_dataloader_utils._store.identity import check_identity, is_pipe, is_planned
from torch_dataloader_utils.errors import LoaderError, NoDataError

# Reading this many bytes more takes no longer than another request.
_FREE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """Gives a decoder its bytes and its limits (see ReadSpec), for one read of a task in one thread.

    A small file is fetched whole, once, and kept as long as this object.

    known: names of all columns of the data set, if all are delivered; else None.
    is_of_table: whether a table names the file. Then times are microseconds, of which tables have nothing finer, and a
        task of the first row group may stand for all row groups of the file.
    """

    task: RowGroupTask
    store: Store
    page_checksums: bool
    max_row_group_bytes: int
    is_compiled: bool = True
    known: frozenset[str] | None = None
    is_of_table: bool = False
    _fetched: list[Buffer] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """The file's key in caches: (path, identity)."""
        return (self.task.path, self.task.identity)

    def tail_span(self, length: int = TAIL_BYTES) -> Span:
        """The span of the last `length` bytes of the file (all of a smaller one)."""
        start = max(0, self.task.file_size - length)
        return (start, self.task.file_size - start)

    def span(self, span: Span) -> Buffer:
        """Bytes (offset, length) of the planned file, as one buffer.

        Raises:
            FileChangedError: the file has another identity now.
        """
        content = self.whole()
        if content is not None:
            return memoryview(content)[span[0] : sum(span)]
        return self._ranges([span])[0]

    def tail(self, length: int = TAIL_BYTES) -> Buffer:
        """The last bytes of the planned file, past a cache: a footer is kept when it is known where it begins.

        Raises:
            FileChangedError: the file has another identity now.
        """
        start, length = self.tail_span(length)
        content = self.whole()
        if content is not None:
            return memoryview(content)[start:]
        return self.store.ranges(self.task.path, [(start, length)], self.task.identity)[0]

    def read_into(self, spans: Sequence[Span], buffers: Sequence[memoryview]) -> None:
        """The same for several spans, each into a buffer of its length."""
        if not self._fetched:
            self.store.read_into(self.task.path, spans, buffers, self.task.identity, self.task.ordinal)
            return
        content = memoryview(self._fetched[0])
        for span, buffer in zip(spans, buffers, strict=True):
            buffer[:] = content[span[0] : sum(span)]

    @contextmanager
    def local_file(self) -> Iterator[int | None]:
        """A descriptor of the planned file, for positioned reads; None if it is remote, or a small one; see `whole`.

        Raises:
            FileChangedError: the file that was read has another identity.
        """
        if not self.store.is_local or self._fetched or self._comes_whole:
            yield None
            return
        with planned_file(self.task.path, self.store.local_path(self.task.path), self.task.identity) as file:
            yield file

    def _ranges(self, spans: Sequence[Span]) -> list[Buffer]:
        return self.store.ranges(self.task.path, spans, self.task.identity, self.task.ordinal)

    @property
    def _comes_whole(self) -> bool:
        """Whether the whole file is fetched at once: if it is no larger than the tail that is read for a footer.

        That saves a request. Not if most of the file is other row groups, since each of them would read it again (such
        as a row group of 20 KB in a file of 60 KB).
        """
        beside = self.task.file_size - self.task.byte_length
        return 0 < self.task.file_size <= TAIL_BYTES and beside <= max(self.task.byte_length, _FREE_BYTES)

    def whole(self) -> Buffer | None:
        """The whole file, if it is a small one; fetched once."""
        if self._comes_whole and not self._fetched:
            self._fetched.extend(self._ranges([(0, self.task.file_size)]))
        return self._fetched[0] if self._fetched else None

    @contextmanager
    def open(self, spans: Callable[[], Sequence[Span]]) -> Iterator[pa.NativeFile]:
        """The planned file, for a pyarrow reader.

        A small file is in memory (see `_comes_whole`). Of another remote file, `spans()` are fetched here, at once;
        bytes beyond them (of a very long footer, or dictionaries of an Arrow file) are fetched when they are read.

        Another local file is read by positioned reads, and `spans` is not called. That is as fast as a memory map (14.8
        and 14.7 ms for a row group of 51 columns), and a file that is cut short under a map kills the process with
        SIGBUS. Its identity is checked after it was opened, so that errors are not about another file, and after it was
        read, so that rows of two versions are never mixed.
        """
        content = self.whole()
        if content is not None:
            yield pa.BufferReader(content)
            return
        if not self.store.is_local:
            wanted = _merged(spans())
            data = self._ranges(wanted)
            sparse = SparseFile(wanted, data, self.task.file_size)
            with pa.PythonFile(_FetchingFile(sparse, self.span), mode="r") as file:
                yield file
            return
        with pa.OSFile(self._checked_path()) as file:
            self._check_identity()
            yield file
        self._check_identity()

    def _checked_path(self) -> str:
        """The path to open; raises FileChangedError for a pipe, since opening one may wait for ever for a writer."""
        path = self.store.local_path(self.task.path)
        if S_ISFIFO(os.stat(path).st_mode):  # noqa: PTH116 - a str is wanted
            raise is_pipe(self.task.path)
        return path

    def _check_identity(self) -> None:
        """Raises FileChangedError unless the file still is the one that was planned."""
        check_identity(self.task.path, self.task.identity, self.store.stat(self.task.path))

    def file_is_planned(self) -> bool:
        """Whether the file, looked up now, is the planned one; True where that cannot be found out."""
        try:
            return is_planned(self.task.identity, self.store.stat(self.task.path))
        except NoDataError:
            return False
        except LoaderError:
            return True


def _merged(spans: Sequence[Span]) -> list[Span]:
    """The same bytes as spans that do not overlap, which those of a tail and a row group may do.

    Spans that only touch stay apart, so that the store may fetch them in parallel.

    [(10, 10), (0, 15), (20, 5)]      [(0, 20), (20, 5)]
    """
    merged: list[Span] = []
    for start, length in sorted(spans):
        stop = start + length
        if merged and start < sum(merged[-1]):
            start, last = merged.pop()
            stop = max(stop, start + last)
        merged.append((start, stop - start))
    return merged


class _FetchingFile:
    """A file object for pyarrow over fetched ranges, which fetches what is missing."""

    def __init__(self, sparse: SparseFile, fetch: Callable[[Span], Buffer]) -> None:
        self._sparse = sparse
        self._fetch = fetch
        self.seek, self.tell, self.close = sparse.seek, sparse.tell, sparse.close

    @property
    def closed(self) -> bool:
        return self._sparse.closed

    def read(self, length: int = -1) -> Buffer:
        start = self.tell()
        left = max(0, self._sparse.size() - start)
        length = left if length < 0 else min(length, left)
        if self._sparse.covers(start, length):
            return self._sparse.read(length)
        data = self._fetch((start, length))
        self.seek(start + length)
        return data
