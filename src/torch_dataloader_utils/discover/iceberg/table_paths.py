"""Paths in table metadata: rewritten, opened, and compared."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import ConfigTypeError, CorruptFileError, of_type

_LOCAL_SCHEMES = ("file", "local")
# Hadoop's names of clients for one and the same store.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "wasb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRules:
    """How paths in metadata become paths to open: (old prefix, new prefix), the longest old prefix first."""

    rewrites: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, rewrites: Mapping[str, str] | None) -> "PathRules":
        """From the user's mapping.

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
        """The path to open: the first rewrite that fits, then local paths without scheme and absolute.

        file:///w/t/a.parquet      /w/t/a.parquet
        s3n://b/a.parquet          s3://b/a.parquet
        """
        for old, new in self.rewrites:
            if _begins_with(path, old):
                path = new + path[len(old) :]
                break
        scheme, _, key = split(path)
        if is_local(scheme):
            return os.path.abspath(key)  # noqa: PTH100 - resolve() would replace links by their targets
        return "s3" + path[len(scheme) :] if scheme == "s3n" else path


def _begins_with(path: str, prefix: str) -> bool:
    """Whether the path begins with the whole parts of the prefix: /w/t-2/a.parquet does not begin with /w/t."""
    return path.startswith(prefix) and (prefix[-1:] in "/:" or path[len(prefix) : len(prefix) + 1] in ("", "/", ":"))


def is_local(scheme: str) -> bool:
    """Whether paths of this scheme are files of this machine."""
    return not scheme or scheme in _LOCAL_SCHEMES


def client_scheme(scheme: str) -> str:
    """One name for the schemes that Hadoop's clients use for the same store: s3 for s3a."""
    return _ALIASES.get(scheme, scheme)


def split(path: str) -> tuple[str, str, str]:
    """(scheme, authority, key) of a path.

    hdfs://host:8020/a/b      ("hdfs", "host:8020", "/a/b")
    file:/a                   ("file", "", "/a")
    """
    head, separator, rest = path.partition("://")
    if separator:
        authority, slash, key = rest.partition("/")
        return head.lower(), authority, slash + key
    for scheme in ("file", "hdfs"):
        if path.startswith(f"{scheme}:/"):
            return scheme, "", path[len(scheme) + 1 :]
    return "", "", path


def _canonical(path: str) -> str:
    scheme, authority, key = split(path)
    return f"{client_scheme(scheme)}://{authority}{key}"


def _key(path: str) -> str:
    return os.path.normpath(split(path)[2]).lstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathIndex:
    """Finds data files by the paths that deletes give them; both sides are resolved paths.

    If no file has exactly that path, a file counts whose path differs only in scheme, authority, or extra slashes and
    dots, so that no delete is lost. An exact match comes first, since in an object store d//x and d/x are two objects.
    """

    exact: dict[str, int] = field(default_factory=dict)
    by_key: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Iterable[str]) -> "PathIndex":
        """The index of these files, numbered in their order."""
        index = cls()
        for number, path in enumerate(paths):
            index.exact[_canonical(path)] = number
            index.by_key.setdefault(_key(path), []).append(number)
        return index

    def find(self, path: str) -> int | None:
        """The file's number, None if there is no such file.

        Raises:
            CorruptFileError: several files differ from the path only in that way.
        """
        number = self.exact.get(_canonical(path))
        if number is not None:
            return number
        candidates = self.by_key.get(_key(path), [])
        if len(candidates) > 1:
            raise CorruptFileError(
                f"deletes name {redact(path)}, and {len(candidates)} data files differ from that in scheme, host or "
                "slashes only; which one is meant cannot be said. Give path_rewrites that make the paths equal."
            )
        return candidates[0] if candidates else None
