"""Reads the numbers of Parquet footers by a regular expression that all footers from one writer match.

The footers of one table differ in a few numbers, which a pattern finds: in 4 µs for 10 columns. To parse such a footer
takes 40 µs, since a parser makes an object of every value, and to ask it for the numbers up to 50 µs.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.varint import read_varint
from torch_dataloader_utils._parquet.compact_protocol import read_integer, read_integers
from torch_dataloader_utils._parquet.footer_parts import (
    MALFORMED,
    NUMBERS_OF_CHUNK,
    NUMBERS_OF_GROUP,
    Piece,
    Role,
    RowGroupList,
    RowGroupParts,
    footer_head,
)
from torch_dataloader_utils._runtime.recent import Recent

# To compile a pattern takes as long as it saves for some hundred files.
_WORTH_IT = 64
_MOST_PATTERNS = 4
_MOST_KINDS = 16
_MOST_PATTERN_BYTES = 32 << 10

_ANY_INTEGER = rb"[\x80-\xff]*+."
_NUMBER = rb"([\x80-\xff]{0,8}+[\0-\x7f])"


def chunk_start(data_start: int, dictionary_start: int | None) -> int:
    """The start of a chunk's first page; some writers store 0 for "no dictionary page"."""
    return dictionary_start if dictionary_start and 0 < dictionary_start < data_start else data_start


class ChunkNumbers(NamedTuple):
    """The numbers of a chunk in the footer, not checked.

    num_values: with nulls. num_bytes: decompressed. length: stored bytes, with the dictionary page. data_start,
    dictionary_start: of the first data page and of the dictionary page (0: none).
    """

    num_values: int
    num_bytes: int
    length: int
    data_start: int
    dictionary_start: int

    @property
    def span(self) -> tuple[int, int]:
        """(offset, length) of all its pages."""
        return chunk_start(self.data_start, self.dictionary_start), self.length


class RowGroupNumbers(NamedTuple):
    """The numbers of a row group in the footer.

    types, codecs: of each chunk, as the format numbers them. written: `RowGroupParts.numbers`.
    """

    types: tuple[int, ...]
    codecs: tuple[int, ...]
    written: tuple[bytes, ...]

    @property
    def rows(self) -> int:
        """How many it has."""
        return read_integer(self.written[-1])

    @property
    def num_bytes(self) -> int:
        """Decompressed bytes of all chunks."""
        return read_integer(self.written[-2])

    def chunk(self, leaf: int) -> ChunkNumbers:
        """The chunk of a leaf column."""
        start = leaf * NUMBERS_OF_CHUNK
        return ChunkNumbers(*map(read_integer, self.written[start : start + NUMBERS_OF_CHUNK]))


class FooterNumbers(NamedTuple):
    """The numbers of all row groups of a footer, and the rows of the file. stop: where in the footer they end."""

    rows: int
    groups: tuple[RowGroupNumbers, ...]
    stop: int


def all_numbers(written: Sequence[bytes]) -> tuple[Int64s, Int64s]:
    """The numbers of row groups (at least one) with the same number of leaf columns; written: of each, joined.

    Returns:
        int64 [groups, leaves, 5], each as a `ChunkNumbers`, and int64 [groups, 2], bytes and rows.
    """
    numbers = read_integers(b"".join(written)).reshape(len(written), -1)
    chunks = numbers[:, :-NUMBERS_OF_GROUP].reshape(len(written), -1, NUMBERS_OF_CHUNK)
    return chunks, numbers[:, -NUMBERS_OF_GROUP:]


class FooterKind:
    """Footers of files with the same columns: those that begin with the same head, see `footer_head`.

    Thread-safe without a lock: at worst two threads make the same pattern.
    """

    def __init__(self, head: bytes) -> None:
        self.head = head
        self._patterns: list[_Pattern] = []
        self._misses = 0

    def match(self, footer: bytes) -> FooterNumbers | None:
        """The numbers of a footer of this kind; None if no pattern learnt from earlier ones matches it."""
        groups = RowGroupList.of(footer, self.head)
        if groups is None:
            return None
        found, place = [], groups.start
        for _ in range(groups.length):
            known = self._match_one(footer, place)
            if known is None:
                self._learn(footer, place)
                return None
            found.append(known[0])
            place = known[1]
        return FooterNumbers(groups.rows, tuple(found), place)

    def _match_one(self, footer: bytes, start: int) -> tuple[RowGroupNumbers, int] | None:
        for pattern in self._patterns:
            known = pattern.match(footer, start)
            if known is not None:
                return known
        return None

    def _learn(self, footer: bytes, start: int) -> None:
        """Make a pattern of the row group that begins here, once enough row groups matched no pattern."""
        self._misses += 1
        if self._misses < _WORTH_IT or len(self._patterns) == _MOST_PATTERNS:
            return
        self._misses = 0
        try:
            parts, stop = RowGroupParts.of(footer, start)
        except MALFORMED:
            return
        if stop - start <= _MOST_PATTERN_BYTES:
            self._patterns.append(_Pattern(parts))


_kinds: Recent[bytes, FooterKind] = Recent(_MOST_KINDS)


def footer_kind(footer: bytes) -> FooterKind | None:
    """The kind of a footer, a recent one of this process or a new one; None if it has no head."""
    for kind in _kinds.values():
        if footer.startswith(kind.head):
            return kind
    head = footer_head(footer)
    return None if head is None else _kinds.keep(head, FooterKind(head))


class _Pattern:
    """Matches row groups that are described like the one it is made of, except for what differs between files."""

    def __init__(self, parts: RowGroupParts) -> None:
        self._types, self._codecs = parts.types, parts.codecs
        self._first, *self._others = [re.compile(text, re.DOTALL) for text in _expressions(parts.pieces)]

    def match(self, footer: bytes, start: int) -> tuple[RowGroupNumbers, int] | None:
        """The row group that begins at byte `start`, and its end; None if it does not match."""
        found = self._first.match(footer, start)
        if found is None:
            return None
        numbers = found.groups()
        for expression in self._others:
            found = expression.match(footer, _after_text(footer, found.end()))
            if found is None:
                return None
            numbers += found.groups()
        return RowGroupNumbers(self._types, self._codecs, numbers), found.end()


def _after_text(footer: bytes, start: int) -> int:
    """The end of a text that begins here; the end of the footer if it runs over that."""
    try:
        length, start = read_varint(footer, start)
    except MALFORMED:
        return len(footer)
    return min(start + length, len(footer))


def _expressions(pieces: Sequence[Piece]) -> Iterator[bytes]:
    """One expression for the pieces before each text, and one for the pieces after the last."""
    written = b""
    for role, data in pieces:
        match role:
            case Role.TEXT:
                yield written
                written = b""
            case Role.NUMBER:
                written += _NUMBER
            case Role.INTEGER:
                written += _ANY_INTEGER
            case Role.BYTES:
                written += b".{%d}" % len(data)
            case Role.FLAG:
                # The type of the field is its value: 1 or 2.
                step = data[0] & 0xF0
                written += b"[" + re.escape(bytes([step | 1, step | 2])) + b"]"
            case Role.SAME | Role.TYPE | Role.CODEC:
                written += re.escape(data)
    yield written
