"""Paths in metadata of tables and in saved inventories: rewritten, compared, and refused outside of their roots."""

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from urllib.parse import unquote

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.paths import check_path, split_chain
from torch_dataloader_utils._core.table_file import TableFile
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptFileError,
    UnsupportedFeatureError,
    of_type,
)

_LOCAL_SCHEMES = ("file", "local")
# Hadoop's names for clients of the same store.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}

_WEB_SCHEMES = ("http", "https")

# Directory of web paths that clients and servers may resolve differently; it lies in no root.
_UNCLEAR = ".."

# Number of times that a web path may be percent-encoded; each server on the way may decode it once.
_MOST_ENCODINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRules:
    """Rewrites of paths in metadata to paths to open: (old prefix, new prefix), the longest old prefix first."""

    rewrites: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, rewrites: Mapping[str, str] | None) -> "PathRules":
        """Return the rules of the user's mapping.

        Raises:
            ConfigTypeError: no mapping of texts.
        """
        if not isinstance(rewrites, Mapping | None):
            raise ConfigTypeError(f"path_rewrites is {of_type(rewrites)}: pass a dict, such as {{'s3a://': 's3://'}}.")
        pairs = list((rewrites or {}).items())
        for pair in pairs:
            if not all(isinstance(prefix, str) for prefix in pair):
                raise ConfigTypeError(f"path_rewrites has {pair[0]!r}: {pair[1]!r}: pass a text for a text.")
        return cls(rewrites=tuple(sorted(pairs, key=lambda pair: (-len(pair[0]), pair[0]))))

    def resolve(self, path: str) -> str:
        """Return the path to open: the first rewrite that fits; then local paths become absolute and lose their scheme.

        file:///w/t/a.parquet      /w/t/a.parquet
        s3n://b/a.parquet          s3://b/a.parquet
        """
        for old, new in self.rewrites:
            if _begins_with(path, old):
                path = new + path[len(old) :]
                break
        scheme, _, key = split(path)
        if is_local(scheme):
            # resolve() would replace links by their targets, and abspath() leaves two slashes at the beginning.
            return "/" + os.path.abspath(key).lstrip("/")  # noqa: PTH100
        return "s3" + path[len(scheme) :] if scheme == "s3n" else path


def _begins_with(path: str, prefix: str) -> bool:
    """Return whether the path begins with the whole parts of the prefix: /w/t-2/a.parquet does not begin with /w/t."""
    return path.startswith(prefix) and (prefix[-1:] in "/:" or path[len(prefix) : len(prefix) + 1] in ("", "/", ":"))


def is_local(scheme: str) -> bool:
    """Return whether paths of this scheme are files of this machine."""
    return not scheme or scheme in _LOCAL_SCHEMES


def client_scheme(scheme: str) -> str:
    """Return one name for the schemes that Hadoop's clients use for the same store: s3 for s3a."""
    return _ALIASES.get(scheme, scheme)


def split(path: str) -> tuple[str, str, str]:
    """Return (scheme, authority, key) of a path.

    hdfs://host:8020/a/b      ("hdfs", "host:8020", "/a/b")
    file:/a                   ("file", "", "/a")
    """
    head, separator, rest = path.partition("://")
    if separator:
        authority, slash, key = rest.partition("/")
        return head.lower(), authority, slash + key
    for scheme in ("file", "hdfs"):
        if path[: len(scheme) + 2].lower() == f"{scheme}:/":
            return scheme, "", path[len(scheme) + 1 :]
    return "", "", path


def canonical(path: str) -> str:
    """Return the path with one name for each store, for any client's name in the path: s3a://b/x is s3://b/x."""
    scheme, authority, key = split(path)
    return f"{client_scheme(scheme)}://{authority}{key}"


