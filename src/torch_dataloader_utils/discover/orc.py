"""Scans ORC files: rows and bytes of each stripe, from the file tail.

pyarrow has no API for them, but gives the decoded tail as protobuf bytes, which have both in three message types (ORC
specification v1, "File Tail").
"""

from collections.abc import Iterator

import numpy as np
import pyarrow.orc as pa_orc

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.varint import read_varint
from torch_dataloader_utils._store import TAIL_BYTES, Buffer, FileEntry, SparseFile, Store, Tail
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.discover.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.discover.schemas import projected_part

# Field numbers: PostScript, FileTail, Footer, StripeInformation.
_POSTSCRIPT_FOOTER_BYTES, _POSTSCRIPT_METADATA_BYTES = 1, 5
_TAIL_FOOTER = 2
_FOOTER_STRIPE = 3
_STRIPE_OFFSET, _STRIPE_INDEX, _STRIPE_DATA, _STRIPE_FOOTER, _STRIPE_ROWS = 1, 2, 3, 4, 5


def scan_orc(store: Store, item: ScanItem, request: ScanRequest) -> FileScan:
    """The stripes that the tail lists; statistics are not used.

    projected_bytes is an estimate: the stripe's stored bytes times the share of columns that is projected.

    Raises:
        CorruptFileError: no tail, or stripes that do not add up to the file.
    """
    path = item.entry.path
    tail = _read_tail(store, item.entry)
    with decoding(path, "ORC tail"):
        start = tail.size - len(tail.data)
        file = pa_orc.ORCFile(SparseFile([(start, len(tail.data))], [tail.data], tail.size))
        schema = file.schema
        rows = _stripe_rows(file.reader.serialized_file_tail(), projected_part(schema, request.columns))
        if len(rows) != file.nstripes or rows[:, 0].sum() != file.nrows:
            raise corrupt(path, f"the tail says {file.nrows} rows in {file.nstripes} stripes, which do not add up")
    return FileScan(groups=rows, size=tail.size, identity=tail.identity, schema=schema)


def _read_tail(store: Store, entry: FileEntry) -> Tail:
    tail = store.tail(entry.path, TAIL_BYTES, entry.stat)
    with decoding(entry.path, "ORC postscript"):
        postscript_bytes = tail.data[-1]
        postscript = dict(_fields(memoryview(tail.data)[-1 - postscript_bytes : -1]))
        sections = (postscript.get(number, 0) for number in (_POSTSCRIPT_FOOTER_BYTES, _POSTSCRIPT_METADATA_BYTES))
        need = 1 + postscript_bytes + sum(_number(value) for value in sections)
    if need > tail.size:
        raise corrupt(entry.path, f"the tail claims {need} bytes of a file of {tail.size}")
    return tail if need <= len(tail.data) else store.tail(entry.path, max(need, TAIL_BYTES), entry.stat)


def _stripe_rows(file_tail: bytes, part: float) -> Int64s:
    footer = next(value for number, value in _fields(memoryview(file_tail)) if number == _TAIL_FOOTER)
    stripes = [
        dict(_fields(_message(value))) for number, value in _fields(_message(footer)) if number == _FOOTER_STRIPE
    ]
    rows = np.zeros((len(stripes), 4), dtype=np.int64)
    for index, stripe in enumerate(stripes):
        parts = [_number(stripe.get(number, 0)) for number in (_STRIPE_INDEX, _STRIPE_DATA, _STRIPE_FOOTER)]
        rows[index] = (
            _number(stripe.get(_STRIPE_ROWS, 0)),
            int(parts[1] * part),
            _number(stripe.get(_STRIPE_OFFSET, 0)),
            sum(parts),
        )
    return rows


def _fields(message: Buffer) -> Iterator[tuple[int, "int | Buffer"]]:
    """The fields of a protobuf message: (number, value); sub-messages and strings as views.

    Source: protobuf encoding, wire types 0 (varint), 1 (64 bit), 2 (length-delimited) and 5 (32 bit).
    """
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        match tag & 7:
            case 0:
                value, position = read_varint(message, position)
                yield tag >> 3, value
            case 1 | 5 as kind:
                position += 8 if kind == 1 else 4
            case 2:
                length, position = read_varint(message, position)
                if position + length > len(message):
                    raise ValueError(f"a field of {length} bytes runs over the end of its message")
                yield tag >> 3, message[position : position + length]
                position += length
            case kind:
                raise ValueError(f"protobuf wire type {kind}")


def _message(value: "int | Buffer") -> Buffer:
    if isinstance(value, int):
        raise ValueError("a protobuf message has the wire type of a number")
    return value


def _number(value: "int | Buffer") -> int:
    if not isinstance(value, int):
        raise ValueError("a protobuf number has the wire type of a string")
    return value
