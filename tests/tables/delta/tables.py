"""Writes Delta tables by hand, action by action, for what no Python library writes."""

import json
import struct
import zlib
from base64 import b85encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

INTEGER, LONG, STRING = "integer", "long", "string"


def z85(data: bytes) -> str:
    """Bytes as text of four fifths."""
    return b85encode(data).translate(bytes.maketrans(_B85, _Z85)).decode()


def vector_body(rows: Iterable[int]) -> bytes:
    """A vector: magic and bitmaps."""
    from pyroaring import BitMap

    parts: dict[int, list[int]] = {}
    for row in rows:
        parts.setdefault(row >> 32, []).append(row & 0xFFFFFFFF)
    bitmaps = b"".join(struct.pack("<I", key) + BitMap(low).serialize() for key, low in sorted(parts.items()))
    return struct.pack("<I", 1681511377) + struct.pack("<Q", len(parts)) + bitmaps


def column(name: str, kind: Any = LONG, number: int | None = None, physical: str | None = None) -> dict[str, Any]:
    """A field of a schema; with a number it is mapped."""
    metadata = (
        {}
        if number is None
        else {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": physical or name,
        }
    )
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


@dataclass
class HandTable:
    """A table at `root` that is at `version` (-1: none)."""

    root: Path
    version: int = -1
    pending: list[dict[str, Any]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """The directory of the log."""
        return self.root / "_delta_log"

    def commit(self, *actions: Mapping[str, Any]) -> int:
        """Write a version, and give its number."""
        self.log.mkdir(parents=True, exist_ok=True)
        self.version += 1
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (self.log / f"{self.version:020}.json").write_text(text)
        return self.version

    def create(
        self,
        columns: Sequence[Mapping[str, Any]],
        *more: Mapping[str, Any],
        features: Sequence[str] = (),
        partitions: Sequence[str] = (),
        mode: str | None = None,
    ) -> int:
        """Version 0."""
        return self.commit(protocol(features), self.metadata(columns, partitions, mode), *more)

    def metadata(
        self, columns: Sequence[Mapping[str, Any]], partitions: Sequence[str] = (), mode: str | None = None
    ) -> dict[str, Any]:
        """A metaData action."""
        return {
            "metaData": {
                "id": "3f1e0e2c-7b4e-4f0a-9e0e-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": list(columns)}),
                "partitionColumns": list(partitions),
                "configuration": {} if mode is None else {"delta.columnMapping.mode": mode},
            }
        }

    def file(self, rows: pa.Table, name: str = "", row_group_size: int | None = None) -> str:
        """Write a data file; its path in the log."""
        name = name or f"part-{uuid4()}.parquet"
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.root / name, row_group_size=row_group_size)
        return quote(name, safe="/=")

    def vector(self, rows: Iterable[int], storage: str = "u", prefix: str = "") -> dict[str, Any]:
        """Write a vector; its descriptor."""
        rows = list(rows)
        body = vector_body(rows)
        found: dict[str, Any] = {"storageType": storage, "sizeInBytes": len(body), "cardinality": len(rows)}
        if storage == "i":
            padded = body + bytes(-len(body) % 4)
            return {**found, "pathOrInlineDv": z85(padded)}
        number = uuid4()
        path = self.root / prefix / f"deletion_vector_{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x01" + struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body)))
        place = prefix + z85(UUID(str(number)).bytes) if storage == "u" else path.as_uri()
        return {**found, "pathOrInlineDv": place, "offset": 1}


def protocol(features: Sequence[str] = (), version: int | None = None) -> dict[str, Any]:
    """A protocol action; with features, of reader version 3."""
    least = version or (3 if features else 1)
    found: dict[str, Any] = {"minReaderVersion": least, "minWriterVersion": 7 if least == 3 else 2}
    if least == 3:
        found |= {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": found}


def add(path: str, **fields: Any) -> dict[str, Any]:
    """An add action."""
    return {
        "add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True, **fields}
    }


def remove(path: str, **fields: Any) -> dict[str, Any]:
    """A remove action."""
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True, **fields}}
