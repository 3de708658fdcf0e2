"""Thrift's compact protocol, as far as Parquet footers need it: where a value ends, how numbers and texts are written.

A field is (step from the id before it << 4 | type), then its value; a list is (length << 4 | type of its items), then
the items. Source: Apache Thrift, "Thrift Compact protocol encoding".
"""

from itertools import repeat

TRUE, FALSE, INT8, INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
"""Types of values."""

END = b"\0"
"""The end of a struct."""

_LONG_LIST = 15


def end_of(data: bytes, start: int, kind: int) -> int:
    """Where the value ends that begins at byte `start`.

    Raises:
        IndexError, ValueError: the bytes are no such value.
    """
    match kind:
        case 1 | 2:  # in a field, where the type is the value
            return start
        case 3:
            return start + 1
        case 4 | 5 | 6:
            return _varint(data, start)[1]
        case 7:
            return start + 8
        case 8:
            length, start = _varint(data, start)
            return start + length
        case 9 | 10:
            return _list_end(data, start)
        case 11:
            return _map_end(data, start)
        case 12:
            return _struct_end(data, start)
        case _:
            raise ValueError(f"no type: {kind}")


def _struct_end(data: bytes, start: int) -> int:
    while header := data[start]:
        start += 1
        if not header >> 4:  # the id itself, not a step
            start = _varint(data, start)[1]
        start = end_of(data, start, header & 15)
    return start + 1


def _list_end(data: bytes, start: int) -> int:
    header, start = data[start], start + 1
    length = header >> 4
    if length == _LONG_LIST:
        length, start = _varint(data, start)
    for kind in repeat(_of_items(header & 15), length):
        start = end_of(data, start, kind)
    return start


def _map_end(data: bytes, start: int) -> int:
    length, start = _varint(data, start)
    if not length:
        return start
    kinds, start = data[start], start + 1
    for kind in (kinds >> 4, kinds & 15) * length:
        start = end_of(data, start, _of_items(kind))
    return start


def _of_items(kind: int) -> int:
    """Booleans take a byte where no field holds them."""
    return INT8 if kind in (TRUE, FALSE) else kind


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """An unsigned number, and where it ends."""
    number = shift = 0
    while True:
        byte, start = data[start], start + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, start
        shift += 7


def field(step: int, kind: int) -> bytes:
    """The header of a field whose id is that of the field before it and `step`."""
    return bytes([step << 4 | kind])


def list_of(length: int, kind: int) -> bytes:
    """The header of a list."""
    if length < _LONG_LIST:
        return bytes([length << 4 | kind])
    return bytes([_LONG_LIST << 4 | kind]) + _unsigned(length)


def number(value: int) -> bytes:
    """An integer of any width, not negative."""
    return _unsigned(value << 1)


def binary(value: bytes) -> bytes:
    """Bytes, or a text in UTF-8."""
    return _unsigned(len(value)) + value


def _unsigned(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
