"""Finds the local paths that a pattern matches."""

import errno
import os
from collections.abc import Iterator
from fnmatch import filter as matching_names
from glob import has_magic
from itertools import islice
from pathlib import Path

from torch_dataloader_utils._store.wildcards import before_wildcard

NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The path leads nowhere: it was removed meanwhile, goes through a file, or through links that end in themselves."""


def matching_paths(pattern: str) -> Iterator[str]:
    """Files and directories that match an absolute pattern, in no order; some may come twice.

    They are those of `glob.glob(pattern, recursive=True)`: "**" is any number of directories, a slash at the end means
    directories only, links are followed (and match as files do if they lead nowhere), and only a part that starts with
    "." matches hidden names. Three things differ from `glob`. Where an entry has the very name of a part ("d[1]"), the
    part matches nothing else. A directory that may not be listed is an error, not an empty one. And a loop of links is
    not followed; `glob` follows it until the system refuses, which gave the files in it 41 times and more.

    Raises:
        OSError: a directory that the pattern reaches cannot be listed, or what it names there cannot be looked up.
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
    elif _exists(f"{directory}/{part}"):  # after the slash of an empty last part, only directories do
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
    """Whether the directory is the same as one above it, from `start` on, so that going on would never end.

    is_linked: whether a link is among the directories above. Only links can lead back.
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
    """Whether this is a directory or a link to one; a link that leads nowhere is none."""
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
