"""The interface of all stores: identity of a file, its tail, and ranges of its bytes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from torch_dataloader_utils._core.arguments import hold_integers, hold_not_negative
from torch_dataloader_utils._core.row_group_task import pinned
from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils.cache.entries import OpenEntry
from torch_dataloader_utils.cache.kept_values import KeptValues


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """Size and version of a file.

    size: Bytes. identity: The etag or generation, or "size-mtime_ns" where the store has neither.
    modified_ns: Time of writing, in nanoseconds since 1970; None if the store gives no time, or not in a comparable
        form. Not part of the identity.
    changed_ns: For a local file, time of the last change of its bytes or attributes (st_ctime), which no program can
        set back.
    """

    size: int
    identity: str
    modified_ns: int | None = field(default=None, compare=False)
    changed_ns: int | None = field(default=None, compare=False)

    @property
    def pin(self) -> str:
        """Identity that reads of one job are pinned to; see `pinned`."""
        return pinned(self.identity, self.changed_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a listing: its path (absolute local path or URL), and its stat in the listing."""

    path: str
    stat: FileStat


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files that a path names, sorted by path.

    directory: Directory that was searched, spelled as in the paths of files: the named directory, or the part of a
        pattern before its first wildcard; "" if a file was named.
    is_pattern: Whether a pattern was named. dead_links: Local links that lead nowhere, sorted.
    """

    entries: tuple[FileEntry, ...]
    directory: str = ""
    is_pattern: bool = False
    dead_links: tuple[str, ...] = ()


TAIL_BYTES = 64 << 10
"""Number of bytes at the end of a file that are read for a footer of unknown length; pyarrow reads as many.

A Parquet footer has 26 KB for 50 columns and 4 row groups, 592 KB for 500 and 10. ORC's reader wants the last 16 KiB,
and stripes cost about 20 bytes each.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Last bytes of a file, with its size and identity."""

    data: Buffer
    size: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunTail:
    """Tail that one attempt was made to read.

    data: The bytes; None if more attempts have to follow. end: Function that makes more attempts if need be, and
    returns the tail, or raises as `Store.tail`.
    """

    data: Buffer | None
    end: Callable[[], Tail]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalesceLimits:
    """Limits up to which spans share a read.

    Attributes:
        hole_bytes: Largest gap that is read and thrown away to save a request. 1 MiB costs about as long as a request
            at 100 ms and 10 MB/s a stream; measured at 16 MiB holes, 0.6 MB of wanted bytes became 12.7 MB.
        most_bytes: Largest merged read; a larger single span is read whole.
        most_waste: Limit for all gaps of one call together, as a fraction of the wanted bytes; the smallest gaps are
            merged first. Requests run in parallel, so one more request costs less than many bytes. 16 KiB are always
            allowed.
    """

    hole_bytes: int = 1 << 20
    most_bytes: int = 32 << 20
    most_waste: float = 0.04

    def __post_init__(self) -> None:
        hold_integers(self, "hole_bytes", least=0)
        hold_integers(self, "most_bytes", least=1)
        hold_not_negative(self, "most_waste", may_be_infinite=True)


class Store(Protocol):
    """Interface of all stores: sync, thread-safe, picklable; nothing live is pickled or inherited by a forked child.

    Paths are the paths of an inventory: absolute local paths or URLs. All methods raise NoDataError for a file that
    does not exist, FileChangedError where the file does not have the given identity, and StoreError for anything that
    the storage itself refused.
    """

    @property
    def is_local(self) -> bool:
        """Whether files are on this machine, so that `local_path` works."""
        ...

    def local_path(self, path: str) -> str:
        """Return the path for the operating system; ConfigError if the store is remote."""
        ...

    def stat(self, path: str) -> FileStat:
        """Return the present size and identity, past every listing cache."""
        ...

    def tail(self, path: str, length: int, stat: FileStat | None = None) -> Tail:
        """Return the last `length` bytes (all bytes of a smaller file).

        With the `stat` of a listing, this is one request; the reply is checked against its size.
        """
        ...

    def begin_tails(self, files: Sequence[FileEntry], lengths: Sequence[int]) -> list[BegunTail]:
        """Make one attempt at the tail of each file, at all files at once where the client can do that."""
        ...

    def ranges(
        self, path: str, spans: Sequence[Span], identity: str | None = None, row_group: int | None = None
    ) -> list[Buffer]:
        """Return the bytes of each span, in the order asked; neighbouring spans share one read and are views of it.

        identity: Required identity of the file, checked after the bytes were read, so that a replacement in between is
            noticed. row_group: Row group of the bytes; with an identity, a host's cache may have them.
        """
        ...

    def note_read(self, path: str, identity: str, row_group: int) -> None:
        """Note that a row group is about to be read as planned; for a host's cache."""
        ...

    def kept_range(
        self, path: str, span: Span, identity: str, row_group: int
    ) -> AbstractContextManager[OpenEntry | None]:
        """Return a context of the entry of a host's cache with these bytes, unread and unchecked; None without it."""
        ...

    def read_into(
        self,
        path: str,
        spans: Sequence[Span],
        buffers: Sequence[memoryview],
        identity: str | None = None,
        row_group: int | None = None,
    ) -> None:
        """Read the bytes of each span into its buffer, which has the length of the span.

        The identity is checked as in `ranges`.
        """
        ...

    def values(self, path: str, identity: str) -> KeptValues:
        """Return the values that this host keeps for this version of the file, such as its footer."""
        ...

    def directories(self, path: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names that are directories in `path`, by one listing; no names if `path` does not exist."""
        ...

    def list_files(self, path: str) -> Listing:
        """Return the file at `path`, all files below a directory, or all files that match a pattern (*, ?, [], **).

        A directory that a pattern matches counts as all files below it; a pattern that ends in "/" matches directories
        only. NoDataError if nothing exists there; an empty listing for an empty directory, if the store has
        directories. ConfigError for a "**" inside a name.
        """
        ...
