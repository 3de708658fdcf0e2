"""Unsigned numbers of as many bytes as they need: seven bits a byte, the lowest first, and a bit that says "one more".

    1 -> 01      127 -> 7f      128 -> 80 01      300 -> ac 02

Thrift has them in the footers of Parquet files, protobuf in the tails of ORC files.
Source: Apache Thrift, "Thrift Compact protocol encoding"; protobuf, "Encoding", base 128 varints.
"""

_MOST_BYTES = 10


def read_varint(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """The number that begins at byte `start`, and where it ends.

    Raises:
        IndexError: it goes on after the data.
        ValueError: it is longer than any number is.
    """
    number = 0
    for place in range(_MOST_BYTES):
        byte = data[start + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, start + place + 1
    raise ValueError(f"a number of more than {_MOST_BYTES} bytes")


def write_varint(number: int) -> bytes:
    """The bytes of a number, not negative."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
