"""Scans ORC files: rows and bytes of each stripe, from the file tail.

pyarrow has no API for them, but gives the decoded tail as protobuf bytes, which have both in three message types (ORC
specification v1, "File Tail").
"""

from collections.abc import Iterator

import numpy as np
import pyarrow.orc as pa_orc

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._store import TAIL_BYTES, Buffer, FileEntry, SparseFile, Store, Tail
from torch_dataloader_utils.discover.decode_errors import corrupt, decoding
from torch_dataloader_utils.discover.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.discover.schemas import projected_part

Message = bytes | memoryview

# Wire types.
_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}

_MOST_VARINT_BYTES = 10


def _read_varint(data: Message, start: int) -> tuple[int, int]:
    """The number that begins at byte `start`, and where it ends: seven bits a byte, the lowest first.

    The highest bit of a byte says that another one follows.

        127 -> 7f      128 -> 80 01      300 -> ac 02

    Raises:
        IndexError: it goes on after the data.
        ValueError: it is longer than any number is.
    """
    number = 0
    for place in range(_MOST_VARINT_BYTES):
        byte = data[start + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, start + place + 1
    raise ValueError(f"a number of more than {_MOST_VARINT_BYTES} bytes")


def read_field(message: Message, start: int) -> tuple[int, int | Message, int]:
    """The field that begins at byte `start`: (number, value, where it ends).

    The value is a number, or for anything else (texts, messages, numbers of a fixed width) its bytes.

    Raises:
        IndexError: the field goes on after the message.
        ValueError: the bytes are not a field.
    """
    tag, start = _read_varint(message, start)
    kind = tag & 7
    if kind == _VARINT:
        value, stop = _read_varint(message, start)
        return tag >> 3, value, stop
    if kind == _LENGTH:
        length, start = _read_varint(message, start)
    elif kind in _FIXED_BYTES:
        length = _FIXED_BYTES[kind]
    else:
        raise ValueError(f"protobuf wire type {kind}")
    if start + length > len(message):
        raise IndexError(f"a field of {length} bytes runs over the end of its message")
    return tag >> 3, message[start : start + length], start + length


def fields(message: Message) -> Iterator[tuple[int, int | Message]]:
    """The fields of a message: (number, value); raises as `read_field`."""
    start = 0
    while start < len(message):
        number, value, start = read_field(message, start)
        yield number, value


def as_message(value: int | Message) -> Message:
    """The value of a field that is a message; raises ValueError for a number."""
    if isinstance(value, int):
        raise ValueError("a protobuf message has the wire type of a number")
    return value


def as_number(value: int | Message) -> int:
    """The value of a field that is a number; raises ValueError for anything else."""
    if not isinstance(value, int):
        raise ValueError("a protobuf number has the wire type of a string")
    return value


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


def footer_bytes(tail: Buffer) -> int:
    """Bytes of the file tail (metadata, footer and postscript), as the end of a file says; may be more than `tail`.

    Raises:
        ValueError, IndexError: the file does not end with a postscript.
    """
    postscript_bytes = tail[-1]
    postscript = dict(fields(memoryview(tail)[-1 - postscript_bytes : -1]))
    sections = (postscript.get(number, 0) for number in (_POSTSCRIPT_FOOTER_BYTES, _POSTSCRIPT_METADATA_BYTES))
    return 1 + postscript_bytes + sum(as_number(value) for value in sections)


def _read_tail(store: Store, entry: FileEntry) -> Tail:
    tail = store.tail(entry.path, TAIL_BYTES, entry.stat)
    with decoding(entry.path, "ORC postscript"):
        need = footer_bytes(tail.data)
    if need > tail.size:
        raise corrupt(entry.path, f"the tail claims {need} bytes of a file of {tail.size}")
    return tail if need <= len(tail.data) else store.tail(entry.path, max(need, TAIL_BYTES), entry.stat)


def _stripe_rows(file_tail: bytes, part: float) -> Int64s:
    footer = next(value for number, value in fields(memoryview(file_tail)) if number == _TAIL_FOOTER)
    stripes = [
        dict(fields(as_message(value))) for number, value in fields(as_message(footer)) if number == _FOOTER_STRIPE
    ]
    rows = np.zeros((len(stripes), 4), dtype=np.int64)
    for index, stripe in enumerate(stripes):
        parts = [as_number(stripe.get(number, 0)) for number in (_STRIPE_INDEX, _STRIPE_DATA, _STRIPE_FOOTER)]
        rows[index] = (
            as_number(stripe.get(_STRIPE_ROWS, 0)),
            int(parts[1] * part),
            as_number(stripe.get(_STRIPE_OFFSET, 0)),
            sum(parts),
        )
    return rows
