"""Arrow IPC: record batches as row groups, from block headers; no body is read.

Source: the Arrow columnar format specification, "IPC File Format" and "Encapsulated message format", and
format/File.fbs, Message.fbs. pyarrow gives no row count short of loading a batch, so that the few flatbuffer
fields needed are read here.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._store import TAIL_BYTES, Buffer, Span, SparseFile, Store, Tail, redact
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.discover.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.discover.schemas import projected_part
from torch_dataloader_utils.errors import UnsupportedFeatureError

_HEAD_BYTES = 64 << 10

_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"
_CONTINUATION = 0xFFFF_FFFF

# Slots of flatbuffer tables.
_FOOTER_BATCHES = 3
_MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY_BYTES = 1, 2, 3
_BATCH_ROWS = 0
_KIND_RECORD_BATCH = 3


def scan_arrow(store: Store, item: ScanItem, request: ScanRequest) -> FileScan:
    """The record batches of a file in the file format (also called Feather v2) or the stream format.

    projected_bytes is an estimate: stored bytes shared out by column count. The stream format has no footer, so
    that each batch costs one more read.

    Raises:
        CorruptFileError: neither of the two formats, or blocks outside the file.
        UnsupportedFeatureError: Feather v1, which is another format.
    """
    path = item.entry.path
    tail = store.tail(path, TAIL_BYTES, item.entry.stat)
    with decoding(path, "Arrow IPC file"):
        if bytes(tail.data[-len(_MAGIC) :]) == _MAGIC:
            end = _from_footer(store, path, tail)
            schema = _file_schema(end, tail.size)
            spans, rows = _file_batches(store, path, tail, end)
        else:
            schema = _stream_schema(store, path, tail)
            spans, rows = _stream_batches(store, path, tail.size)
    groups = np.zeros((len(rows), 4), dtype=np.int64)
    groups[:, 0] = rows
    groups[:, 2:] = np.array(spans, dtype=np.int64).reshape(-1, 2)
    groups[:, 1] = groups[:, 3] * projected_part(schema, request.columns)
    return FileScan(groups=groups, size=tail.size, identity=tail.identity, schema=schema)


def _from_footer(store: Store, path: str, tail: Tail) -> Buffer:
    """The end of a file in the file format, with at least all of its footer."""
    (length,) = struct.unpack_from("<i", tail.data, len(tail.data) - len(_MAGIC) - 4)
    need = length + 4 + len(_MAGIC)
    if not 0 < need <= tail.size:
        raise corrupt(path, f"the footer claims {length} bytes of a file of {tail.size}")
    return tail.data if need <= len(tail.data) else store.tail(path, need).data


def _file_schema(end: Buffer, size: int) -> pa.Schema:
    """The footer's schema. The one at the start of the file is not looked at: polars writes it without its length."""
    return pa.ipc.open_file(SparseFile([(size - len(end), len(end))], [end], size)).schema


def _file_batches(store: Store, path: str, tail: Tail, end: Buffer) -> tuple[list[Span], list[int]]:
    stop = len(end) - len(_MAGIC) - 4
    (length,) = struct.unpack_from("<i", end, stop)
    footer = memoryview(end)[stop - length : stop]
    blocks = list(_Table.root(footer).structs(_FOOTER_BATCHES, "<qi4xq"))
    if any(offset < 0 or head < 0 or body < 0 or offset + head + body > tail.size for offset, head, body in blocks):
        raise corrupt(path, f"a record batch lies outside the file of {tail.size} bytes")
    headers = store.ranges(path, [(offset, head) for offset, head, _ in blocks], tail.identity)
    rows = [_message_rows(header) for header in headers]
    return [(offset, head + body) for offset, head, body in blocks], [row or 0 for row, _ in rows]


