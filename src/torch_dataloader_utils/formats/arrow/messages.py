"""Messages of Arrow IPC streams and files: kind and place of each message, from its head, without reading bodies.

Source: the Arrow columnar format specification, "Encapsulated message format" and "IPC Streaming Format", and
format/File.fbs, Message.fbs. pyarrow gives row counts and dictionary ids only for loaded messages, so this module reads
the few needed flatbuffer fields.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

# Bytes read at once for the head of a message; only tables of many hundred columns have longer heads.
_HEAD_BYTES = 64 << 10

_CONTINUATION = 0xFFFF_FFFF

# Slots of flatbuffer tables.
_MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY_BYTES = 1, 2, 3
_SCHEMA_IS_BIG_ENDIAN = 0
_BATCH_ROWS, _BATCH_COLUMNS = 0, 1
_DICTIONARY_ID, _DICTIONARY_IS_DELTA = 0, 2
_KIND_SCHEMA, _KIND_DICTIONARY, _KIND_RECORD_BATCH = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One encapsulated message, the bytes [start, stop) of a file.

    kind: Kind of content, as Message.fbs numbers it. num_rows: Rows of a record batch, else None. dictionary: Id of a
    dictionary batch's dictionary, else None. is_delta: Whether a dictionary batch adds values; else it replaces them.
    is_big_endian: Whether a schema says that the numbers in the following bodies are big-endian.
    """

    start: int
    stop: int
    kind: int
    num_rows: int | None = None
    dictionary: int | None = None
    is_delta: bool = False
    is_big_endian: bool = False


def stream_messages(read: Callable[[int, int], bytes | memoryview], start: int, stop: int) -> Iterator[Message]:
    """Yield the messages of a stream in its bytes [start, stop), up to its end mark, which may be missing.

    `read(offset, length)` returns bytes of the stream: 64 KiB at once, so that many small messages take one read.

    Raises:
        ArrowInvalid: the bytes are not messages, a message ends after `stop`, the stream's first message is not a
            schema, a later message is neither a dictionary nor a record batch, or bytes follow the end mark.
    """
    window = _Window(read, stop)
    while start < stop:
        length, prefix = metadata_length(window.get(start, min(8, stop - start)))
        if length == 0:
            if start + prefix != stop:
                raise pa.ArrowInvalid(f"the stream ends at byte {start}, and {stop - start - prefix} bytes follow")
            return
        if length < 0 or start + prefix + length > stop:
            raise pa.ArrowInvalid(f"a message at byte {start} claims {length} bytes, and {stop - start} are left")
        message = read_head(window.get(start, prefix + length), start)
        if message.stop > stop:
            raise pa.ArrowInvalid(f"the message of bytes {start} to {message.stop} ends after byte {stop}")
        if message.kind not in ((_KIND_SCHEMA,) if start == 0 else (_KIND_DICTIONARY, _KIND_RECORD_BATCH)):
            raise pa.ArrowInvalid(f"the message at byte {start} is of kind {message.kind}, which has no place there")
        yield message
        start = message.stop


class _Window:
    """Bytes of a file before `stop`, from front to back; read ahead."""

    def __init__(self, read: Callable[[int, int], bytes | memoryview], stop: int) -> None:
        self._read = read
        self._stop = stop
        self._start = 0
        self._data = memoryview(b"")

    def get(self, start: int, length: int) -> memoryview:
        if start + length > self._start + len(self._data):
            self._data = memoryview(self._read(start, min(max(length, _HEAD_BYTES), self._stop - start)))
            self._start = start
        return self._data[start - self._start :][:length]


