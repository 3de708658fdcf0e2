"""Find the objects of a remote store that match a pattern or lie below a directory.

fsspec's glob and walk are not used: they treat a directory that cannot be listed (no permission, a busy server) as
empty.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import glob_translate

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._store.cancellation import ask, run_on_loop
from torch_dataloader_utils._store.client import has_buckets, is_hub, is_obstore
from torch_dataloader_utils._store.hub import key_at_commit
from torch_dataloader_utils._store.obstore import find_object
from torch_dataloader_utils._store.remote_url import RemoteUrl
from torch_dataloader_utils._store.store_errors import dead_link
from torch_dataloader_utils._store.wildcards import before_wildcard, is_pattern, is_web
from torch_dataloader_utils.errors import InternalError

Info = Mapping[str, Any]
"""Entry of an object in a listing."""

Infos = dict[str, Info]
"""Entries by key."""

_ANY_DEPTH, _EMPTY = "**", ""


def find_files(url: RemoteUrl, parse: Callable[[str], RemoteUrl], filesystem: Any, key: str) -> tuple[str, Infos]:
    """Return the key of a URL, and the files at, below or matching it, past the listing cache.

    On the Hugging Face Hub the key gets the commit of its revision. parse: Returns the URL of a text.

    Raises:
        Any error of the client, FileNotFoundError included.
    """
    filesystem.invalidate_cache()
    if is_hub(filesystem):
        key = key_at_commit(filesystem, key)
    if is_pattern(key):
        found = matching_files(filesystem, key, directories_only=url.own.endswith("/"))
    else:
        found = files_at(filesystem, key)
    for name, info in found.items():
        # A name that the user wrote means what the client takes it for, and an empty object may mark a directory.
        if name != key and info.get("size") != 0:
            url.check_key(filesystem, name, parse)
    return key, found


def matching_files(filesystem: Any, pattern: str, *, directories_only: bool = False) -> Infos:
    """Return files that match, and files below directories that match; as `filesystem.glob`, but errors are raised.

    Each part of the pattern is compared with listings of the directories that the parts before it match. On web servers
    these listings are pages of links, and "*" is the only wildcard. An empty part is part of a key: in an object store
    "d//x" is not "d/x".

    directories_only: Set by a slash at the end of the pattern: only directories match.

    Raises:
        Any error of the client, except for paths that do not exist.
    """
    start = before_wildcard(pattern).rstrip("/") or pattern[: pattern.startswith("/")]
    parts = pattern[len(start) :].rstrip("/").removeprefix("/").split("/")
    if is_web(pattern):
        parts = [re.sub(r"[?[]", r"[\g<0>]", part) for part in parts]
    matched = _below(filesystem, start, parts, directories_only=directories_only)
    return {key: each for name, info in matched for key, each in _files_below(filesystem, name, info).items()}


def files_at(filesystem: Any, key: str) -> Infos:
    """Return the file itself, or all files below a directory; on a web server, a directory's URL ends in "/".

    Raises:
        Any error of the client, FileNotFoundError included.
    """
    is_bucket = has_buckets(filesystem) and "/" not in key  # to obstore it is an object without a name
    if is_bucket or (is_web(key) and key.endswith("/")):
        return _tree(filesystem, key.rstrip("/"))
    found = _files_below(filesystem, key, _look_up(filesystem, key))
    if not found and is_obstore(filesystem):
        raise FileNotFoundError(key)
    return found


def directories_in(filesystem: Any, directory: str) -> set[str]:
    """Return the names of the directories in a directory; no names if it does not exist."""
    entries = _entries(filesystem, directory)
    return {name.rpartition("/")[2] for name, info in entries if info["type"] == "directory"}


def _look_up(filesystem: Any, key: str) -> Info:
    """Return the entry of a file or a directory. With obstore, a name without an object counts as a directory.

    To know that a directory is there, obstore lists all of it, and its files are listed next in any case.
    """
    if not is_obstore(filesystem):
        found: Info = ask(filesystem, "info", key)
        return found
    return run_on_loop(filesystem.loop, find_object(filesystem, key)) or {"name": key, "type": "directory"}


def _files_below(filesystem: Any, key: str, info: Info) -> Infos:
    return {key: info} if info["type"] == "file" else _tree(filesystem, key)


def _below(filesystem: Any, directory: str, parts: list[str], *, directories_only: bool) -> Iterator[tuple[str, Info]]:
    part, *rest = parts
    if part in (_ANY_DEPTH, _EMPTY):
        yield from _at_any_depth(filesystem, directory, "/".join(parts), directories_only=directories_only)
    elif rest and not is_pattern(part):
        yield from _below(filesystem, _join(directory, part), rest, directories_only=directories_only)
    elif not is_pattern(part) and not directories_only:
        yield from _named(filesystem, _join(directory, part))
    else:
        for name, info in _entries(filesystem, directory, part):
            is_directory = info["type"] != "file"
            if rest and is_directory:
                yield from _below(filesystem, name, rest, directories_only=directories_only)
            elif not rest and (is_directory or not directories_only):
                yield name, info


def _at_any_depth(
    filesystem: Any, directory: str, pattern: str, *, directories_only: bool
) -> Iterator[tuple[str, Info]]:
    """Yield the files below a directory that match, or lie below a directory that matches."""
    matches = re.compile(glob_translate(pattern)).match
    for name, info in _tree(filesystem, directory).items():
        below = _path_below(name, directory)
        if pattern.startswith(_ANY_DEPTH):
            below = below.lstrip("/")  # any number of directories, directories without a name ("d//x") included
        if (matches(below) and not directories_only) or any(map(matches, _directories_above(below))):
            yield name, info


def _directories_above(below: str) -> Iterator[str]:
    """Yield the directories above a path, in all spellings that a pattern may match.

    a/b/x      "", "a", "a/", "a/b", "a/b/"
    """
    yield ""
    for slash in re.finditer("/", below):
        yield below[: slash.start()]
        yield below[: slash.end()]


def _path_below(name: str, directory: str) -> str:
    """Return the path of a listed file relative to the directory.

    Raises:
        InternalError: the file does not lie below the directory.
    """
    own, start = name.lstrip("/"), directory.strip("/")  # some clients begin all names with a slash
    if not start:
        return own
    if not own.startswith(f"{start}/"):
        raise InternalError(
            f"The storage client lists {redact(name)} below {redact(directory)}, where it does not lie. Name the "
            "files or their directory without a pattern, and report this with the URL."
        )
    return own[len(start) + 1 :]


def _named(filesystem: Any, key: str) -> Iterator[tuple[str, Info]]:
    try:
        yield key, _look_up(filesystem, key)
    except FileNotFoundError:
        return


def _tree(filesystem: Any, directory: str) -> Infos:
    """Return all files below a directory: by one listing if the client has a `find`, as clients of object stores do."""
    if _lists_flat(filesystem):
        found = ask(filesystem, "find", directory, detail=True).items()  # the file itself, if it is one
        return {name: info for name, info in found if info["type"] == "file" and name != directory}
    files: Infos = {}
    pending, seen = [directory], {directory}
    while pending:
        for name, info in _entries(filesystem, pending.pop()):
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


def _entries(filesystem: Any, directory: str, part: str = "*") -> list[tuple[str, Info]]:
    """Return the matches in a directory, none if it does not exist; an object and a prefix may share their name.

    If an entry has the very name of the part ("part[1].csv"), the part matches only this entry.
    """
    try:
        listed = ask(filesystem, "ls", directory, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    own = directory.rstrip("/")
    named = [(str(info["name"]).rstrip("/"), info) for info in listed]
    entries = [(name, info) for name, info in named if (_is_entry(name, own) if is_web(own) else name != own)]
    exact = [(name, info) for name, info in entries if name.rpartition("/")[2] == part]
    matching = exact or [(name, info) for name, info in entries if fnmatchcase(name.rpartition("/")[2], part)]
    return [(name, _followed(filesystem, name, info)) for name, info in matching]


def _followed(filesystem: Any, name: str, info: Info) -> Info:
    """Return the entry that a link leads to: clients of file systems list links as neither files nor directories."""
    if info["type"] in ("file", "directory"):
        return info
    try:
        found: Info = ask(filesystem, "info", name)
    except FileNotFoundError as error:
        raise dead_link(name) from error
    return found


def _is_entry(link: str, page: str) -> bool:
    """Return whether a link on a directory's page is an entry (not the parent, another site, or a sort order)."""
    above, _, name = link.rpartition("/")
    return above == page and not name.startswith(("?", "#"))


def _join(directory: str, part: str) -> str:
    return f"{directory.rstrip('/')}/{part}" if directory else part