def _stream_schema(store: Store, path: str, tail: Tail) -> pa.Schema:
    head = store.ranges(path, [(0, min(_HEAD_BYTES, tail.size))], tail.identity)[0]
    if bytes(head[: len(_FEATHER_V1_MAGIC)]) == _FEATHER_V1_MAGIC:
        raise UnsupportedFeatureError(
            f"{redact(path)} is a Feather V1 file, which is not supported. Read it with pyarrow.feather and write it "
            "again as Feather V2, which is the Arrow IPC file format."
        )
    length, prefix = _metadata_length(head)
    if prefix + length > len(head):
        if prefix + length > tail.size:
            raise corrupt(path, f"the schema claims {length} bytes of a file of {tail.size}")
        head = store.ranges(path, [(0, prefix + length)], tail.identity)[0]
    return pa.ipc.read_schema(pa.py_buffer(head))


def _stream_batches(store: Store, path: str, size: int) -> tuple[list[Span], list[int]]:
    spans, rows, position = [], [], 0
    while position + 8 <= size:
        (window,) = store.ranges(path, [(position, min(_HEAD_BYTES, size - position))])
        length, prefix = _metadata_length(window)
        if length == 0:  # end of stream
            break
        if length < 0 or position + prefix + length > size:
            raise corrupt(path, f"a message at byte {position} claims {length} bytes of a file of {size}")
        if prefix + length > len(window):
            (window,) = store.ranges(path, [(position, prefix + length)])
        count, body = _message_rows(window[: prefix + length])
        if body < 0:
            raise corrupt(path, f"a message at byte {position} claims a body of {body} bytes")
        total = prefix + length + body
        if count is not None:
            spans.append((position, total))
            rows.append(count)
        position += total
    return spans, rows


def _message_rows(message: Buffer) -> tuple[int | None, int]:
    """Rows of an encapsulated record batch message (None for another kind of message), and its body's bytes."""
    length, prefix = _metadata_length(message)
    table = _Table.root(memoryview(message)[prefix : prefix + length])
    body_bytes = table.number(_MESSAGE_BODY_BYTES, "<q")
    if table.number(_MESSAGE_KIND, "<B") != _KIND_RECORD_BATCH:
        return None, body_bytes
    return table.table(_MESSAGE_HEADER).number(_BATCH_ROWS, "<q"), body_bytes


def _metadata_length(message: Buffer) -> tuple[int, int]:
    """Length of the metadata and of what comes before it; writers before Arrow 0.15 left the continuation out."""
    (first,) = struct.unpack_from("<I", message)
    if first != _CONTINUATION:
        return first, 4
    return struct.unpack_from("<i", message, 4)[0], 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A flatbuffer table: fields by slot, 0 where absent. Reads outside the buffer raise struct.error."""

    data: memoryview
    position: int

    @classmethod
    def root(cls, data: memoryview) -> "_Table":
        return cls(data=data, position=struct.unpack_from("<I", data)[0])

    def number(self, slot: int, layout: str) -> int:
        place = self._place(slot)
        return int(struct.unpack_from(layout, self.data, place)[0]) if place else 0

    def table(self, slot: int) -> "_Table":
        place = self._place(slot)
        return _Table(data=self.data, position=place + struct.unpack_from("<I", self.data, place)[0])

    def structs(self, slot: int, layout: str) -> Iterator[tuple[int, ...]]:
        place = self._place(slot)
        if place:
            place += struct.unpack_from("<I", self.data, place)[0]
            (count,) = struct.unpack_from("<I", self.data, place)
            step = struct.calcsize(layout)
            if place + 4 + count * step > len(self.data):
                raise ValueError(f"a vector of {count} blocks runs over the end of the footer")
            yield from struct.iter_unpack(layout, self.data[place + 4 : place + 4 + count * step])

    def _place(self, slot: int) -> int:
        vtable = self.position - struct.unpack_from("<i", self.data, self.position)[0]
        if vtable < 0:
            raise ValueError("a flatbuffer table points before its buffer")
        (vtable_bytes,) = struct.unpack_from("<H", self.data, vtable)
        entry = 4 + 2 * slot
        offset = struct.unpack_from("<H", self.data, vtable + entry)[0] if entry < vtable_bytes else 0
        return self.position + offset if offset else 0