def _key(path: str) -> str:
    return os.path.normpath(split(path)[2]).lstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathIndex:
    """Index of data files by the paths in deletes. Both sides are resolved paths.

    If no file has exactly the path, a file counts if its path differs only in scheme, authority, or extra slashes and
    dots, so that no delete is lost. An exact match comes first, since in an object store d//x and d/x are two objects.
    """

    exact: dict[str, int] = field(default_factory=dict)
    by_key: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Iterable[str]) -> "PathIndex":
        """Return the index of files, numbered in their order."""
        index = cls()
        for number, path in enumerate(paths):
            index.exact[canonical(path)] = number
            index.by_key.setdefault(_key(path), []).append(number)
        return index

    def find(self, path: str) -> int | None:
        """Return the file's number, None without a match.

        Raises:
            CorruptFileError: several files differ from the path only in scheme, authority, slashes and dots.
        """
        number = self.exact.get(canonical(path))
        if number is not None:
            return number
        candidates = self.by_key.get(_key(path), [])
        if len(candidates) > 1:
            raise CorruptFileError(
                f"deletes name {redact(path)}, and {len(candidates)} data files differ from that in scheme, host or "
                "slashes only; it is not clear which one is meant. Give path_rewrites that make the paths equal."
            )
        return candidates[0] if candidates else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Directories of stores, with the check whether a path lies in one of them.

    places: (scheme, authority, directory) of each root. Local roots have the scheme ""; the authority "" is any.

    Names are compared by whole parts, with ".." and, on this machine, links resolved: /data does not hold /data-2. On
    the web, hosts are compared without case and paths without query and percent-encoding. A web path with "..", in any
    spelling, lies in no directory.
    """

    places: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, roots: Iterable[str]) -> "Roots":
        """Return the roots of the user's prefixes: "s3://bucket/warehouse", "s3://" (any bucket), "/data".

        Raises:
            ConfigTypeError: no list, or one string (its letters are not roots). ConfigError: a web path with "..".
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
        """Return the whole stores of resolved paths: their buckets, or this machine."""
        for location in locations:
            _check_no_null(location, "the user or the table's metadata")
        return cls(places=tuple((scheme, authority, "/") for scheme, authority, _ in map(_place, locations)))

    def check_inventory(self, inventory: Inventory) -> None:
        """Raise UnsupportedFeatureError if a file of the inventory, or of its deletes, lies outside all roots."""
        tables = [extra for extra in inventory.files.extras if isinstance(extra, TableFile)]
        deletes = {file.path for extra in tables for file in extra.equality_deletes}
        for path in chain(inventory.files.paths, deletes):
            if len(split_chain(path)) > 1:  # only the chained clients know the storage at the end
                raise self._outside(path, "the inventory")
            self.check(path, "the inventory")

    def check(self, path: str, named_by: str = "the table's metadata") -> None:
        """Raise UnsupportedFeatureError for a resolved path outside all roots, CorruptFileError for a null byte."""
        _check_no_null(path, named_by)
        scheme, authority, _ = split(path)
        if "::" in path and not is_local(scheme) and "::" not in scheme and len(split_chain(path)) > 1:
            raise self._outside(path, named_by)  # only the user may chain clients
        store = _store(scheme, authority)
        near = [root for root in self.places if root[0] == store[0] and root[1] in ("", store[1])]
        if any(directory == "/" for _, _, directory in near):
            return  # fast, without a look at the path: every file is checked, more than once
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


def _check_no_null(path: str, named_by: str) -> None:
    if "\0" in path:
        raise CorruptFileError(
            f"{redact(path)} is named by {named_by}, and no path holds a null byte. Correct the path, or write the "
            "table again."
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
    """Return the path of a URL, decoded; `_UNCLEAR` if a part is "..", which clients and servers resolve differently.

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
    """Return a part of a web path without percent-encoding; ".." if it is encoded too often to follow."""
    for _ in range(_MOST_ENCODINGS):
        encoded, part = part, unquote(part)
        if part == encoded:
            return part
    return _UNCLEAR


def _shown(place: tuple[str, str, str]) -> str:
    scheme, authority, directory = place
    return f"{scheme}://{authority}{directory}" if scheme else directory
