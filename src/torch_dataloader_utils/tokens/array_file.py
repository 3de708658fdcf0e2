"""Several numpy arrays in one file: own header, raw arrays, checked before use; nothing is unpickled.

    offset   size   content
    0        8      magic "TDUARRAY"
    8        4      format version, uint32 = 1
    12       4      bytes of the JSON header, uint32
    16       4      crc32 of the JSON header, uint32
    20       n      JSON: {"description": {...}, "arrays": [{name, dtype, shape, offset, crc32}], "size_bytes": ...}
    ...             the arrays, C order, little-endian, each at a multiple of 64

One file, so one rename publishes all arrays together.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._store import write_atomically
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.tokens.ranges import MappedFile

Arrays = dict[str, npt.NDArray[Any]]

_PREFIX = struct.Struct("<8sIII")
_MAGIC = b"TDUARRAY"
_VERSION = 1
_ALIGNMENT = 64
_DTYPES = frozenset({"<i2", "<i4", "<i8", "<u4"})
_REMOVE = "Remove the file; it is built again."


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]], description: Mapping[str, Any]) -> None:
    """Write the arrays with a description of what they are; the file appears whole or not at all."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    entries: list[dict[str, Any]] = []
    # Offsets count from the end of the header, because its own length depends on their digits.
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
    """Read-only views of the arrays, by name; they keep the mapping alive.

    Sizes and header are always checked; the arrays' own checksums cost one pass over the file and are skipped with
    `checks_content=False`.

    Raises:
        NoDataError: no such file.
        CorruptFileError: truncated, damaged, or made for another description.
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
        raise CorruptFileError(f"{file.path} is no index file of version {_VERSION}. {_REMOVE}")
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
