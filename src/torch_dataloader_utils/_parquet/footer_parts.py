"""The parts of a Parquet footer, byte by byte: those that files from one writer share, and those that differ.

    head: version, schema · rows of the file · row groups · tail: key-value metadata, writer, column orders

The trailer follows it, which ends the file (`trailer`).

Source: parquet-format, "parquet.thrift".
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Self

from torch_dataloader_utils._core.varint import read_varint
from torch_dataloader_utils._parquet.compact_protocol import (
    Type,
    read_integer,
    read_list,
    skip,
    write_field,
)

MALFORMED = (IndexError, ValueError, RecursionError)
"""What is raised of bytes that are no footer, and of what is refused."""


class Role(Enum):
    """The role of a few bytes in a row group's description.

    SAME: equal in all files. TYPE, CODEC: of a chunk; also equal. FLAG: the header of a boolean field.
    INTEGER: differs between files. NUMBER: an integer of `RowGroupParts.numbers`.
    BYTES: differ, in the same number. TEXT: differ, also in their number.
    """

    SAME = auto()
    TYPE = auto()
    CODEC = auto()
    FLAG = auto()
    INTEGER = auto()
    NUMBER = auto()
    BYTES = auto()
    TEXT = auto()


class Piece(NamedTuple):
    """Some bytes of a row group's description."""

    role: Role
    data: bytes


_Path = tuple[int, ...]

# Roles by path: the field ids from the row group down. What is neither named here nor inside of what is just differs.
_CHUNK: _Path = (1, 3)
_TYPE: _Path = (1, 3, 1)
_ROLES = {
    _TYPE: Role.TYPE,
    (1, 3, 2): Role.SAME,  # encodings
    (1, 3, 3): Role.SAME,  # path
    (1, 3, 4): Role.CODEC,
    (1, 3, 5): Role.NUMBER,
    (1, 3, 6): Role.NUMBER,
    (1, 3, 7): Role.NUMBER,
    (1, 3, 9): Role.NUMBER,
    (1, 3, 11): Role.NUMBER,
    (2,): Role.NUMBER,
    (3,): Role.NUMBER,
}
_DICTIONARY_START: _Path = (1, 3, 11)

# Chunks in other files, and encrypted ones.
_REFUSED: frozenset[_Path] = frozenset({(1, 1), (1, 8), (1, 9)})

_BYTE_ARRAY = 6

NUMBERS_OF_CHUNK = 5
"""Values, bytes decompressed, bytes, start of the data pages, start of the dictionary page (0: there is none)."""

NUMBERS_OF_GROUP = 2
"""Bytes decompressed, rows."""


class RowGroupParts(NamedTuple):
    """A row group's description, in pieces."""

    pieces: Sequence[Piece]

    @classmethod
    def of(cls, footer: bytes, start: int) -> tuple[Self, int]:
        """The row group that begins at byte `start`, and its end.

        Raises:
            IndexError, ValueError, RecursionError: it is malformed, refused, or lacks one of its numbers.
        """
        walk = _Walk(footer)
        stop = walk.struct(start, ())
        parts = cls(walk.pieces)
        if len(parts.numbers) != len(parts.types) * NUMBERS_OF_CHUNK + NUMBERS_OF_GROUP:
            raise ValueError("a number is missing")
        return parts, stop

    @property
    def types(self) -> tuple[int, ...]:
        """The physical type of each chunk."""
        return tuple(map(read_integer, self._of(Role.TYPE)))

    @property
    def codecs(self) -> tuple[int, ...]:
        """The codec of each chunk."""
        return tuple(map(read_integer, self._of(Role.CODEC)))

    @property
    def numbers(self) -> tuple[bytes, ...]:
        """`NUMBERS_OF_CHUNK` of each chunk, then `NUMBERS_OF_GROUP`, each as it is written."""
        return tuple(self._of(Role.NUMBER))

    def _of(self, role: Role) -> list[bytes]:
        return [data for its_role, data in self.pieces if its_role is role]


