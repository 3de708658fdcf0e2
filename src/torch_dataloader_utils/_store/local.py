"""Files of this machine, by positioned reads, and the paths that a pattern matches."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import filter as matching_names
from functools import partial
from glob import has_magic
from itertools import islice
from pathlib import Path
from stat import S_ISFIFO

import pyarrow as pa

from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._store.coalesce import coalesce
from torch_dataloader_utils._store.identity import check_identity, is_pipe, short_read
from torch_dataloader_utils._store.interface import BegunTail, CoalesceLimits, FileEntry, FileStat, Listing, Tail
from torch_dataloader_utils._store.store_errors import dead_link, translated
from torch_dataloader_utils._store.wildcards import before_wildcard, check_pattern
from torch_dataloader_utils.cache.entries import OpenEntry
from torch_dataloader_utils.cache.kept_values import KeptValues, user_cache
from torch_dataloader_utils.errors import NoDataError

NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a path that leads nowhere: removed meanwhile, through a file, or through links that end in themselves."""
MOST_READ_BYTES = 1 << 30
"""Most bytes of one system call. Asked for 2 GiB, Linux reads a part, and macOS fails."""


def matching_paths(pattern: str) -> Iterator[str]:
    """Yield files and directories that match an absolute pattern, in no order; some may come twice.

    The paths are the same as of `glob.glob(pattern, recursive=True)`: "**" is any number of directories, a slash at the
    end means directories only, links are followed (and match as files do if they lead nowhere), and only a part that
    starts with "." matches hidden names. Three things differ from `glob`. Where an entry has the very name of a part
    ("d[1]"), the part matches nothing else. A directory that may not be listed is an error, not an empty directory. And
    a loop of links is not followed; `glob` follows it until the system refuses, and found files in it 41 times and
    more.

    Raises:
        OSError: a directory that the pattern reaches cannot be listed, or an entry cannot be looked up.
    """
    start = before_wildcard(pattern)
    *above, last = pattern[len(start) + 1 :].split("/")
    found = iter((start,))
    for part in above:
        found = _below_all(found, part, directories_only=True)
    return _below_all(found, last, directories_only=False)


def _below_all(directories: Iterator[str], part: str, *, directories_only: bool) -> Iterator[str]:
    for directory in directories:
        yield from _below(directory, part, directories_only=directories_only)


def _below(directory: str, part: str, *, directories_only: bool) -> Iterator[str]:
    if part == "**":
        yield directory
        yield from _tree(directory, directories_only=directories_only)
    elif has_magic(part):
        entries = {entry.name: entry for entry in _entries(directory) if part.startswith(".") or not _is_hidden(entry)}
        for name in [part] if part in entries else matching_names(entries, part):
            if not directories_only or is_directory(entries[name]):
                yield entries[name].path
    elif _exists(f"{directory}/{part}"):  # after the slash of an empty last part, only directories exist
        yield f"{directory}/{part}".rstrip("/")


def _tree(start: str, *, directories_only: bool) -> Iterator[str]:
    pending = [(start, False)]
    while pending:
        directory, is_linked = pending.pop()
        for entry in _entries(directory):
            if _is_hidden(entry):
                continue
            has_entries = is_directory(entry)
            if has_entries:
                if leads_back(entry, start, is_linked=is_linked):
                    continue
                pending.append((entry.path, is_linked or entry.is_symlink()))
            if has_entries or not directories_only:
                yield entry.path


def leads_back(entry: os.DirEntry[str], start: str, *, is_linked: bool) -> bool:
    """Return whether the directory is the same as a directory above it, from `start` on: a walk would never end.

    is_linked: Whether a link is among the directories above. Only links can lead back.
    """
    if not (is_linked or entry.is_symlink()):
        return False
    status, depth = entry.stat(), entry.path.count("/") - start.count("/")
    return any(os.path.samestat(status, above.stat()) for above in islice(Path(entry.path).parents, depth))


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory or "/") as entries:
            return list(entries)
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return []
        raise


