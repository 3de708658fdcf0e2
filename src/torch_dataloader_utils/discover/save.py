"""Saves an inventory to one Parquet file (see inventory_table.py) that any Parquet tool can read, and loads it.

It holds no storage options, no credentials and no pickle. A seal tells whether the file was changed. The layout is
version 1 of the format "torch_dataloader_utils.inventory"; docs/design/0003-inventory.md has it.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import Inventory, check_inventory
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._core.strings import StringColumn
from torch_dataloader_utils._store import (
    Buffer,
    Credentials,
    FsspecStore,
    RemoteOptions,
    StoreAccess,
    has_credentials,
    open_store,
    redact,
    write_atomically,
)
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.discover.iceberg.roots import Roots
from torch_dataloader_utils.discover.inventory_table import from_table, to_table
from torch_dataloader_utils.discover.seal import check_seal, sealed_parquet
from torch_dataloader_utils.errors import ConfigError, StoreError, UnsupportedFeatureError

_KEY = b"torch_dataloader_utils.inventory"
_VERSION = 1


def save_inventory(
    inventory: Inventory,
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    credentials: Credentials | None = None,
    remote: RemoteOptions | None = None,
) -> None:
    """Writes the inventory to one Parquet file, local or any fsspec URL; never half of it.

    A symbolic link is followed, not replaced.

    storage_options, credentials and remote say how its store is reached, as for `scan_files`.

    Raises:
        ConfigTypeError: no inventory, or no path.
        ConfigError: a file's URL carries a signature or password, which must not be stored.
        UnsupportedFeatureError: files with extras (deletes); scan those tables anew instead.
        StoreError: it cannot be written there, or the storage failed after retries.
    """
    check_inventory(inventory)
    target = check_path("path", path)
    store = open_store(target, StoreAccess.of(storage_options, credentials, remote))
    if any(inventory.files.extras):
        raise UnsupportedFeatureError(
            "an inventory of files with deletes or field ids is not saved; scan the table again."
        )
    secret = _first_with_credentials(inventory.files.paths)
    if secret is not None:
        raise ConfigError(
            f"{redact(secret)}: its URL carries credentials, which a saved inventory would give away. Pass them in "
            "storage_options= instead, and scan again."
        )
    table, about = to_table(inventory)
    about = {"version": _VERSION, "is_sealed": True, **about}
    data = memoryview(sealed_parquet(table.replace_schema_metadata({_KEY: json.dumps(about)})))
    if isinstance(store, FsspecStore):
        store.write(target, len(data), lambda start, length: data[start : start + length])
    else:
        _write_local(Path(store.local_path(target)), data)


def load_inventory(
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    credentials: Credentials | None = None,
    remote: RemoteOptions | None = None,
    allowed_roots: Sequence[str] | None = None,
) -> Inventory:
    """The inventory that `save_inventory` wrote, with the same arrays and the same fingerprint.

    Args:
        storage_options, credentials, remote: of the store that it lies in, as for `scan_files`.
        allowed_roots: prefixes of where its files may lie: "s3://bucket/trips", "s3://" (any bucket), "/data". None:
            anywhere, so load only what you trust.

    Raises:
        ConfigTypeError: no path, or roots that are no list. ConfigError: not a saved inventory, or one of a newer
            version.
        CorruptFileError: a bit of it changed since it was saved; or, of a file that an earlier version saved, which has
            no seal, its bytes do not decode or do not fit together.
        UnsupportedFeatureError: it names a file outside of `allowed_roots`.
    """
    roots = None if allowed_roots is None else Roots.of(allowed_roots)
    target = check_path("path", path)
    store = open_store(target, StoreAccess.of(storage_options, credentials, remote))
    tail = store.tail(target, store.stat(target).size)
    is_sealed = check_seal(tail.data, target)
    with _fitting(target):
        table = pq.read_table(pa.BufferReader(tail.data), use_threads=False)
    about = _about(table, target)
    if about.get("is_sealed") and not is_sealed:
        raise corrupt(target, "the seal of the saved inventory is gone")
    with _fitting(target):
        inventory = from_table(table, about)
    if roots is not None:
        roots.check_inventory(inventory)
    return inventory


def _first_with_credentials(paths: StringColumn) -> str | None:
    # Credentials need one of these bytes; few inventories have one in any of a million paths.
    text = paths.data.tobytes()
    if b"://" not in text or (b"@" not in text and b"?" not in text):
        return None
    return next(filter(has_credentials, paths), None)


def _about(table: pa.Table, path: str) -> Mapping[str, Any]:
    text = (table.schema.metadata or {}).get(_KEY)
    if text is None:
        raise ConfigError(f"{redact(path)} is no saved inventory. Pass a file that save_inventory wrote.")
    with _fitting(path):
        about: Mapping[str, Any] = json.loads(text)
        version = about["version"]
    if version != _VERSION:
        raise ConfigError(
            f"{redact(path)} is of inventory version {version}; this library reads {_VERSION}. Scan and save again."
        )
    return about


@contextmanager
def _fitting(path: str) -> Iterator[None]:
    """Turns errors of decoding into CorruptFileError, also those for parts that are missing or of a wrong type."""
    with decoding(path, "saved inventory"):
        try:
            yield
        except (LookupError, TypeError, AttributeError, NotImplementedError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def _write_local(target: Path, data: Buffer) -> None:
    try:
        # Renaming a new file into place would replace the link itself; users mean what it leads to.
        with write_atomically(target.resolve(), mode=0o600) as file:
            file.write(data)
    except OSError as error:
        raise StoreError(
            f"{target}: cannot write the inventory ({error}). Choose a directory that can be written."
        ) from error
