"""Build indices once per cache directory, in one process, and keep them on disk for all processes.

A directory on a node's own disk is filled once per node, a directory on a shared file system once per job. A lock file
in the directory decides which process builds: no process group is needed, and if the builder dies, another process
takes over.
"""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._runtime.file_locks import is_at, try_lock
from torch_dataloader_utils._runtime.publish import write_atomically
from torch_dataloader_utils._store import open_store
from torch_dataloader_utils.errors import CorruptFileError, NoDataError, StoreError
from torch_dataloader_utils.megatron.corpora.config import BlendedMegatronDatasetConfig
from torch_dataloader_utils.megatron.corpora.ranges import MappedFile

Arrays = dict[str, npt.NDArray[Any]]

_PREFIX = struct.Struct("<8sIII")
_MAGIC = b"TDUARRAY"
_VERSION = 1
_ALIGNMENT = 64
_DTYPES = frozenset({"<i2", "<i4", "<i8", "<u4"})
_REMOVE = "Remove the file; it is built again."


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]], description: Mapping[str, Any]) -> None:
    """Write the arrays and a description of their contents; the file appears whole or not at all."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    entries: list[dict[str, Any]] = []
    # Offsets count from the end of the header, because the length of the header depends on the digits of the offsets.
    offset = 0
    for name, array in contiguous.items():
        entry: dict[str, Any] = {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
        entries.append(entry | {"offset": offset, "crc32": _checksum(array)})
        offset = _align(offset + array.nbytes)
    content = {"description": dict(description), "arrays": entries, "size_bytes": offset}
    header = json.dumps(content, sort_keys=True).encode()
    with write_atomically(path) as file:
        file.write(_PREFIX.pack(_MAGIC, _VERSION, len(header), zlib.crc32(header)))
        file.write(header)
        start = _align(_PREFIX.size + len(header))
        for entry, array in zip(entries, contiguous.values(), strict=True):
            file.seek(start + entry["offset"])
            file.write(array.data)
        file.truncate(start + offset)


def read_arrays(path: Path, description: Mapping[str, Any], *, checks_content: bool = True) -> Arrays:
    """Return read-only views of the arrays, by name; the views keep the mapping alive.

    Sizes and header are always checked. The checksums of the arrays cost one pass over the file and are skipped with
    `checks_content=False`.

    Raises:
        NoDataError: the file does not exist.
        CorruptFileError: the file is truncated, damaged, or made for another description.
    """
    file = MappedFile(str(path))
    size_bytes = file.stat.size
    content, start = _read_header(file, size_bytes)
    try:
        if content["description"] != json.loads(json.dumps(dict(description))):
            raise CorruptFileError(f"{path} holds indices of something else: {content['description']}. {_REMOVE}")
        if size_bytes != start + content["size_bytes"]:
            expected = start + content["size_bytes"]
            raise CorruptFileError(f"{path} has {size_bytes} bytes instead of {expected}. {_REMOVE}")
        arrays = {entry["name"]: (_view_array(file, entry, start), entry["crc32"]) for entry in content["arrays"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{path} has a header of another shape ({error!r}). {_REMOVE}") from error
    if checks_content:
        for name, (array, checksum) in arrays.items():
            if _checksum(array) != checksum:
                raise CorruptFileError(f"{path}: the checksum of {name} does not fit. {_REMOVE}")
    return {name: array for name, (array, _) in arrays.items()}


def _read_header(file: MappedFile, size_bytes: int) -> tuple[dict[str, Any], int]:
    if size_bytes < _PREFIX.size:
        raise CorruptFileError(f"{file.path} is truncated to {size_bytes} bytes. {_REMOVE}")
    magic, version, header_bytes, checksum = _PREFIX.unpack(file.read([(0, _PREFIX.size)])[0])
    if magic != _MAGIC or version != _VERSION:
        raise CorruptFileError(f"{file.path} is not an index file of version {_VERSION}. {_REMOVE}")
    if size_bytes < _PREFIX.size + header_bytes:
        raise CorruptFileError(f"{file.path} is truncated inside its header. {_REMOVE}")
    header = bytes(file.read([(_PREFIX.size, _PREFIX.size + header_bytes)])[0])
    if zlib.crc32(header) != checksum:
        raise CorruptFileError(f"{file.path}: the checksum of the header does not fit. {_REMOVE}")
    content: dict[str, Any] = json.loads(header)
    return content, _align(_PREFIX.size + header_bytes)


def _view_array(file: MappedFile, entry: Mapping[str, Any], start: int) -> npt.NDArray[Any]:
    shape = tuple(entry["shape"])
    if entry["dtype"] not in _DTYPES or any(size < 0 for size in shape):
        raise CorruptFileError(f"{file.path}: array {entry['name']} is {entry['dtype']} {shape}. {_REMOVE}")
    dtype = np.dtype(entry["dtype"])
    first = start + entry["offset"]
    buffer = file.read([(first, first + dtype.itemsize * math.prod(shape))])[0]
    return np.frombuffer(buffer, dtype=dtype).reshape(shape)


def _checksum(array: npt.NDArray[Any]) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def _align(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


_LOGGER = logging.getLogger(__name__)

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.01, 1.0

# Errors of file systems without locks. On such a file system every process builds, and all publish the same bytes by a
# rename.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCache:
    """Directory of built indices.

    Attributes:
        directory: path of the directory.
        trusts_cache: whether files are taken as they are: no lock, no build on a miss, no pass over checksums.
        lock_timeout_seconds: number of seconds that a process waits for another process that builds.
    """

    directory: Path
    trusts_cache: bool = False
    lock_timeout_seconds: float = 3600.0

    def path_of(self, name: str, description: Mapping[str, Any]) -> Path:
        """Return the path of the indices: a digest of everything the indices depend on, then a readable name."""
        canonical = json.dumps(dict(description), sort_keys=True, separators=(",", ":")).encode()
        return self.directory / f"{hashlib.blake2b(canonical, digest_size=16).hexdigest()}-{name}.index"

    def load_or_build(self, name: str, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """Return the arrays of `description`: mapped from the cache, or built, published and mapped.

        A damaged cache file is built again and logged. If the directory cannot be written, the indices are built in
        memory, and a warning is logged.

        Raises:
            NoDataError: with `trusts_cache`, the file is missing.
            StoreError: another process builds and does not finish in time.
        """
        path = self.path_of(name, description)
        if self.trusts_cache:
            return self._load_trusted(path, description)
        found = _try_read(path, description)
        if isinstance(found, dict):
            return found
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = _open_lock(path.with_suffix(".lock"))
        except OSError as error:
            _log_damage(found)
            _LOGGER.warning("%s cannot be written (%s); indices are built in memory.", self.directory, error)
            return build()
        with _hold_lock(lock, path.with_suffix(".lock"), self.lock_timeout_seconds):
            found = _try_read(path, description)
            if isinstance(found, dict):
                return found
            _log_damage(found)
            return _build(path, description, build)

    def _load_trusted(self, path: Path, description: Mapping[str, Any]) -> Arrays:
        try:
            return read_arrays(path, description, checks_content=False)
        except NoDataError as error:
            raise NoDataError(
                f"There is no index {path} for {dict(description)}. fast_cache_load and defer_npy_index_mmap need a "
                f"full cache: run once without them, with the same configuration."
            ) from error


def _build(path: Path, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
    arrays = build()
    try:
        write_arrays(path, arrays, description)
        return read_arrays(path, description, checks_content=False)
    except CorruptFileError:
        raise
    except OSError as error:
        _LOGGER.warning("%s cannot be written (%s); indices stay in memory.", path, error)
        return arrays


def _try_read(path: Path, description: Mapping[str, Any]) -> Arrays | CorruptFileError | NoDataError:
    """Return the arrays, or the error if the file is missing or damaged."""
    try:
        return read_arrays(path, description)
    except (NoDataError, CorruptFileError) as error:
        return error


def _log_damage(why_not: CorruptFileError | NoDataError) -> None:
    if isinstance(why_not, CorruptFileError):
        _LOGGER.warning("A damaged index is replaced: %s", why_not)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def _hold_lock(descriptor: int, path: Path, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock file during the block, and remove it at the end.

    The kernel releases the lock when its process dies, so no process has to guess whether an owner is alive. A process
    may get the lock of a file that was removed while the process waited. This lock excludes no other process, so the
    process opens the present file and tries again.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_POLL_SECONDS
    try:
        while (state := _owns(descriptor)) is not None:
            if state and is_at(descriptor, path):
                break
            if state:
                stale, descriptor = descriptor, _open_lock(path)
                os.close(stale)
                continue
            if time.monotonic() > deadline:
                raise StoreError(
                    f"Another process has held {path} for {timeout_seconds:.0f} s to build indices. Wait for this "
                    f"process, or raise the timeout."
                )
            time.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_SECONDS)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _owns(descriptor: int) -> bool | None:
    """Return whether the lock is ours; None if the file system has no locks."""
    try:
        return try_lock(descriptor)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIndex(Generic[T]):
    """Indices of one data set, kept in a cache or in memory.

    Attributes:
        kind: dataclass of the arrays.
        cache: directory of built indices; None builds the indices in every process.
        name: readable part of the file's name.
        describe: function that returns everything the indices depend on. It is called only with a cache, because it
            may look files up.
    """

    kind: type[T]
    cache: IndexCache | None
    name: str
    describe: Callable[[], Mapping[str, Any]]

    def load_or_build(self, build: Callable[[], T]) -> T:
        """Return the indices, mapped from the cache or built. Errors are as for `IndexCache.load_or_build`."""
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
        """Whether the indices are in a file: a worker then maps the file, and gigabytes need not be pickled."""
        return self.cache is not None and self.cache.path_of(self.name, self.describe()).exists()


def select_cache(config: BlendedMegatronDatasetConfig, default: str | None) -> IndexCache | None:
    """Return the cache of a data set: `path_to_cache`, else the local directory `default`, else None."""
    directory = default if config.path_to_cache is None else str(config.path_to_cache)
    if directory is None or not (store := open_store(directory)).is_local:
        return None
    return IndexCache(
        directory=Path(store.local_path(directory)),
        trusts_cache=config.fast_cache_load or config.defer_npy_index_mmap,
        lock_timeout_seconds=config.cache_lock_timeout_seconds,
    )