def _is_hidden(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(".")


def is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry is a directory or a link to a directory; a link that leads nowhere is neither."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return False
        raise


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return False
        raise
    return True


_LIMITS = CoalesceLimits(hole_bytes=8 << 10, most_waste=float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStore:
    """Store that reads by `pread`: no shared position, so any number of threads may read one file.

    A file is opened for each call; opening costs 10 µs and leaves no descriptor to inherit. Holes cost a copy but
    save no request here, so only spans that touch, or nearly touch, are merged.
    """

    @property
    def is_local(self) -> bool:
        """True."""
        return True

    def local_path(self, path: str) -> str:
        """Return the path without a file:// scheme."""
        scheme, separator, rest = path.partition("://")
        return rest if separator and scheme in ("file", "local") else path

    def stat(self, path: str) -> FileStat:
        """Return size and "size-mtime_ns"."""
        with translated(path, "read"):
            return file_stat(os.stat(self.local_path(path)))  # noqa: PTH116 - a hot call on many small files

    def tail(self, path: str, length: int, stat: FileStat | None = None) -> Tail:
        """Return the last `length` bytes; `stat` is not needed, since the open file knows its size."""
        del stat
        with _opened(path, self.local_path(path)) as file, _reading(path):
            status = os.fstat(file)
            if S_ISFIFO(status.st_mode):
                raise is_pipe(path)
            now = file_stat(status)
            start = max(0, now.size - length)
            buffer = _new_buffer(now.size - start)
            have = _pread_into(file, buffer, start)
        if have != len(buffer):
            raise short_read(path, f"the last {len(buffer)} bytes gave {have}")
        return Tail(data=buffer.toreadonly(), size=now.size, identity=now.identity)

    def begin_tails(self, files: Sequence[FileEntry], lengths: Sequence[int]) -> list[BegunTail]:
        """Return tails that are read when they end."""
        return [
            BegunTail(data=None, end=partial(self.tail, file.path, length, file.stat))
            for file, length in zip(files, lengths, strict=True)
        ]

    def ranges(
        self,
        path: str,
        spans: Sequence[Span],
        identity: str | None = None,
        row_group: int | None = None,  # noqa: ARG002
    ) -> list[Buffer]:
        """Return the bytes of each span; the identity is checked on the open file, after the reads."""
        plan = coalesce(spans, _LIMITS)
        with translated(path, "read", identity):
            buffers = [_new_buffer(length) for _, length in plan.reads]
        self.read_into(path, plan.reads, buffers, identity)
        return plan.slices([buffer.toreadonly() for buffer in buffers])

    def note_read(self, path: str, identity: str, row_group: int) -> None:
        """Do nothing: local files need no cache."""

    def kept_range(
        self,
        path: str,  # noqa: ARG002
        span: Span,  # noqa: ARG002
        identity: str,  # noqa: ARG002
        row_group: int,  # noqa: ARG002
    ) -> AbstractContextManager[OpenEntry | None]:
        """Return an empty context: no cache keeps local bytes."""
        return nullcontext()

    def read_into(
        self,
        path: str,
        spans: Sequence[Span],
        buffers: Sequence[memoryview],
        identity: str | None = None,
        row_group: int | None = None,  # noqa: ARG002  # see Store
    ) -> None:
        """Read the bytes of each span into its buffer: allocating memory is most of the time of a small read."""
        with _opened(path, self.local_path(path), identity) as file, _reading(path, identity):
            lengths = [_pread_into(file, buffer, span[0]) for span, buffer in zip(spans, buffers, strict=True)]
            status = os.fstat(file)
        if S_ISFIFO(status.st_mode):
            raise is_pipe(path)
        check_identity(path, identity, file_stat(status))
        for span, length in zip(spans, lengths, strict=True):
            if length != span[1]:
                raise short_read(path, f"bytes {span[0]} to {sum(span)} gave {length} of {span[1]} bytes")

    def values(self, path: str, identity: str) -> KeptValues:
        """Return the values of the file in the user's own cache."""
        return KeptValues(cache=user_cache(), path=path, identity=identity)

    def directories(self, path: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names that are directories. One stat per name; the directory itself is never listed."""
        directory = Path(self.local_path(path))
        return tuple(name for name in names if os.path.isdir(directory / name))  # noqa: PTH112 - False without permission

    def list_files(self, path: str) -> Listing:
        """Return the files at, below or matching `path`, with absolute paths; links are followed, loops are not.

        Pipes, sockets and devices count as empty files.
        """
        local = self.local_path(path)
        with translated(path, "list"):  # the directory that a relative path starts from may be gone
            root = os.path.abspath(local)  # noqa: PTH100 - resolve() would replace links by their targets
        is_pattern = has_magic(root) and not os.path.lexists(root)
        if is_pattern:
            check_pattern(root)
        with translated(path, "list"):
            slash = "/" if local.endswith(("/", "/.")) else ""
            matches = matching_paths(f"{root}{slash}") if is_pattern else [root]
            found = {name: stat for match in matches for name, stat in _walk(match)}
        if is_pattern and not found:
            raise NoDataError(f"{path}: the pattern matches no file. Check it, or list the directory above.")
        entries = tuple(FileEntry(path=name, stat=stat) for name in sorted(found) if (stat := found[name]) is not None)
        dead_links = tuple(name for name in sorted(found) if found[name] is None)
        if root in dead_links:
            raise dead_link(root)
        if root in found:
            return Listing(entries=entries)
        directory = before_wildcard(root) if is_pattern else root
        return Listing(entries=entries, directory=directory, is_pattern=is_pattern, dead_links=dead_links)


def _walk(path: str) -> list[tuple[str, FileStat | None]]:
    """Return the files at or below a path; None for a link that leads nowhere."""
    if not Path(path).is_dir():
        return [(path, _stat_unless_dead(path, Path(path).stat))]
    found: list[tuple[str, FileStat | None]] = []
    start = path.rstrip("/") or "/"
    pending = [(start, False)]
    while pending:
        directory, is_linked = pending.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                if not is_directory(entry):
                    found.append((entry.path, _stat_unless_dead(entry.path, entry.stat)))
                elif not leads_back(entry, start, is_linked=is_linked):
                    pending.append((entry.path, is_linked or entry.is_symlink()))
    return found


def _stat_unless_dead(path: str, look_up: Callable[[], os.stat_result]) -> FileStat | None:
    try:
        return file_stat(look_up())
    except OSError as error:
        if error.errno in NOTHING_THERE and Path(path).is_symlink():
            return None
        raise


@contextmanager
def _opened(path: str, local_path: str, identity: str | None = None) -> Iterator[int]:
    # Bare descriptors: a file object costs four times the open itself, on every small file.
    with translated(path, "read", identity):
        descriptor = open_to_read(local_path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _reading(path: str, identity: str | None = None) -> Iterator[None]:
    """Turn errors of positioned reads into errors of ours; the error for a pipe says that it is a pipe."""
    with translated(path, "read", identity):
        try:
            yield
        except OSError as error:
            if error.errno == errno.ESPIPE:
                raise is_pipe(path) from error
            raise


def open_to_read(local_path: str) -> int:
    """Return a descriptor of the file, which the caller closes.

    A pipe is opened too, without waiting for a writer; nothing can be read from it.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        # O_NONBLOCK has no effect on files, and keeps a pipe from waiting for a writer.
        return os.open(local_path, flags | os.O_NONBLOCK)
    except BlockingIOError:
        # Another process holds a lease (file servers do); without the flag, the system asks for it and waits.
        return os.open(local_path, flags)


def file_stat(status: os.stat_result) -> FileStat:
    """Return size and "size-mtime_ns" of a local file, from the operating system's stat."""
    # `is_planned` in _engine/module.c writes the same text: with another text each row group would be read twice.
    identity = f"{status.st_size}-{status.st_mtime_ns}"
    return FileStat(
        size=status.st_size, identity=identity, modified_ns=status.st_mtime_ns, changed_ns=status.st_ctime_ns
    )


def _new_buffer(length: int) -> memoryview:
    """Return memory of Arrow's pool: the C library would give memory back to the system after each small file."""
    return memoryview(pa.allocate_buffer(length)).cast("B")


def _pread_into(descriptor: int, buffer: memoryview, start: int) -> int:
    """Read into the buffer and return the number of bytes: fewer than asked for only at the end of the file."""
    have = 0
    while have < len(buffer):
        more = os.preadv(descriptor, [buffer[have : have + MOST_READ_BYTES]], start + have)
        if not more:
            break
        have += more
    return have
