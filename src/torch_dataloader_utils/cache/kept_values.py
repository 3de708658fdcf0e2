"""Values that this host keeps beside ranges: footers, row lengths, and results of whole reads.

A value is an entry of a cache, bound to one version of a file. Without a configured cache the values of a user are in a
cache of their own, in a directory of the user.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch_dataloader_utils._core.spans import Buffer
from torch_dataloader_utils.cache.entries import ValueKey
from torch_dataloader_utils.cache.host_cache import HostCache, OpenCache, opened

VARIABLE = "TORCH_DATALOADER_UTILS_CACHE"
"""Environment variable with the directory of the user's own cache, or "off"."""

# Room for 80,000 footers of 26 KB (50 columns, 4 row groups).
_MOST_BYTES = 2 << 30
# About 2e9 tokens: two bytes each, compressed.
_MOST_TOKEN_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptValues:
    """Values of one version of a file (or of one inventory), by what they are.

    cache: Where values are kept; None to keep none. scope, path, identity: See `ValueKey`.
    wait_seconds: Limit for waiting while another process makes a value.
    """

    cache: OpenCache | None = None
    path: str = ""
    identity: str = ""
    scope: str = ""
    wait_seconds: float = 120.0

    def once(self, what: str, make: Callable[[], Buffer]) -> Buffer:
        """Return a kept value, or make and keep it; one process of this host makes it, and the others wait."""
        return make() if self.cache is None else self.cache.once(self._key(what), make, self.wait_seconds)

    def get(self, what: str) -> Buffer | None:
        """Return a value if it is kept."""
        return None if self.cache is None else self.cache.get(self._key(what))

    def put(self, what: str, value: Buffer) -> None:
        """Keep a value; a value that cannot be written is not kept."""
        if self.cache is not None:
            self.cache.put(self._key(what), value)

    def _key(self, what: str) -> ValueKey:
        return ValueKey(self.scope, self.path, self.identity, what)


def once_each(
    files: Sequence[KeptValues], what: str, make: Callable[[Sequence[int]], Mapping[int, Buffer]]
) -> dict[int, Buffer]:
    """Return the values of files of one store, by the places of the files, as `KeptValues.once`.

    make: Function that makes the values of some files together; a value that it leaves out is left out of the result.
    """
    unkept = [place for place, file in enumerate(files) if file.cache is None]
    found = dict(make(unkept)) if unkept else {}
    places = {file._key(what): place for place, file in enumerate(files) if file.cache is not None}

    def make_values(keys: Sequence[ValueKey]) -> dict[ValueKey, Buffer]:
        made = make([places[key] for key in keys])
        return {key: made[places[key]] for key in keys if places[key] in made}

    caches = ((file.cache, file.wait_seconds) for file in files if file.cache is not None)
    of_store, wait_seconds = next(caches, (None, 0.0))
    if of_store is not None:
        kept = of_store.once_each(list(places), make_values, wait_seconds)
        found |= {places[key]: value for key, value in kept.items()}
    return found


def user_cache() -> OpenCache | None:
    """Return this user's own cache of values; None if it is switched off."""
    directory = _directory()
    return None if directory is None else _cache_in(os.path.abspath(directory))  # noqa: PTH100 - a str is wanted


@cache  # looked up for every file
def _cache_in(directory: str) -> OpenCache:
    # A HostCache of the same directory has entries and a limit of its own.
    return opened(HostCache(Path(directory) / "values", max_bytes=_MOST_BYTES))


def token_cache() -> HostCache | None:
    """Return the cache of this user for tokens, where a data set has no cache; None if it is switched off."""
    directory = _directory()
    return None if directory is None else HostCache(Path(directory) / "tokens", max_bytes=_MOST_TOKEN_BYTES)


def _directory() -> str | None:
    chosen = os.environ.get(VARIABLE, "")
    return _own_directory() if not chosen else None if chosen.lower() == "off" else chosen


def _own_directory() -> str | None:
    """Return the directory of this user's caches; None for a user without a home (a bare number in a container)."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - a str is wanted
    return None if home.startswith("~") else f"{home}/torch_dataloader_utils"
