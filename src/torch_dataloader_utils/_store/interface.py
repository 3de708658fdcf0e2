"""The interface of all stores: identity of a file, its tail, and ranges of its bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch_dataloader_utils._core.arguments import hold_integers, hold_not_negative
from torch_dataloader_utils._core.inventory import pinned
from torch_dataloader_utils._core.spans import Buffer, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """size: bytes. identity: the etag or generation, or "size-mtime_ns" where the store has neither.

    modified_ns: when it was written, in nanoseconds since 1970; None if the store does not say, or not in a comparable
        form. It is not part of the identity.
    changed_ns: of a local file, when its bytes or attributes changed last (st_ctime), which no program can set back.
    """

    size: int
    identity: str
    modified_ns: int | None = field(default=None, compare=False)
    changed_ns: int | None = field(default=None, compare=False)

    @property
    def pin(self) -> str:
        """The identity that reads of one job are pinned to; see `pinned`."""
        return pinned(self.identity, self.changed_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a listing: its path (absolute local path or URL) and what the listing says of it."""

    path: str
    stat: FileStat


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files that a path names, sorted by path.

    directory: where they were searched, spelled as in their paths: the named directory, or the part of a pattern before
        its first wildcard; "" if a file was named.
    is_pattern: whether a pattern was named. dead_links: local links that lead nowhere, sorted.
    """

    entries: tuple[FileEntry, ...]
    directory: str = ""
    is_pattern: bool = False
    dead_links: tuple[str, ...] = ()


TAIL_BYTES = 64 << 10
"""The bytes at the end of a file that are read for a footer, before its length is known; pyarrow reads as many.

Of Parquet, 26 KB for 50 columns and 4 row groups, 592 KB for 500 and 10. ORC's reader wants the last 16 KiB, and
stripes cost about 20 bytes each.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last bytes of a file, with its size and identity."""

    data: Buffer
    size: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalesceLimits:
    """The limits up to which spans share a read.

    Attributes:
        hole_bytes: the largest gap read and thrown away to save a request. 1 MiB costs about as long as a request at
            100 ms and 10 MB/s a stream; measured at 16 MiB holes, 0.6 MB of wanted bytes became 12.7 MB.
        most_bytes: the largest merged read; a single span larger than that is read whole.
        most_waste: all gaps of one call together, as a fraction of the wanted bytes; the smallest gaps are merged
            first. Requests run in parallel, so one more costs less than many bytes. 16 KiB are always allowed.
    """

    hole_bytes: int = 1 << 20
    most_bytes: int = 32 << 20
    most_waste: float = 0.04

    def __post_init__(self) -> None:
        hold_integers(self, "hole_bytes", least=0)
        hold_integers(self, "most_bytes", least=1)
        hold_not_negative(self, "most_waste", may_be_infinite=True)


class Store(Protocol):
    """Sync, thread-safe, picklable; nothing live is pickled or inherited by a forked child.

    Paths are the ones of an inventory: absolute local paths or URLs. All methods raise NoDataError for a file
    that is not there, FileChangedError where an identity was given that is not the file's, and StoreError for
    anything that the storage itself refused.
    """

    @property
    def is_local(self) -> bool:
        """Whether files are on this machine, so that `local_path` works."""
        ...

    def local_path(self, path: str) -> str:
        """The path for the operating system; ConfigError if the store is remote."""
        ...

    def stat(self, path: str) -> FileStat:
        """Size and identity as they are now, past every listing cache."""
        ...

    def tail(self, path: str, length: int, stat: FileStat | None = None) -> Tail:
        """The last `length` bytes (all of a smaller file).

        With `stat`, as a listing gave it, this is one request; the reply is checked against its size.
        """
        ...

    def ranges(
        self, path: str, spans: Sequence[Span], identity: str | None = None, row_group: int | None = None
    ) -> list[Buffer]:
        """The bytes of each span, in the order asked; neighbouring spans share one read and are views of it.

        With `identity`, the bytes are those of that file: it is checked after the bytes, so that a file which was
        replaced in between is noticed. With `row_group` too, whose bytes they are, a host's cache may have them.
        """
        ...

    def note_read(self, path: str, identity: str, row_group: int) -> None:
        """A row group is about to be read as the plan says; for a host's cache."""
        ...

    def read_into(
        self,
        path: str,
        spans: Sequence[Span],
        buffers: Sequence[memoryview],
        identity: str | None = None,
        row_group: int | None = None,
    ) -> None:
        """The bytes of each span, written into its buffer, which is as long.

        They are those of the file with this identity, which is checked as in `ranges`.
        """
        ...

    def kept_tail(self, path: str, identity: str) -> bytes | None:
        """The footer that a process of this host kept for this version of the file, or None; see `keep_tail`."""
        ...

    def keep_tail(self, path: str, identity: str, data: Buffer) -> None:
        """Keep a footer for the other processes of this host, where that saves a request."""
        ...

    def directories(self, path: str, names: Sequence[str]) -> tuple[str, ...]:
        """Those of these names that are directories in `path`, by one listing; none if that is not there."""
        ...

    def list_files(self, path: str) -> Listing:
        """The file at `path`, or all files below that directory, or all that match a pattern (*, ?, [], **).

        A directory that a pattern matches counts as all files below it; one that ends in "/" matches directories only.
        NoDataError if nothing is there; an empty listing for an empty directory, if the store has directories.
        ConfigError for a "**" inside a name.
        """
        ...
