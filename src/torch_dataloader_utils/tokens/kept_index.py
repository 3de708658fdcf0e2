"""The indices of a data set (a frozen dataclass of arrays), built once and kept in a cache if there is one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch_dataloader_utils._store import open_store
from torch_dataloader_utils.tokens.cache import IndexCache
from torch_dataloader_utils.tokens.config import BlendedMegatronDatasetConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIndex(Generic[T]):
    """Where the indices of one data set are kept.

    kind: the dataclass of arrays. cache: None to build the indices in every process. name: for people, part of the
    file's name. describe: gives everything the indices depend on; called only with a cache, as it may look files up.
    """

    kind: type[T]
    cache: IndexCache | None
    name: str
    describe: Callable[[], Mapping[str, Any]]

    def load_or_build(self, build: Callable[[], T]) -> T:
        """The indices: mapped from the cache, or built. Raises as `IndexCache.load_or_build`."""
        if self.cache is None:
            return build()
        names = [each.name for each in fields(self.kind)]  # type: ignore[arg-type]  # a dataclass

        def build_arrays() -> dict[str, Any]:
            built = build()
            return {name: getattr(built, name) for name in names}

        arrays = self.cache.load_or_build(self.name, self.describe(), build_arrays)
        return self.kind(**{name: arrays[name] for name in names})

    @property
    def is_on_disk(self) -> bool:
        """Whether another process would find them: a worker then maps the file, and gigabytes need not be pickled."""
        return self.cache is not None and self.cache.path_of(self.name, self.describe()).exists()


def select_cache(config: BlendedMegatronDatasetConfig, default: str | None) -> IndexCache | None:
    """Where indices are kept: `path_to_cache`, else the local directory `default`, else nowhere (None)."""
    directory = default if config.path_to_cache is None else str(config.path_to_cache)
    if directory is None or not (store := open_store(directory)).is_local:
        return None
    return IndexCache(
        directory=Path(store.local_path(directory)),
        trusts_cache=config.fast_cache_load or config.defer_npy_index_mmap,
        lock_timeout_seconds=config.cache_lock_timeout_seconds,
    )
