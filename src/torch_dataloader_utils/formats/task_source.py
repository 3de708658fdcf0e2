"""Bytes of one task's file, and the check that the file is the planned file."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from stat import S_ISFIFO
from typing import NamedTuple

import pyarrow as pa

from torch_dataloader_utils._arrow.schema import FieldPath
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._store import TAIL_BYTES, Buffer, Span, SparseFile, Store
from torch_dataloader_utils._store.identity import check_identity, is_pipe, is_planned
from torch_dataloader_utils.cache.entries import OpenEntry
from torch_dataloader_utils.errors import LoaderError, NoDataError

# Reading this many bytes more takes no longer than another request.
_FREE_BYTES = 16 << 10


class Conversion(NamedTuple):
    """Conversion of the numbers of a column, also in lists, to another type.

    loss: "round", "exact" or "clip"; see `shape.dtypes.NumberTarget`.
    """

    data_type: pa.DataType
    loss: str


class Changes(NamedTuple):
    """Changes of columns that a decoder may make, where this is cheaper than to make them afterwards.

    conversions: Conversions by name of the column or leaf. leaves: Name and path of each wanted leaf, by column of
        structs. A leaf is a field that is not a struct. dictionaries: Names of columns of text that may be
        dictionary-encoded.
    """

    conversions: Mapping[str, Conversion]
    leaves: Mapping[str, Mapping[str, FieldPath]]
    dictionaries: frozenset[str]

    def without(self, column: str) -> "Changes":
        """Return the changes of all other columns."""
        conversions = {name: each for name, each in self.conversions.items() if name != column}
        return Changes(conversions, self.leaves, self.dictionaries.difference([column]))


NO_CHANGES = Changes({}, {}, frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """Bytes and limits (see ReadSpec) for a decoder, for one read of a task in one thread.

    A small file is fetched whole, once, and kept as long as this object.

    Attributes:
        task: Row group to read.
        store: Store of the file.
        page_checksums: Whether checksums of Parquet pages are verified.
        max_row_group_bytes: Limit of the decoded bytes of one row group.
        is_compiled: Whether the compiled decoder may be used.
        changes: Changes that `decode_parts` and `decode_together` of a format may make. Fields of columns that are
            converted say so: see `is_converted`.
        known: Names of all columns of the data set, if all are delivered; else None.
        is_of_table: Whether a table names the file. Then times are microseconds, as tables have no finer times, and a
            task of the first row group may stand for all row groups of the file.
    """

    task: RowGroupTask
    store: Store
    page_checksums: bool
    max_row_group_bytes: int
    is_compiled: bool = True
    known: frozenset[str] | None = None
    is_of_table: bool = False
    changes: Changes = NO_CHANGES
    _fetched: list[Buffer] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """Key of the file in caches: (path, identity)."""
        return (self.task.path, self.task.identity)

    def tail_span(self, length: int = TAIL_BYTES) -> Span:
        """Return the span of the last `length` bytes of the file (all of a smaller file)."""
        start = max(0, self.task.file_size - length)
        return (start, self.task.file_size - start)

    def span(self, span: Span) -> Buffer:
        """Return bytes (offset, length) of the planned file, as one buffer.

        Raises:
            FileChangedError: the file has another identity now.
        """
        content = self.whole()
        if content is not None:
            return memoryview(content)[span[0] : sum(span)]
        return self._ranges([span])[0]

    def tail(self, length: int = TAIL_BYTES) -> Buffer:
        """Return the last bytes of the planned file. Skips the cache: a footer is kept once its first byte is known.

        Raises:
            FileChangedError: the file has another identity now.
        """
        start, length = self.tail_span(length)
        content = self.whole()
        if content is not None:
            return memoryview(content)[start:]
        return self.store.ranges(self.task.path, [(start, length)], self.task.identity)[0]

    def read_into(self, spans: Sequence[Span], buffers: Sequence[memoryview]) -> None:
        """Read several spans of the planned file, each into a buffer of its length.

        Raises:
            FileChangedError: the file has another identity now.
        """
        if not self._fetched:
            self.store.read_into(self.task.path, spans, buffers, self.task.identity, self.task.ordinal)
            return
        content = memoryview(self._fetched[0])
        for span, buffer in zip(spans, buffers, strict=True):
            buffer[:] = content[span[0] : sum(span)]

    @property
    def local_path(self) -> str | None:
        """Path of the file on this machine; None for a remote or small file (see `whole`)."""
        is_elsewhere = not self.store.is_local or self._fetched or self._comes_whole
        return None if is_elsewhere else self.store.local_path(self.task.path)

    def kept_range(self, span: Span) -> AbstractContextManager[OpenEntry | None]:
        """Return a context of the entry of this host's cache with a span of the planned file; None without one."""
        if self._fetched or self._comes_whole:
            return nullcontext()
        return self.store.kept_range(self.task.path, span, self.task.identity, self.task.ordinal)

    def _ranges(self, spans: Sequence[Span]) -> list[Buffer]:
        return self.store.ranges(self.task.path, spans, self.task.identity, self.task.ordinal)

    @property
    def _comes_whole(self) -> bool:
        """Whether the whole file is fetched at once: it is no larger than the tail that is read for a footer.

        One fetch saves a request. A file that is mostly other row groups is not fetched whole, since each of its row
        groups would read it again (such as a row group of 20 KB in a file of 60 KB).
        """
        beside = self.task.file_size - self.task.byte_length
        return 0 < self.task.file_size <= TAIL_BYTES and beside <= max(self.task.byte_length, _FREE_BYTES)

    def whole(self) -> Buffer | None:
        """Return the whole file if it is small; None otherwise. A file is fetched once."""
        if self._comes_whole and not self._fetched:
            self._fetched.extend(self._ranges([(0, self.task.file_size)]))
        return self._fetched[0] if self._fetched else None

    @contextmanager
    def open(self, spans: Callable[[], Sequence[Span]]) -> Iterator[pa.NativeFile]:
        """Yield the planned file, for a pyarrow reader.

        A small file is in memory (see `_comes_whole`). For another remote file, `spans()` are fetched here, at once.
        Bytes beyond them (of a very long footer, or dictionaries of an Arrow file) are fetched when pyarrow reads them.

        Another local file is read by positioned reads, and `spans` is not called. Positioned reads are as fast as a
        memory map (14.8 and 14.7 ms for a row group of 51 columns), and a file that is cut short under a map kills the
        process with SIGBUS. The identity is checked after the file is opened, so that errors are not about another
        file, and again after the file is read, so that rows of two versions are never mixed.
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
        """Return the path to open; raise FileChangedError for a pipe, since opening may wait forever for a writer."""
        path = self.store.local_path(self.task.path)
        if S_ISFIFO(os.stat(path).st_mode):  # noqa: PTH116 - a str is wanted
            raise is_pipe(self.task.path)
        return path

    def _check_identity(self) -> None:
        """Raise FileChangedError unless the file is still the planned file."""
        check_identity(self.task.path, self.task.identity, self.store.stat(self.task.path))

    def file_is_planned(self) -> bool:
        """Return whether the file, looked up now, is the planned file; True if the store cannot tell."""
        try:
            return is_planned(self.task.identity, self.store.stat(self.task.path))
        except NoDataError:
            return False
        except LoaderError:
            return True


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Return spans of the same bytes that do not overlap. Spans of a tail and a row group may overlap.

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
    """File object for pyarrow over fetched ranges. It fetches missing bytes."""

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
