"""Protobuf messages, as far as the tails of ORC files need them: walks over fields, writes numbers and byte strings.

A field is (number << 3 | wire type), then its value. Source: protobuf, "Encoding".
"""

from collections.abc import Iterator

from torch_dataloader_utils._core.varint import read_varint, write_varint

Message = bytes | memoryview

# Wire types.
_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}


def read_field(message: Message, start: int) -> tuple[int, int | Message, int]:
    """The field that begins at byte `start`: (number, value, where it ends).

    The value is a number, or for anything else (texts, messages, numbers of a fixed width) its bytes.

    Raises:
        IndexError: the field goes on after the message.
        ValueError: the bytes are no field.
    """
    tag, start = read_varint(message, start)
    kind = tag & 7
    if kind == _VARINT:
        value, stop = read_varint(message, start)
        return tag >> 3, value, stop
    if kind == _LENGTH:
        length, start = read_varint(message, start)
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


def write_number(number: int, value: int) -> bytes:
    """A field whose value is a number, not negative."""
    return write_varint(number << 3 | _VARINT) + write_varint(value)


def write_bytes(number: int, value: Message) -> bytes:
    """A field whose value is a text or a message."""
    return write_varint(number << 3 | _LENGTH) + write_varint(len(value)) + value
