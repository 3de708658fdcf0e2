"""An inventory in one Parquet file that any Parquet tool can read: saving and loading.

The file holds no storage options, no credentials and no pickle. A seal tells whether the file was changed. The layout
is version 1 of the format "torch_dataloader_utils.inventory"; docs/design/0003-inventory.md has it.
"""

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.schema import decode_schema, flat_schema
from torch_dataloader_utils._core.inventory import (
    FileTable,
    GroupTable,
    Inventory,
    PartitionColumn,
    StringColumn,
    check_inventory,
)
from torch_dataloader_utils._core.option_values import Holdout
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._core.table_snapshot import TableSnapshot
from torch_dataloader_utils._runtime.publish import write_atomically
from torch_dataloader_utils._store import (
    Buffer,
    Credentials,
    FsspecStore,
    RemoteOptions,
    StoreAccess,
    has_credentials,
    open_store,
    redact,
)
from torch_dataloader_utils.discover.roots import Roots
from torch_dataloader_utils.discover.sealed_parquet import check_seal, sealed_parquet
from torch_dataloader_utils.errors import ConfigError, LoaderError, StoreError, UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.parquet.trailer import open_checked
from torch_dataloader_utils.formats.registry import FORMATS, OTHER_NUMBERS, format_of

_GROUP_COLUMNS = tuple(name for name in GroupTable.__slots__ if name != "file")
_GROUP_TYPES = {name: np.dtype(np.int32 if name == "ordinal" else np.int64) for name in _GROUP_COLUMNS}
_CODES = "partition_codes."
_CONTENT = "content"
_FILES_AT_ONCE = 65_536


def to_table(inventory: Inventory) -> tuple[pa.Table, dict[str, Any]]:
    """Return the files and row groups of an inventory as a table, and all other facts as JSON values."""
    files, groups = inventory.files, inventory.groups
    offsets = np.searchsorted(groups.file, np.arange(len(files) + 1)).astype(np.int32)
    columns: dict[str, pa.Array] = {
        "path": _strings(files.paths),
        "size": pa.array(files.sizes),
        "identity": _strings(files.identities),
        "format": pa.array(files.formats),
    }
    if files.contents is not None:
        columns[_CONTENT] = _strings(files.contents)
    for column in files.partitions:
        columns[_CODES + column.name] = pa.array(column.codes)
    for name in _GROUP_COLUMNS:
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(getattr(groups, name)))
    about: dict[str, Any] = {
        "source": redact(inventory.source),
        "row_filter": inventory.row_filter,
        "snapshot": str(inventory.snapshot or ""),
        "notes": inventory.notes,
        "projection": inventory.projection,
        "schema": _text(inventory.schema),
        "partitions": [[column.name, _text(_values(inventory, column))] for column in files.partitions],
    }
    holdout = inventory.holdout and asdict(inventory.holdout)
    optional = {
        "nulls": dict(inventory.nulls),
        "tokenizer": inventory.tokenizer,
        "holdout": holdout,
        "window_tokens": inventory.window_tokens,
        "left_out": inventory.left_out,
    }
    return pa.table(columns), about | {name: value for name, value in optional.items() if value}


def from_file(file: pq.ParquetFile, about: Mapping[str, Any]) -> Inventory:
    """Return the inventory that `to_table` took apart. Columns are read one by one, in parts, to save memory.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException: the parts do not fit together.
    """
    files = FileTable(
        paths=_strings_of(file, "path"),
        sizes=_numbers_of(file, "size"),
        identities=_strings_of(file, "identity"),
        formats=_numbers_of(file, "format"),
        partitions=tuple(
            PartitionColumn(name=name, values=_read_values(values), codes=_numbers_of(file, _CODES + name))
            for name, values in about["partitions"]
        ),
        contents=_strings_of(file, _CONTENT) if about["version"] == _VERSION_OF_CONTENTS else None,
    )
    lists = {name: _lists_of(file, name) for name in _GROUP_COLUMNS}
    counts = lists["ordinal"][0]
    if not all(np.array_equal(each, counts) for each, _ in lists.values()):
        raise ValueError("its lists differ in length")
    groups = GroupTable(
        file=np.repeat(np.arange(len(files), dtype=np.int32), counts),
        **{name: numbers for name, (_, numbers) in lists.items()},
    )
    projection = about["projection"]
    inventory = Inventory(
        files=files,
        groups=groups,
        schema=_bytes(about["schema"]),
        source=about["source"],
        row_filter=about["row_filter"],
        projection=None if projection is None else tuple(projection),
        snapshot=_read_snapshot(about["snapshot"]),
        notes=tuple(about["notes"]),
        nulls=about.get("nulls", {}),
        tokenizer=about.get("tokenizer", ""),
        holdout=Holdout(**about["holdout"]) if "holdout" in about else None,
        window_tokens=about.get("window_tokens", 0),
        left_out=tuple(about.get("left_out", ())),
    )
    _check(inventory)
    return inventory


