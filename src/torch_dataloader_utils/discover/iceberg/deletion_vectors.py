"""Deletion vectors: the deleted rows of one data file, as a blob inside a Puffin file.

    4 bytes   length of magic and vector together, big-endian
    4 bytes   magic D1 D3 39 64
    n bytes   vector: uint64 number of bitmaps, then for each a uint32 key and a 32-bit Roaring bitmap, little-endian
    4 bytes   CRC-32 of magic and vector, big-endian

A row's position is (key << 32) + a number in the bitmap of that key; keys ascend. Source: Puffin spec, blob type
"deletion-vector-v1"; Roaring bitmap portable format.
"""

import struct
import zlib
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._store import Store, redact
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.errors import UnsupportedFeatureError

_PUFFIN_MAGIC = b"PFA1"
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_FRAME_BYTES = 12  # length, magic and CRC


def read_vector(store: Store, path: str, offset: int, size: int, *, allow_bare: bool) -> Int64s:
    """The deleted positions, ascending, each once; reads only the vector and the file's first four bytes.

    Raises:
        CorruptFileError: outside the file, a wrong checksum, or no such vector.
        UnsupportedFeatureError: the file is no Puffin file (a bare vector), unless `allow_bare`.
    """
    now = store.stat(path)
    if offset < 0 or size < _FRAME_BYTES or offset + size > now.size:
        raise corrupt(path, f"a deletion vector of {size} bytes at {offset} does not lie in a file of {now.size} bytes")
    magic, blob = store.ranges(path, [(0, 4), (offset, size)], now.identity)
    if bytes(magic) != _PUFFIN_MAGIC and not allow_bare:
        raise UnsupportedFeatureError(
            f"{redact(path)}: this deletion vector is not inside a Puffin file (it does not begin with PFA1). Some "
            "writers left bare vectors before the format was settled; pass allow_bare_vectors=True to read them."
        )
    return decode_vector(path, bytes(blob))


def decode_vector(path: str, blob: bytes) -> Int64s:
    """The positions in a framed vector."""
    (length,) = struct.unpack_from(">I", blob)
    if length + 8 != len(blob):
        raise corrupt(path, f"a deletion vector says {length} bytes, its place in the manifest {len(blob) - 8}")
    body = blob[4:-4]
    if body[:4] != _VECTOR_MAGIC:
        raise corrupt(path, "a deletion vector does not begin with its magic number")
    (checksum,) = struct.unpack_from(">I", blob, len(blob) - 4)
    if zlib.crc32(body) != checksum:
        raise corrupt(path, "the checksum of a deletion vector is wrong")
    with decoding(path, "deletion vector"):
        return _positions(body[4:])


def _positions(vector: bytes) -> Int64s:
    from pyroaring import BitMap

    (count,) = struct.unpack_from("<Q", vector)
    position, last_key = 8, -1
    parts: list[Int64s] = [np.zeros(0, dtype=np.int64)]
    for _ in range(count):
        (key,) = struct.unpack_from("<I", vector, position)
        if not last_key < key < 1 << 31:
            raise ValueError(f"bitmap key {key} after {last_key}")
        bitmap: Any = BitMap.deserialize(vector[position + 4 :])
        parts.append(np.array(bitmap.to_array(), dtype=np.int64) + (key << 32))
        position += 4 + len(bitmap.serialize())
        last_key = key
    if position != len(vector):
        raise ValueError(f"{len(vector) - position} bytes follow the last bitmap")
    return np.concatenate(parts)
