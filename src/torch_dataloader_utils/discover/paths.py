"""From what the user names to the data files it means."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils._store import FileEntry, Listing, Secret, Store, StoreAccess, open_store, redact
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, NoDataError

_log = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFiles:
    """The data files, sorted by path, each once.

    root: the directory that was named, whose own path holds no partition values; "" if anything else was named.
    sidecar: the `_metadata` file of that directory, if there is one. source: what was named, for messages.
    """

    entries: tuple[FileEntry, ...]
    root: str
    sidecar: FileEntry | None
    source: str


def find_files(
    path: PathLike | Sequence[PathLike], storage_options: Mapping[str, Any] | Secret | StoreAccess | None
) -> tuple[Store, DataFiles]:
    """The store and the data files of a file, directory (recursive), pattern, or a list of those.

    Left out, with a debug log each: hidden files (a name below the directory that starts with "." or "_", unless
    it is a partition "_key=value") and empty files. A file named twice counts once.

    Raises:
        NoDataError: nothing there, or nothing left.
        ConfigError: the list mixes stores.
        ConfigTypeError: not a path.
    """
    named = _named(path)
    source = redact(named[0]) if len(named) == 1 else f"{redact(named[0])} and {len(named) - 1} more"
    places = sorted({_place(each) for each in named})
    if len(places) > 1:
        raise ConfigError(f"{source}: the list mixes stores ({', '.join(places)}). Scan each alone.")
    store = open_store(named[0], storage_options)
    listings = [store.list_files(each) for each in named]
    found: dict[str, FileEntry] = {}
    for listing in listings:
        for entry in listing.entries:
            if entry.path in found:
                _log.warning("%s is named more than once; it is read once", redact(entry.path))
            elif _is_data(entry, listing.directory):
                found[entry.path] = entry
    if not found:
        raise NoDataError(
            f"{source}: no data file here; {sum(len(each.entries) for each in listings)} hidden or empty files were "
            f"left out. Check the path; the debug log of {__name__} names them."
        )
    root, sidecar = _root(listings)
    entries = tuple(found[name] for name in sorted(found))
    return store, DataFiles(entries=entries, root=root, sidecar=sidecar, source=source)


def _root(listings: Sequence[Listing]) -> tuple[str, FileEntry | None]:
    if len(listings) > 1 or listings[0].is_pattern:
        return "", None
    directory = listings[0].directory
    sidecar = (entry for entry in listings[0].entries if entry.path == f"{directory}/_metadata")
    return directory, next(sidecar, None)


def _named(path: PathLike | Sequence[PathLike]) -> list[str]:
    many = list(path) if isinstance(path, Iterable) and not isinstance(path, (str, bytes, os.PathLike)) else [path]
    if not many:
        raise NoDataError("the list of paths is empty; name at least one file, directory or pattern.")
    texts = [os.fspath(each) if isinstance(each, (str, os.PathLike)) else each for each in many]
    for text in texts:
        if not isinstance(text, str):
            raise ConfigTypeError(f"a path is a str or os.PathLike, or a list of those; got {type(text).__name__}.")
        if not text:
            raise ConfigError("a path is empty; name a file, directory or pattern.")
    return [os.path.expanduser(text) if text.startswith("~") else text for text in texts]  # noqa: PTH111 - URLs too


def _place(path: str) -> str:
    scheme, separator, _ = path.rpartition("::")[2].partition("://")
    return scheme if separator and scheme not in ("file", "local") else "local files"


def _is_data(entry: FileEntry, directory: str) -> bool:
    if entry.stat.size == 0:
        _log.debug("%s is empty; left out", redact(entry.path))
        return False
    if not directory:
        return True  # named itself, so it is meant
    below = entry.path.removeprefix(directory).strip("/").split("/")
    if any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in below):
        _log.debug("%s is hidden; left out", redact(entry.path))
        return False
    return True