class _Walk:
    """Goes through a struct, and notes its pieces."""

    def __init__(self, footer: bytes) -> None:
        self.pieces: list[Piece] = []
        self._footer = footer
        self._is_text = False
        self._has_dictionary = False

    def struct(self, place: int, path: _Path) -> int:
        """The end of the struct that begins at this place; field ids must ascend."""
        number = 0
        while header := self._footer[place]:
            if not header >> 4:
                raise ValueError("a field whose number is no step from the one before it")
            number += header >> 4
            its_path, kind = (*path, number), header & 15
            if its_path in _REFUSED:
                raise ValueError("a chunk that is not in the file, or encrypted")
            place = self._note(Role.FLAG if kind in (Type.TRUE, Type.FALSE) else Role.SAME, place, place + 1)
            place = self._value(place, kind, its_path)
        # The byte that ends the struct is 0, which read as a number means "no dictionary".
        lacks_number = path == _CHUNK and not self._has_dictionary
        if path == _CHUNK:
            self._has_dictionary = False
        return self._note(Role.NUMBER if lacks_number else Role.SAME, place, place + 1)

    def _value(self, place: int, kind: int, path: _Path) -> int:
        match kind:
            case Type.STRUCT:
                return self.struct(place, path)
            case Type.LIST:
                length, kind_of_items, start = read_list(self._footer, place)
                place = self._note(Role.SAME, place, start)
                for _ in range(length):
                    place = self._value(place, kind_of_items, path)
                return place
            case Type.BINARY:
                return self._binary(place, path)
            case Type.TRUE | Type.FALSE:
                return place
            case Type.INT8 | Type.DOUBLE:
                return self._note(Role.BYTES, place, skip(self._footer, place, kind))
            case Type.INT16 | Type.INT32 | Type.INT64:
                return self._integer(place, path)
        raise ValueError(f"a type that footers do not have: {kind}")

    def _integer(self, place: int, path: _Path) -> int:
        number, stop = read_varint(self._footer, place)
        if path == _TYPE:
            self._is_text = number >> 1 == _BYTE_ARRAY
        self._has_dictionary |= path == _DICTIONARY_START
        return self._note(_ROLES.get(path[:3], Role.INTEGER), place, stop)

    def _binary(self, place: int, path: _Path) -> int:
        _, start = read_varint(self._footer, place)
        stop = skip(self._footer, place, Type.BINARY)
        if _ROLES.get(path[:3]) is Role.SAME:
            return self._note(Role.SAME, place, stop)
        if self._is_text:
            return self._note(Role.TEXT, place, stop)
        self._note(Role.SAME, place, start)
        return self._note(Role.BYTES, start, stop)

    def _note(self, role: Role, start: int, stop: int) -> int:
        self.pieces.append(Piece(role, self._footer[start:stop]))
        return stop


def footer_head(footer: bytes) -> bytes | None:
    """Version and schema of a footer, the first two fields, as they are written; None if others come first."""
    version, schema = write_field(1, Type.INT32), write_field(1, Type.LIST)
    if not footer.startswith(version):
        return None
    try:
        stop = skip(footer, len(version), Type.INT32)
        if not footer.startswith(schema, stop):
            return None
        stop = skip(footer, stop + len(schema), Type.LIST)
    except MALFORMED:
        return None
    return footer[:stop]


class RowGroupList(NamedTuple):
    """The part of a footer before its row groups: rows of the file, number of row groups. start: of the first one."""

    rows: int
    length: int
    start: int

    @classmethod
    def of(cls, footer: bytes, head: bytes) -> Self | None:
        """The part after the head; None if the footer has something else there."""
        rows, groups = write_field(1, Type.INT64), write_field(1, Type.LIST)
        try:
            place = len(head) + len(rows)
            stop = skip(footer, place, Type.INT64)
            length, kind, start = read_list(footer, stop + len(groups))
        except MALFORMED:
            return None
        if not footer.startswith(rows, len(head)) or not footer.startswith(groups, stop) or kind != Type.STRUCT:
            return None
        return cls(read_integer(footer, place), length, start)
