"""Thrift's compact protocol, as far as Parquet footers need it: skips values, reads and writes numbers and texts.

A field is (step from the id before it << 4 | type), then its value; a list is (length << 4 | type of its items), then
the items. Source: Apache Thrift, "Thrift Compact protocol encoding".
"""

from enum import IntEnum

from torch_dataloader_utils._formats.varint import read_varint, write_varint


class Type(IntEnum):
    """Types of values."""

    TRUE = 1
    FALSE = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    MAP = 11
    STRUCT = 12


END_OF_STRUCT = b"\0"

_LONG_LIST = 15


def skip(data: bytes, start: int, kind: int) -> int:
    """The end of the value that begins at byte `start`.

    Raises:
        IndexError: it goes on after the data.
        ValueError: the bytes are no value of this type.
        RecursionError: it is nested too deep.
    """
    match kind:
        case Type.TRUE | Type.FALSE:  # in a field, where the type is the value
            return start
        case Type.INT8:
            return _within(data, start + 1)
        case Type.INT16 | Type.INT32 | Type.INT64:
            return read_varint(data, start)[1]
        case Type.DOUBLE:
            return _within(data, start + 8)
        case Type.BINARY:
            length, start = read_varint(data, start)
            return _within(data, start + length)
        case Type.LIST | Type.SET:
            return _skip_list(data, start)
        case Type.MAP:
            return _skip_map(data, start)
        case Type.STRUCT:
            return _skip_struct(data, start)
        case _:
            raise ValueError(f"no type: {kind}")


def _skip_struct(data: bytes, start: int) -> int:
    while header := data[start]:
        start += 1
        if not header >> 4:  # the id itself, not a step
            start = read_varint(data, start)[1]
        start = skip(data, start, header & 15)
    return start + 1


def _skip_list(data: bytes, start: int) -> int:
    length, kind, start = _read_list(data, start)
    for _ in range(length):
        start = skip(data, start, kind)
    return start


def _skip_map(data: bytes, start: int) -> int:
    length, start = read_varint(data, start)
    if not length:
        return start
    kinds, start = data[start], start + 1
    _within(data, start + 2 * length)
    for _ in range(length):
        start = skip(data, start, _of_items(kinds >> 4))
        start = skip(data, start, _of_items(kinds & 15))
    return start


def _of_items(kind: int) -> int:
    """The type as it is in lists, where booleans take a byte."""
    return Type.INT8 if kind in (Type.TRUE, Type.FALSE) else kind


def _within(data: bytes, stop: int) -> int:
    if stop > len(data):
        raise IndexError(f"byte {stop} of {len(data)}")
    return stop


def _read_list(data: bytes, start: int) -> tuple[int, int, int]:
    """(length, type of the items, start of the first item) of the list that begins at byte `start`.

    Raises:
        IndexError: it goes on after the data. ValueError: it is longer than any number is.
    """
    header, start = data[start], start + 1
    length = header >> 4
    if length == _LONG_LIST:
        length, start = read_varint(data, start)
    _within(data, start + length)  # no item is shorter than a byte
    return length, _of_items(header & 15), start


def read_integer(data: bytes, start: int = 0) -> int:
    """The integer, of any width, that begins at byte `start`; raises as `read_varint`."""
    number, _ = read_varint(data, start)
    return number >> 1 ^ -(number & 1)


def write_field(step: int, kind: int) -> bytes:
    """The header of a field whose id is that of the field before it and `step`."""
    return bytes([step << 4 | kind])


def write_list(length: int, kind: int) -> bytes:
    """The header of a list."""
    if length < _LONG_LIST:
        return bytes([length << 4 | kind])
    return bytes([_LONG_LIST << 4 | kind]) + write_varint(length)


def write_integer(value: int) -> bytes:
    """An integer of any width, not negative."""
    return write_varint(value << 1)


def write_binary(value: bytes) -> bytes:
    """Bytes, or a text in UTF-8."""
    return write_varint(len(value)) + value
