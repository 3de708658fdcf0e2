"""The objects of a remote store that a pattern matches, and those below a directory.

fsspec's glob and walk take a directory that cannot be listed (no permission, a server that is busy) for an empty one.
"""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import glob_translate

from torch_dataloader_utils._store.wildcards import before_wildcard, is_pattern, is_web

Infos = dict[str, Mapping[str, Any]]
"""What a listing says of each object, by its key."""

_ANY_DEPTH = "**"


def matching_files(filesystem: Any, pattern: str) -> Infos:
    """The files that match, and those below directories that match: as of `filesystem.glob`, but an error is raised.

    Each part of the pattern is held against listings of the directories that the parts before it match. Web servers
    are asked for their pages, and "*" is the only wildcard there.

    Raises:
        Whatever the client raises, but for what is not there.
    """
    start = before_wildcard(pattern)
    parts = pattern[len(start) :].lstrip("/").split("/")
    if is_web(pattern):
        parts = [re.sub(r"[?[]", r"[\g<0>]", part) for part in parts]
    matched = _below(filesystem, start, parts)
    return {key: each for name, info in matched for key, each in _files_below(filesystem, name, info).items()}


def files_at(filesystem: Any, key: str) -> Infos:
    """The file itself, or all files below a directory; of a web server, which has files only, if its URL ends in "/".

    Raises:
        Whatever the client raises, FileNotFoundError included.
    """
    if is_web(key) and key.endswith("/"):
        return _tree(filesystem, key.rstrip("/"))
    return _files_below(filesystem, key, filesystem.info(key))


def _files_below(filesystem: Any, key: str, info: Mapping[str, Any]) -> Infos:
    return {key: info} if info["type"] == "file" else _tree(filesystem, key)


def _below(filesystem: Any, directory: str, parts: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    part, *rest = parts
    if part == _ANY_DEPTH:
        yield from _at_any_depth(filesystem, directory, "/".join(parts))
    elif rest and not is_pattern(part):
        yield from _below(filesystem, _join(directory, part), rest)
    elif not rest and not is_pattern(part):
        yield from _named(filesystem, _join(directory, part))
    else:
        for name, info in _entries(filesystem, directory).items():
            if not fnmatchcase(name.rpartition("/")[2], part):
                continue
            if not rest:
                yield name, info
            elif info["type"] != "file":
                yield from _below(filesystem, name, rest)


def _at_any_depth(filesystem: Any, directory: str, pattern: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The files below that match, or lie below a directory that does."""
    matches = re.compile(glob_translate(pattern)).match
    for name, info in _tree(filesystem, directory).items():
        steps = name[len(directory) :].lstrip("/").split("/")
        if any(matches("/".join(steps[:stop])) for stop in range(1, len(steps) + 1)):
            yield name, info


def _named(filesystem: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        yield key, filesystem.info(key)
    except FileNotFoundError:
        return


def _tree(filesystem: Any, directory: str) -> Infos:
    """All files below: by one listing where the client has one of its own, which object stores do."""
    if _lists_flat(filesystem):
        found = filesystem.find(directory, detail=True).items()
        return {name: info for name, info in found if info["type"] == "file"}
    files: Infos = {}
    pending, seen = [directory], {directory}
    while pending:
        for name, info in _entries(filesystem, pending.pop()).items():
            if info["type"] == "file":
                files[name] = info
            elif name not in seen:
                seen.add(name)
                pending.append(name)
    return files


def _lists_flat(filesystem: Any) -> bool:
    if isinstance(filesystem, AsyncFileSystem):
        return type(filesystem)._find is not AsyncFileSystem._find
    return type(filesystem).find is not AbstractFileSystem.find


def _entries(filesystem: Any, directory: str) -> Infos:
    """What is in a directory; nothing if there is none."""
    try:
        listed = filesystem.ls(directory, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    own = directory.rstrip("/")
    named = {str(info["name"]).rstrip("/"): info for info in listed}
    if is_web(directory):
        return {name: info for name, info in named.items() if _is_entry(name, own)}
    return {name: info for name, info in named.items() if name != own}


def _is_entry(link: str, page: str) -> bool:
    """Whether a link of the page of a directory leads to what is in it, not up, elsewhere or to another sort order."""
    above, _, name = link.rpartition("/")
    return above == page and not name.startswith(("?", "#"))


def _join(directory: str, part: str) -> str:
    return f"{directory}/{part}" if directory else part
