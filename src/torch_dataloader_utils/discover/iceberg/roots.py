"""Where files may lie. Metadata of tables and saved inventories may name any path, so paths outside are refused."""

import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from urllib.parse import unquote

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.iceberg.table_paths import client_scheme, is_local, split
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError, of_type

_WEB_SCHEMES = ("http", "https")

# The directory of web paths that clients and servers may resolve differently; it lies in no root.
_UNCLEAR = ".."

# How often a web path may be percent-encoded; each server on the way may decode it once.
_MOST_ENCODINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Directories of stores, and whether a path lies in one of them.

    places: (scheme, authority, directory) of each root. Local roots have the scheme ""; the authority "" is any.

    Names are compared by whole parts, ".." and, on this machine, links resolved: /data does not hold /data-2. On the
    web, hosts are compared without case and paths without query and percent-encoding; one with "..", in any spelling,
    lies in no directory.
    """

    places: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, roots: Iterable[str]) -> "Roots":
        """From the user's prefixes: "s3://bucket/warehouse", "s3://" (any bucket), "/data".

        Raises:
            ConfigTypeError: no list; or one string, whose letters are not meant. ConfigError: a web path with "..".
        """
        if not isinstance(roots, Iterable):
            raise ConfigTypeError(f"allowed_roots is {of_type(roots)}: pass a list of prefixes.")
        if isinstance(roots, str):
            raise ConfigTypeError(
                f"allowed_roots is a list of prefixes; got the one string {redact(roots)!r}. Write it in a list."
            )
        roots = [check_path("A prefix of allowed_roots", root) for root in roots]
        places = {root: _place(root) for root in roots}
        for root, (_, _, directory) in places.items():
            if directory == _UNCLEAR:
                raise ConfigError(f'allowed_roots has {redact(root)}: write the path without "..".')
        return cls(places=tuple(places.values()))

    @classmethod
    def near(cls, *locations: str) -> "Roots":
        """The whole stores that these resolved paths lie in: their buckets, or this machine."""
        return cls(places=tuple((scheme, authority, "/") for scheme, authority, _ in map(_place, locations)))

    def check_inventory(self, inventory: Inventory) -> None:
        """Raises UnsupportedFeatureError if a file of the inventory, or of its deletes, lies outside all roots."""
        deletes = {file.path for extra in inventory.files.extras if extra for file in extra.equality_deletes}
        for path in chain(inventory.files.paths, deletes):
            if "::" in path:  # a chain of clients: only they know which storage it ends at
                raise self._outside(path, "the inventory")
            self.check(path, "the inventory")

    def check(self, path: str, named_by: str = "the table's metadata") -> None:
        """Raises UnsupportedFeatureError for a resolved path outside all roots."""
        store = _store(*split(path)[:2])
        near = [root for root in self.places if root[0] == store[0] and root[1] in ("", store[1])]
        if any(directory == "/" for _, _, directory in near):
            return  # without a look at the path: this is asked for every file, more than once
        key = _place(path)[2] if near else ""
        if any(key == directory or key.startswith(f"{directory}/") for _, _, directory in near):
            return
        raise self._outside(path, named_by)

    def _outside(self, path: str, named_by: str) -> UnsupportedFeatureError:
        allowed = ", ".join(_shown(place) for place in self.places) or "nothing"
        return UnsupportedFeatureError(
            f"{redact(path)} is named by {named_by} but lies outside of where its files may be ({allowed}). If you "
            "trust it, pass allowed_roots= with all places of its files."
        )


def _place(path: str) -> tuple[str, str, str]:
    scheme, authority, key = split(path)
    if is_local(scheme):
        directory = os.path.realpath(key)
    elif scheme in _WEB_SCHEMES:
        directory = _web_directory(key)
    else:
        directory = posixpath.normpath(f"/{key.lstrip('/')}")
    return *_store(scheme, authority), directory


def _store(scheme: str, authority: str) -> tuple[str, str]:
    if is_local(scheme):
        return "", ""
    return client_scheme(scheme), authority.lower() if scheme in _WEB_SCHEMES else authority


def _web_directory(key: str) -> str:
    """The path of a URL, its parts decoded; `_UNCLEAR` if any is "..", which clients and servers resolve differently.

    /data/a%20b.parquet?signature=/x    /data/a b.parquet
    /data/day=1%2F2/x                   /data/day=1%2F2/x: no directory "day=1"
    /data/%252E%252E%2Fsecret           unclear, as are /data/..\\secret and /data/..;/secret

    Sources: RFC 3986, sections 3.3 and 5.2.4; WHATWG URL, "URL parsing" (tabs and line breaks are removed).
    """
    path = re.split("[?#]", re.sub("[\t\r\n]", "", key), maxsplit=1)[0]
    parts = [_decoded(part) for part in path.split("/")]
    # Some servers decode separators before they split, some cut ";..." from each name.
    if any(name.partition(";")[0] == ".." for part in parts for name in re.split(r"[/\\]", part)):
        return _UNCLEAR
    return posixpath.normpath("/" + "/".join(part.replace("/", "%2F") for part in parts).lstrip("/"))


def _decoded(part: str) -> str:
    """A part of a web path without percent-encoding; ".." if it is encoded too often to follow."""
    for _ in range(_MOST_ENCODINGS):
        encoded, part = part, unquote(part)
        if part == encoded:
            return part
    return _UNCLEAR


def _shown(place: tuple[str, str, str]) -> str:
    scheme, authority, directory = place
    return f"{scheme}://{authority}{directory}" if scheme else directory