def _check(inventory: Inventory) -> None:
    """Raise ValueError, or an error of Arrow, unless all parts have their types and fit together."""
    files, groups = inventory.files, inventory.groups
    columns = (files.sizes, files.identities, files.formats, files.contents, *(each.codes for each in files.partitions))
    if any(column is not None and len(column) != len(files) for column in columns):
        raise ValueError("its columns differ in length")
    for name, wanted in _GROUP_TYPES.items():
        if getattr(groups, name).dtype != wanted:
            raise ValueError(f"{name} is not {wanted}")
    if files.sizes.dtype != np.int64 or files.formats.dtype != np.uint8:
        raise ValueError("sizes and formats have other types")
    numbers = set(np.unique(files.formats).tolist())
    if numbers - {each.number for each in FORMATS} - OTHER_NUMBERS:
        raise ValueError("it names formats that do not exist")
    for number in sorted(numbers):
        format_of(number)
    schema = decode_schema(inventory.schema)
    names = frozenset(schema.names)
    for column in files.partitions:
        if column.name not in names or column.codes.dtype != np.int32:
            raise ValueError(f"partition column {column.name!r} is not in the schema, or its codes are not int32")
        if len(column.codes) and not (column.codes.min() >= 0 and column.codes.max() < len(column.values)):
            raise ValueError(f"partition column {column.name!r} has codes without a value")
    about = (inventory.source, inventory.row_filter, inventory.tokenizer)
    if not all(
        isinstance(text, str) for text in (*about, *(inventory.projection or ()), *inventory.notes, *inventory.left_out)
    ):
        raise ValueError("source, filter, tokenizer, projection or notes are not text")
    if type(inventory.window_tokens) is not int or inventory.window_tokens < 0:
        raise ValueError("the tokens of its packing windows are not a number")
    inside = names.union(flat_schema(schema).names)
    if not all(name in inside and isinstance(count, int) for name, count in inventory.nulls.items()):
        raise ValueError("its counts of nulls are no integers, or name columns that the schema lacks")


def _read_snapshot(text: str) -> TableSnapshot | None:
    snapshot = TableSnapshot.parse(text)
    if text and snapshot is None:
        raise ValueError("its snapshot does not parse")
    return snapshot


