"""Caches of facts that are read once for each file (footer, header, keys), for the next row group of the same file."""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from torch_dataloader_utils._observe.counters import fetching
from torch_dataloader_utils._store.identity import names_no_version

T = TypeVar("T")

FileKey = tuple[str, str]
"""Path and identity of one version of a file."""

_Key = tuple[tuple[FileKey, ...], Hashable]

# Encoded bytes; parsed values take several times as much. 16 MiB hold 600 footers of 26 KB (50 columns, 4 row groups).
_CAPACITY_BYTES = 16 << 20


class FileCache(Generic[T]):
    """Cache that drops the least recently used values while their encoded bytes exceed the capacity; the last stays.

    Thread-safe: threads that want the same value wait for the thread that loads it; if that fails, the next thread
    tries. A forked child begins with an empty cache. Nothing is kept for a file whose server names no version: another
    file of the same size may take its place.
    """

    def __init__(self, capacity_bytes: int = _CAPACITY_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._clear()
        _caches.add(self)

    def get(self, file: FileKey, load: Callable[[], tuple[T, int]], extra: Hashable = ()) -> T:
        """Return the value for `file`. If it is not cached, `load` returns (value, encoded bytes).

        extra: Anything else that the value depends on, beside the file's content.
        """
        return self.get_for_all((file,), load, extra)

    def get_for_all(self, files: tuple[FileKey, ...], load: Callable[[], tuple[T, int]], extra: Hashable = ()) -> T:
        """Return the value for several files together, as `get`."""
        if any(names_no_version(identity) for _, identity in files):
            return load()[0]
        key = (files, extra)
        found = self._find(key)
        if found is not None:
            return found[0]
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        try:
            if not loading.acquire(blocking=False):
                with fetching():
                    loading.acquire()
            try:
                found = self._find(key)
                if found is None:
                    found = load()
                    self._keep(key, found)
                return found[0]
            finally:
                loading.release()
        finally:
            with self._lock:
                self._loading.pop(key, None)

    def _find(self, key: _Key) -> tuple[T, int] | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def _keep(self, key: _Key, found: tuple[T, int]) -> None:
        with self._lock:
            replaced = self._entries.pop(key, None)
            self._bytes += found[1] - (replaced[1] if replaced else 0)
            self._entries[key] = found
            while self._bytes > self._capacity_bytes and len(self._entries) > 1:
                self._bytes -= self._entries.popitem(last=False)[1][1]

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._loading: dict[_Key, threading.Lock] = {}
        self._entries: OrderedDict[_Key, tuple[T, int]] = OrderedDict()
        self._bytes = 0


_caches: weakref.WeakSet["FileCache[Any]"] = weakref.WeakSet()


def _clear_all() -> None:
    # A lock that another thread held at the fork would never be released in the child.
    for cache in list(_caches):
        cache._clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_all)