def read_head(head: bytes | memoryview, start: int) -> Message:
    """Return the message that begins at byte `start` of its file; head: Bytes of the message before its body.

    Raises:
        ArrowInvalid: the bytes are not a message.
    """
    try:
        length, prefix = metadata_length(head)
        table = FlatTable.root(memoryview(head)[prefix : prefix + length])
        body_bytes = table.number(_MESSAGE_BODY_BYTES, "<q")
        if body_bytes < 0:
            raise ValueError(f"a body of {body_bytes} bytes")
        kind, header = table.number(_MESSAGE_KIND, "<B"), table.table(_MESSAGE_HEADER)
        is_dictionary = kind == _KIND_DICTIONARY
        return Message(
            start=start,
            stop=start + prefix + length + body_bytes,
            kind=kind,
            num_rows=_batch_rows(header) if kind == _KIND_RECORD_BATCH else None,
            dictionary=header.number(_DICTIONARY_ID, "<q") if is_dictionary else None,
            is_delta=is_dictionary and header.number(_DICTIONARY_IS_DELTA, "<B") != 0,
            is_big_endian=kind == _KIND_SCHEMA and header.number(_SCHEMA_IS_BIG_ENDIAN, "<h") != 0,
        )
    except (struct.error, ValueError) as error:
        raise pa.ArrowInvalid(f"the message at byte {start} does not decode: {error}") from error


def _batch_rows(header: "FlatTable") -> int:
    """Return the rows of a record batch; raise ValueError unless its first column, if any, has as many rows."""
    num_rows = header.number(_BATCH_ROWS, "<q")
    for column_rows, _ in header.structs(_BATCH_COLUMNS, "<qq"):
        if column_rows != num_rows:
            raise ValueError(f"{num_rows} rows, and {column_rows} in the first column")
        break
    return num_rows


def metadata_length(message: bytes | memoryview) -> tuple[int, int]:
    """Return the lengths of a message's metadata and of the prefix before it (shorter before Arrow 0.15).

    Raises:
        ArrowInvalid: the prefix is cut.
    """
    try:
        (first,) = struct.unpack_from("<I", message)
        if first != _CONTINUATION:
            return first, 4
        return struct.unpack_from("<i", message, 4)[0], 8
    except struct.error as error:
        raise pa.ArrowInvalid(f"{len(message)} bytes are not a message") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatTable:
    """Flatbuffer table: fields by slot, 0 where absent. Reads outside the buffer raise struct.error."""

    data: memoryview
    position: int

    @classmethod
    def root(cls, data: memoryview) -> "FlatTable":
        """Return the table at the start of a buffer."""
        return cls(data=data, position=struct.unpack_from("<I", data)[0])

    def number(self, slot: int, layout: str) -> int:
        """Return a number; layout: Struct format of the number."""
        place = self._place(slot)
        return int(struct.unpack_from(layout, self.data, place)[0]) if place else 0

    def table(self, slot: int) -> "FlatTable":
        """Return a table that this table refers to."""
        place = self._place(slot)
        return FlatTable(data=self.data, position=place + struct.unpack_from("<I", self.data, place)[0])

    def structs(self, slot: int, layout: str) -> Iterator[tuple[int, ...]]:
        """Yield the entries of a vector of structs."""
        place = self._place(slot)
        if place:
            place += struct.unpack_from("<I", self.data, place)[0]
            (count,) = struct.unpack_from("<I", self.data, place)
            step = struct.calcsize(layout)
            if place + 4 + count * step > len(self.data):
                raise ValueError(f"a vector of {count} structs runs over the end of its buffer")
            yield from struct.iter_unpack(layout, self.data[place + 4 : place + 4 + count * step])

    def _place(self, slot: int) -> int:
        vtable = self.position - struct.unpack_from("<i", self.data, self.position)[0]
        if vtable < 0:
            raise ValueError("a flatbuffer table points before its buffer")
        (vtable_bytes,) = struct.unpack_from("<H", self.data, vtable)
        entry = 4 + 2 * slot
        offset = struct.unpack_from("<H", self.data, vtable + entry)[0] if entry < vtable_bytes else 0
        return self.position + offset if offset else 0
