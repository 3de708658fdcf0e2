"""`open_store`: the store for a path."""

from torch_dataloader_utils._core.paths import check_no_password
from torch_dataloader_utils._store.access import StoreAccess
from torch_dataloader_utils._store.interface import Store
from torch_dataloader_utils._store.local import LocalStore
from torch_dataloader_utils._store.remote import FsspecStore


def open_store(path: str, access: StoreAccess | None = None) -> Store:
    """The store of `path`: a local path, file://, or any fsspec URL. Opens nothing yet.

    access: how remote files are reached; None for nothing special. Local files ignore it.

    Raises:
        ConfigError: the URL carries a password; it would end up in plans and logs.
    """
    if is_local(path):
        return LocalStore()
    check_no_password(path)
    return FsspecStore(access=access or StoreAccess())


def is_local(path: str) -> bool:
    """Whether the path is read by `LocalStore`: a plain one, or a file:// URL that is not chained."""
    return "://" not in path or path.partition("://")[0] in ("file", "local")
