"""Files of one table, read many at once, with its path rules and credentials."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from torch_dataloader_utils._runtime.parallel import map_in_order, threads_for
from torch_dataloader_utils._store import Buffer, Store, StoreAccess, Tail, open_store
from torch_dataloader_utils.discover.roots import PathRules, Roots, split
from torch_dataloader_utils.formats.registry import REMOTE_THREADS

T = TypeVar("T")
R = TypeVar("R")

# A request is some ten milliseconds on a remote store; a local read is mostly decoding.
_LOCAL_THREADS = 8
# More bytes than any file has: a tail of this length is the whole file, read with its identity.
_WHOLE = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFiles:
    """Reader of whole files, with one store for each scheme and bucket.

    rules: Rules that turn paths in metadata into paths to open. roots: Directories where the paths may lie.
    """

    rules: PathRules
    access: StoreAccess
    roots: Roots
    _stores: dict[str, Store] = field(default_factory=dict, repr=False)

    def store(self, path: str) -> Store:
        """Return the store of a resolved path. Every file that metadata name is reached here.

        Raises:
            UnsupportedFeatureError: the path lies outside of the table's roots.
        """
        self.roots.check(path)
        scheme, authority, _ = split(path)
        key = f"{scheme}://{authority}"
        store = self._stores.get(key)
        return store if store is not None else self._stores.setdefault(key, open_store(path, self.access))

    def read(self, path: str) -> Buffer:
        """Return all bytes of a resolved path."""
        return self.fetch(path).data

    def fetch(self, path: str) -> Tail:
        """Return all bytes of a resolved path, with their size and identity."""
        return self.store(path).tail(path, _WHOLE)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results in order, many computed at once."""
        is_local = all(store.is_local for store in self._stores.values())
        threads = _LOCAL_THREADS if is_local else REMOTE_THREADS
        with threads_for(threads, "tdu-table") as pool:
            yield from map_in_order(function, items, pool, 4 * threads)