def _values(inventory: Inventory, column: PartitionColumn) -> bytes:
    field = decode_schema(inventory.schema).field(column.name)
    batch = pa.record_batch([pa.array(column.values, field.type)], names=["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read_values(text: str) -> tuple[Any, ...]:
    with pa.ipc.open_stream(_bytes(text)) as reader:
        values = reader.read_all().column("value")
    values.validate(full=True)
    return tuple(values.to_pylist())


def _strings(column: StringColumn) -> pa.Array:
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(np.ascontiguousarray(column.data))]
    return pa.Array.from_buffers(pa.large_string(), len(column), buffers)


def _parts(file: pq.ParquetFile, name: str) -> Iterator[pa.Array]:
    for batch in file.iter_batches(_FILES_AT_ONCE, columns=[name], use_threads=False):
        yield batch.column(name)
    pa.default_memory_pool().release_unused()  # Arrow keeps the memory that it decoded into
    yield pa.array([], file.schema_arrow.field(name).type)  # for a file without rows


def _strings_of(file: pq.ParquetFile, name: str) -> StringColumn:
    texts, lengths = [np.zeros(0, np.uint8)], [np.zeros(1, np.int64)]
    for part in filter(len, _parts(file, name)):
        array = part.cast(pa.large_string())
        array.validate(full=True)
        if array.null_count:
            raise ValueError("a text is missing")
        _, offsets, data = array.buffers()
        starts = np.frombuffer(offsets, dtype=np.int64, count=len(array) + 1, offset=8 * array.offset)
        if data:
            texts.append(np.frombuffer(data, dtype=np.uint8)[starts[0] : starts[-1]].copy())
        lengths.append(np.diff(starts))
    return StringColumn(data=np.concatenate(texts), offsets=np.cumsum(np.concatenate(lengths)))


def _numbers_of(file: pq.ParquetFile, name: str) -> npt.NDArray[Any]:
    return np.concatenate([part.to_numpy(zero_copy_only=False) for part in _parts(file, name)])


def _lists_of(file: pq.ParquetFile, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the count of numbers of each file, and the numbers of all files."""
    counts, numbers = zip(
        *((part.value_lengths(), np.array(part.flatten())) for part in _parts(file, name)), strict=True
    )
    return np.concatenate(counts), np.concatenate(numbers)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_KEY = b"torch_dataloader_utils.inventory"
_VERSION = 1
# Version with a digest of all bytes of each file. Digests of version 2, of the ends of each file, are not read.
_VERSION_OF_CONTENTS = 3
_VERSIONS = (_VERSION, 2, _VERSION_OF_CONTENTS)


def save_inventory(
    inventory: Inventory,
    path: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    credentials: Credentials | None = None,
    remote: RemoteOptions | None = None,
) -> None:
    """Write the inventory to one Parquet file, local or any fsspec URL; never half of it.

    A symbolic link is followed, not replaced.

    storage_options, credentials and remote: Access to the file's store, as for `scan_files`.

    Raises:
        ConfigTypeError: no inventory, or no path.
        ConfigError: a file's URL carries a signature or password, which must not be stored.
        UnsupportedFeatureError: files have extras (deletes), so scan the table anew instead; or rows are sequences.
        StoreError: the file cannot be written there, or the storage failed after retries.
    """
    check_inventory("inventory", inventory)
    target = check_path("path", path)
    store = open_store(target, StoreAccess.of(storage_options, credentials, remote))
    if inventory.sequences is not None:
        raise UnsupportedFeatureError(
            "an inventory that counts sequences is not saved: save the result of scan_files, and pass it as inventory= "
            "with the same sequences=."
        )
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
    version = _VERSION if inventory.files.contents is None else _VERSION_OF_CONTENTS
    about = {"version": version, **about}
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
    """Return the inventory that `save_inventory` wrote, with the same arrays and the same fingerprint.

    From version 2 (files known by their ends), files are known by path and identity; identity="content" reads them.

    Args:
        storage_options, credentials, remote: Access to the file's store, as for `scan_files`.
        allowed_roots: Prefixes where the inventory's files may lie: "s3://bucket/trips", "s3://" (any bucket), "/data".
            None: anywhere, so load only files that you trust.

    Raises:
        ConfigTypeError: not a path, or roots that are not a list. ConfigError: not a saved inventory, or a newer
            version.
        CorruptFileError: a bit of the file changed since it was saved, or its parts do not fit together.
        UnsupportedFeatureError: the inventory names a file outside of `allowed_roots`.
    """
    roots = None if allowed_roots is None else Roots.of(allowed_roots)
    target = check_path("path", path)
    store = open_store(target, StoreAccess.of(storage_options, credentials, remote))
    tail = store.tail(target, store.stat(target).size)
    is_sealed = check_seal(tail.data, target)
    with _fitting(target):
        file = open_checked(tail.data, redact(target), partial(pq.ParquetFile, pa.BufferReader(tail.data)))
    about = _about(file.schema_arrow, target)
    if not is_sealed:
        raise corrupt(target, "the saved inventory has no seal, so another tool wrote it")
    with _fitting(target):
        inventory = from_file(file, about)
    if roots is not None:
        roots.check_inventory(inventory)
    return inventory


def _first_with_credentials(paths: StringColumn) -> str | None:
    # Credentials need one of these bytes. Few inventories have such a byte in any of a million paths.
    text = paths.data.tobytes()
    if b"://" not in text or not any(mark in text for mark in (b"@", b"?", b"#", b";")):
        return None
    return next(filter(has_credentials, paths), None)


def _about(schema: pa.Schema, path: str) -> Mapping[str, Any]:
    text = (schema.metadata or {}).get(_KEY)
    if text is None:
        raise ConfigError(f"{redact(path)} is not a saved inventory. Pass a file that save_inventory wrote.")
    with _fitting(path):
        about: Mapping[str, Any] = json.loads(text)
        version = about["version"]
    if version not in _VERSIONS:
        raise ConfigError(
            f"{redact(path)} is of inventory version {version}; this library reads {_VERSION} to "
            f"{_VERSION_OF_CONTENTS}. Scan and save again."
        )
    return about


@contextmanager
def _fitting(path: str) -> Iterator[None]:
    """Turn errors of decoding into CorruptFileError, also errors about parts that are missing or of a wrong type.

    Features that are not supported are damage too: no inventory has them.
    """
    with decoding(path, "saved inventory"):
        try:
            yield
        except UnsupportedFeatureError as error:
            raise corrupt(path, f"the saved inventory does not decode ({error})") from error
        except LoaderError:
            raise
        except (LookupError, TypeError, AttributeError, NotImplementedError, OSError, pa.ArrowInvalid) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def _write_local(target: Path, data: Buffer) -> None:
    try:
        # Renaming a new file into place would replace the link itself; users mean the link's target.
        with write_atomically(target.resolve(), mode=0o600) as file:
            file.write(data)
    except OSError as error:
        raise StoreError(
            f"{target}: cannot write the inventory ({error}). Choose a directory that can be written."
        ) from error
