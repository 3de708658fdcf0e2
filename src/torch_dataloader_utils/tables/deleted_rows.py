"""Rows that tables delete by position: deletion vectors, and the live rows that they leave.

Iceberg and Delta Lake write the same vectors: a magic number and one Roaring bitmap for each 2^32 rows. Sources: Puffin
spec, "deletion-vector-v1 blob type"; Delta protocol, "Deletion Vector Format"; Roaring format spec, "64-bit".
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory
from torch_dataloader_utils.discover.group_table import with_live_rows
from torch_dataloader_utils.errors import MissingDependencyError
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_scan import FileScan

_MAGIC = b"\xd1\xd3\x39\x64"

# Roaring format spec: the first four bytes of a bitmap, the number of containers from which a bitmap with runs has
# offsets, and the number of values above which a container is a bit set.
_PLAIN_COOKIE, _RUN_COOKIE = 12346, 12347
_LEAST_FOR_OFFSETS, _MOST_IN_ARRAY = 4, 4096


def check_positions(paths: Iterable[str], scans: Sequence[FileScan], positions: Sequence[Int64s]) -> None:
    """Raise CorruptFileError for a deleted row that its file does not have.

    positions: Deleted rows of each file, ascending.
    """
    for path, scan, deleted in zip(paths, scans, positions, strict=True):
        rows = int(scan.groups[:, 0].sum())
        if len(deleted) and not (deleted[0] >= 0 and deleted[-1] < rows):
            wrong = int(deleted[0] if deleted[0] < 0 else deleted[-1])
            raise corrupt(path, f"row {wrong} is deleted, and the file has {rows} rows")


def without_deleted_rows(inventory: Inventory) -> Inventory:
    """Return the inventory with deleted rows subtracted from live rows; UNKNOWN where equality deletes apply."""
    groups, extras = inventory.groups, inventory.files.extras
    counts = np.full(len(groups), UNKNOWN, dtype=np.int64)
    starts = np.searchsorted(groups.file, np.arange(inventory.num_files + 1))
    live = groups.live_rows.copy()
    for file, extra in enumerate(extras):
        span = slice(int(starts[file]), int(starts[file + 1]))
        if extra is None:
            continue
        if extra.equality_deletes:
            live[span] = UNKNOWN
        if len(extra.positions):
            first, rows = groups.first_row[span], groups.physical_rows[span]
            deleted = np.searchsorted(extra.positions, first + rows) - np.searchsorted(extra.positions, first)
            # A group whose rows are all deleted is known, whatever else applies.
            known = (live[span] != UNKNOWN) | (deleted == rows)
            counts[span] = np.where(known, rows - deleted, UNKNOWN)
    return with_live_rows(replace(inventory, groups=replace(groups, live_rows=live)), counts)


def decode_framed(path: str, blob: bytes) -> Int64s:
    """Return the positions in a vector between its length and its checksum, as files hold it, ascending, each once.

    Raises:
        CorruptFileError: another length, a wrong checksum, or no such vector.
    """
    (length,) = struct.unpack_from(">I", blob)
    if length + 8 != len(blob):
        raise corrupt(path, f"a deletion vector has {length} bytes by its own count, {len(blob) - 8} by the metadata")
    (checksum,) = struct.unpack_from(">I", blob, len(blob) - 4)
    if zlib.crc32(blob[4:-4]) != checksum:
        raise corrupt(path, "the checksum of a deletion vector is wrong")
    return decode_vector(path, blob[4:-4])


def decode_vector(path: str, body: bytes) -> Int64s:
    """Return the positions in a vector without length and checksum, ascending, each once.

    Raises:
        CorruptFileError: no such vector.
    """
    if body[:4] != _MAGIC:
        raise corrupt(path, "a deletion vector does not begin with its magic number")
    with decoding(path, "deletion vector"):
        return _positions(body[4:])


def _positions(vector: bytes) -> Int64s:
    try:
        from pyroaring import BitMap
    except ImportError as error:
        raise MissingDependencyError(
            "the table has deletion vectors, which need pyroaring. Run: pip install pyroaring"
        ) from error

    (count,) = struct.unpack_from("<Q", vector)
    position, last_key = 8, -1
    parts: list[Int64s] = [np.zeros(0, dtype=np.int64)]
    for _ in range(count):
        (key,) = struct.unpack_from("<I", vector, position)
        if not last_key < key < 1 << 31:
            raise ValueError(f"bitmap key {key} after {last_key}")
        start = position + 4
        position = start + _bitmap_bytes(vector, start)
        bitmap: Any = BitMap.deserialize(vector[start:position])
        parts.append(np.array(bitmap.to_array(), dtype=np.int64) + (key << 32))
        last_key = key
    if position != len(vector):
        raise ValueError(f"{len(vector) - position} bytes follow the last bitmap")
    return np.concatenate(parts)


def _bitmap_bytes(data: bytes, start: int) -> int:
    """Return the length of the serialised 32-bit bitmap at `start`, as its own headers say.

    A set has several serialisations: with runs or without, and with the cookie of runs where no container is a run.
    Source: Roaring format spec, sections 1 to 4.

    Raises:
        ValueError, struct.error: no such headers.
    """
    (cookie,) = struct.unpack_from("<I", data, start)
    if cookie & 0xFFFF == _RUN_COOKIE:
        count, at = (cookie >> 16) + 1, start + 4
        flags = np.unpackbits(np.frombuffer(data, np.uint8, (count + 7) // 8, at), bitorder="little")[:count]
        at += (count + 7) // 8
    elif cookie == _PLAIN_COOKIE:
        (count,) = struct.unpack_from("<I", data, start + 4)
        if count > 1 << 16:
            raise ValueError(f"a bitmap of {count} containers")
        flags, at = np.zeros(count, np.uint8), start + 8
    else:
        raise ValueError(f"a bitmap begins with {cookie}")
    values = np.frombuffer(data, "<u2", 2 * count, at)[1::2].astype(np.int64) + 1
    at += 4 * count
    if cookie == _PLAIN_COOKIE or count >= _LEAST_FOR_OFFSETS:
        at += 4 * count
    for is_run, size in zip(flags.tolist(), values.tolist(), strict=True):
        if is_run:
            (runs,) = struct.unpack_from("<H", data, at)
            at += 2 + 4 * runs
        else:
            at += 2 * size if size <= _MOST_IN_ARRAY else 8192
    return int(at - start)
