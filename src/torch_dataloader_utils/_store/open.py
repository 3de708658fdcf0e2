"""From a path to the store it lies in."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch_dataloader_utils._core.paths import check_no_password
from torch_dataloader_utils._store.access import StoreAccess
from torch_dataloader_utils._store.interface import CoalesceLimits, Store
from torch_dataloader_utils._store.local import LocalStore
from torch_dataloader_utils._store.remote import FsspecStore
from torch_dataloader_utils._store.secret import Secret


def open_store(
    path: str,
    storage_options: Mapping[str, Any] | Secret | StoreAccess | None = None,
    limits: CoalesceLimits | None = None,
) -> Store:
    """The store of `path`: a local path, file://, or any fsspec URL. Opens nothing yet.

    storage_options go to the storage client as they are (plain, wrapped, or with all else that describes the
    access); local files ignore them. limits: instead of the access's own.

    Raises:
        ConfigError: the URL carries a password; it would end up in plans and logs.
    """
    if is_local(path):
        return LocalStore() if limits is None else LocalStore(limits=limits)
    check_no_password(path)
    access = StoreAccess.of(storage_options)
    if limits is not None:
        access = replace(access, remote=replace(access.remote, coalesce=limits))
    return FsspecStore(access=access)


def is_local(path: str) -> bool:
    """Whether the path is read by `LocalStore`: a plain one, or a file:// URL that is not chained."""
    return "://" not in path or path.partition("://")[0] in ("file", "local")
