"""ORC files: the scan of their stripes from the file tail, and the decoding of one stripe.

pyarrow gives the decoded tail as protobuf bytes; three of its message types have the rows and bytes of each stripe.

Source: ORC specification v1, "File Tail" and "Stripes"; pyarrow.orc.ORCFile.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import orc

from torch_dataloader_utils._arrow.batches import rows_only
from torch_dataloader_utils._arrow.schema import field_paths
from torch_dataloader_utils._core.inventory import FileFormat, Int64s
from torch_dataloader_utils._store import TAIL_BYTES, Buffer, FileEntry, SparseFile, Store, Tail
from torch_dataloader_utils.formats.checks import check_all_decoded, check_decoded_size, check_unique, repeated_names
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_format import Format
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.schemas import projected_part
from torch_dataloader_utils.formats.task_source import TaskSource

Message = bytes | memoryview

# Field numbers: PostScript, FileTail, Footer, StripeInformation.
_POSTSCRIPT_FOOTER_BYTES, _POSTSCRIPT_METADATA_BYTES = 1, 5
_TAIL_FOOTER = 2
_FOOTER_STRIPE = 3
_STRIPE_OFFSET, _STRIPE_INDEX, _STRIPE_DATA, _STRIPE_FOOTER, _STRIPE_ROWS = 1, 2, 3, 4, 5

# Wire types.
_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}

_MOST_VARINT_BYTES = 10


def scan_orc(store: Store, item: ScanItem, request: ScanRequest) -> FileScan:
    """Return the scan of the stripes that the tail lists. Statistics are not used.

    projected_bytes is an estimate: the stripe's stored bytes times the share of columns that is projected.

    Raises:
        CorruptFileError: no tail, or stripes that do not add up to the file.
    """
    path = item.entry.path
    tail = _read_tail(store, item.entry)
    with decoding(path, "ORC tail"):
        start = tail.size - len(tail.data)
        file = orc.ORCFile(SparseFile([(start, len(tail.data))], [tail.data], tail.size))
        schema = file.schema
        rows = _stripe_rows(file.reader.serialized_file_tail(), projected_part(schema, request.columns))
        if len(rows) != file.nstripes or rows[:, 0].sum() != file.nrows:
            raise corrupt(path, f"the tail says {file.nrows} rows in {file.nstripes} stripes, which do not add up")
    return FileScan(groups=rows, size=tail.size, identity=tail.identity, schema=schema)


def footer_bytes(tail: Buffer) -> int:
    """Return the bytes of the file tail (metadata, footer, postscript), as the end of a file says. May exceed `tail`.

    Raises:
        ValueError, IndexError: the file does not end with a postscript.
    """
    postscript_bytes = tail[-1]
    postscript = dict(read_fields(memoryview(tail)[-1 - postscript_bytes : -1]))
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
    footer = next(value for number, value in read_fields(memoryview(file_tail)) if number == _TAIL_FOOTER)
    stripes = [
        dict(read_fields(as_message(value)))
        for number, value in read_fields(as_message(footer))
        if number == _FOOTER_STRIPE
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


def decode_orc(source: TaskSource, fields: pa.Schema) -> pa.RecordBatch:
    """Return the rows of one stripe, with the columns of `fields` that the file has, in the file's types and order.

    A remote stripe is fetched whole, in one range (`task.byte_offset`, `byte_length`): its streams lie side by side,
    and would be dozens of requests. To count rows without columns, one column is decoded, since a stripe without
    columns decodes to no rows.

    Raises:
        UnsupportedFeatureError, SchemaError, CorruptFileError, FileChangedError; and every error of pyarrow.
    """
    task = source.task
    with source.open(lambda: [source.tail_span(), (task.byte_offset, task.byte_length)]) as file:
        stripes = orc.ORCFile(file)
        names, batch = _decoded(source, stripes, fields)
    check_all_decoded(task, names, batch)
    check_decoded_size(task, batch.nbytes, source.max_row_group_bytes)
    return batch if names else rows_only(batch.num_rows)


def orc_schema(source: TaskSource) -> pa.Schema:
    """Return the file's own Arrow schema, with ORC's type attributes as metadata."""
    with source.open(lambda: [source.tail_span()]) as file:
        return orc.ORCFile(file).schema


def _decoded(source: TaskSource, stripes: orc.ORCFile, fields: pa.Schema) -> tuple[list[str], pa.RecordBatch]:
    """Return the columns of the task's stripe, and their names."""
    schema = stripes.schema
    known = set(schema.names)
    names = [field.name for field in fields if field.name in known]
    check_unique(source.task, repeated_names(schema.names), names)
    chosen = names or _cheapest(schema)
    if all(name and "." not in name for path in field_paths(schema) for name in path):
        return names, stripes.read_stripe(source.task.ordinal, columns=chosen)
    # pyarrow takes names for paths: a column "a.b" for field `b` of a struct `a`. Some other names end the process.
    return names, stripes.read_stripe(source.task.ordinal).select(chosen)


def _cheapest(schema: pa.Schema) -> list[str]:
    flat = [field.name for field in schema if pa.types.is_primitive(field.type)]
    return flat[:1] or schema.names[:1]


def _read_varint(data: Message, start: int) -> tuple[int, int]:
    """Return the number that begins at byte `start`, and its end: seven bits a byte, the lowest first.

    The highest bit of a byte says that another byte follows.

        127 -> 7f      128 -> 80 01      300 -> ac 02

    Raises:
        IndexError: the number goes on after the data.
        ValueError: the number is longer than any number is.
    """
    number = 0
    for place in range(_MOST_VARINT_BYTES):
        byte = data[start + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, start + place + 1
    raise ValueError(f"a number of more than {_MOST_VARINT_BYTES} bytes")


def read_field(message: Message, start: int) -> tuple[int, int | Message, int]:
    """Return the field that begins at byte `start`, as (number, value, end of the field).

    The value is a number or, for every other field (text, message, number of a fixed width), its bytes.

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


def read_fields(message: Message) -> Iterator[tuple[int, int | Message]]:
    """Yield (number, value) of each field of a message; raise as `read_field`."""
    start = 0
    while start < len(message):
        number, value, start = read_field(message, start)
        yield number, value


def as_message(value: int | Message) -> Message:
    """Return the value of a field that is a message; raise ValueError for a number."""
    if isinstance(value, int):
        raise ValueError("a protobuf message has the wire type of a number")
    return value


def as_number(value: int | Message) -> int:
    """Return the value of a field that is a number; raise ValueError for anything else."""
    if not isinstance(value, int):
        raise ValueError("a protobuf number has the wire type of a string")
    return value


ORC = Format(
    number=FileFormat.ORC,
    names=("orc",),
    first_bytes=b"ORC",
    scan=scan_orc,
    decode=decode_orc,
    read_schema=orc_schema,
    is_columnar=True,
)
