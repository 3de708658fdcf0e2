"""Scan of Arrow IPC files: their record batches are row groups, found by block headers without reading bodies.

Source: the Arrow columnar format specification, "IPC File Format" and "IPC Streaming Format", and format/File.fbs.
"""

import logging
import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._store import TAIL_BYTES, Buffer, FileStat, Span, SparseFile, Store, Tail, redact
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.formats.arrow.messages import FlatTable, metadata_length, read_head, stream_messages
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.schemas import projected_part

Read = Callable[[int, int], Buffer]

_HEAD_BYTES = 64 << 10

_MAGIC = b"ARROW1"
_FEATHER_V1_MAGIC = b"FEA1"

# Slot of the footer's flatbuffer table.
_FOOTER_BATCHES = 3

_log = logging.getLogger(__name__)


def scan_arrow(store: Store, item: ScanItem, request: ScanRequest) -> FileScan:
    """Return the scan of the record batches of a file in the file format (also called Feather v2) or the stream format.

    projected_bytes is an estimate: stored bytes times the share of columns that is projected. The stream format has no
    footer, so each batch costs one more read (small batches share a read).

    Raises:
        CorruptFileError: neither of the two formats, or messages that are cut, missing or outside the file.
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
            read = _reader(store, path, tail)
            schema = _stream_schema(read, path, tail.size)
            spans, rows = _stream_batches(read, path, tail.size)
    groups = np.zeros((len(rows), 4), dtype=np.int64)
    groups[:, 0] = rows
    groups[:, 2:] = np.array(spans, dtype=np.int64).reshape(-1, 2)
    groups[:, 1] = groups[:, 3] * projected_part(schema, request.columns)
    return FileScan(groups=groups, size=tail.size, identity=tail.identity, schema=schema)


def footer_bytes(tail: Buffer) -> int:
    """Return the bytes from the footer to the end of the file, as the end of the file says; 0 in the stream format."""
    if bytes(tail[-len(_MAGIC) :]) != _MAGIC:
        return 0
    (length,) = struct.unpack_from("<i", tail, len(tail) - len(_MAGIC) - 4)
    return int(length) + 4 + len(_MAGIC)


def _from_footer(store: Store, path: str, tail: Tail) -> Buffer:
    """Return the end of a file in the file format, with at least the whole footer."""
    need = footer_bytes(tail.data)
    if not 0 < need <= tail.size:
        raise corrupt(path, f"the footer claims {need - 4 - len(_MAGIC)} bytes of a file of {tail.size}")
    if need <= len(tail.data):
        return tail.data
    return store.tail(path, need, FileStat(size=tail.size, identity=tail.identity)).data


def _file_schema(end: Buffer, size: int) -> pa.Schema:
    """Return the footer's schema. polars writes the schema at the start of the file without its length."""
    return pa.ipc.open_file(SparseFile([(size - len(end), len(end))], [end], size)).schema


def _file_batches(store: Store, path: str, tail: Tail, end: Buffer) -> tuple[list[Span], list[int]]:
    stop = len(end) - len(_MAGIC) - 4
    (length,) = struct.unpack_from("<i", end, stop)
    footer = memoryview(end)[stop - length : stop]
    blocks = list(FlatTable.root(footer).structs(_FOOTER_BATCHES, "<qi4xq"))
    if any(offset < 0 or head < 0 or body < 0 or offset + head + body > tail.size for offset, head, body in blocks):
        raise corrupt(path, f"a record batch lies outside the file of {tail.size} bytes")
    headers = store.ranges(path, [(offset, head) for offset, head, _ in blocks], tail.identity)
    rows = []
    for header, (offset, _, _) in zip(headers, blocks, strict=True):
        num_rows = read_head(header, offset).num_rows
        if num_rows is None:
            raise corrupt(path, f"the footer names a record batch at byte {offset}, where there is none")
        rows.append(num_rows)
    return [(offset, head + body) for offset, head, body in blocks], rows


def _reader(store: Store, path: str, tail: Tail) -> Read:
    """Return `read(offset, length)` of a stream. Its end is fetched already; its start is fetched once."""

    def fetch(offset: int, length: int) -> Buffer:
        start = offset - (tail.size - len(tail.data))
        if start >= 0:
            return memoryview(tail.data)[start : start + length]
        return store.ranges(path, [(offset, length)], tail.identity)[0]

    head = memoryview(fetch(0, min(_HEAD_BYTES, tail.size)))

    def read(offset: int, length: int) -> Buffer:
        return head[offset : offset + length] if offset + length <= len(head) else fetch(offset, length)

    return read


def _stream_schema(read: Read, path: str, size: int) -> pa.Schema:
    head = read(0, min(_HEAD_BYTES, size))
    if bytes(head[: len(_FEATHER_V1_MAGIC)]) == _FEATHER_V1_MAGIC:
        raise UnsupportedFeatureError(
            f"{redact(path)} is a Feather V1 file, which is not supported. Read it with pyarrow.feather and write it "
            "again as Feather V2, which is the Arrow IPC file format."
        )
    length, prefix = metadata_length(head)
    if prefix + length > len(head):
        if prefix + length > size:
            raise corrupt(path, f"the schema claims {length} bytes of a file of {size}")
        head = read(0, prefix + length)
    return pa.ipc.read_schema(pa.py_buffer(head))


def _stream_batches(read: Read, path: str, size: int) -> tuple[list[Span], list[int]]:
    spans, rows = [], []
    for message in stream_messages(read, 0, size):
        if message.num_rows is not None:
            spans.append((message.start, message.stop - message.start))
            rows.append(message.num_rows)
    if message.stop == size:
        if message.dictionary is not None:
            raise corrupt(path, f"it ends at byte {size} with a dictionary, and no record batch follows")
        _log.warning(
            "%s has no end mark, as Arrow allows; a stream cut between two batches looks the same", redact(path)
        )
    return spans, rows
