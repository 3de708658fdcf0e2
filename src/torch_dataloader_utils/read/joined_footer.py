"""One Parquet footer for row groups of many files whose columns are the same.

    "version, schema" as the files have it · rows · a row group for each: where its chunks lie · what wrote the files

With it and the chunks, a decoder reads all row groups by one call. But for a few numbers, the descriptions of all row
groups are the same: a template, in which numpy fills in numbers of a fixed width. Statistics and indexes are left out;
columns that are not read are described as empty.
Source: parquet-format, "parquet.thrift".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._formats.compact_protocol import (
    END_OF_STRUCT,
    Type,
    read_integer,
    skip,
    write_binary,
    write_field,
    write_integer,
    write_list,
)

# As the format numbers them.
_PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")

_UNCOMPRESSED = 0
# And Snappy, gzip, Brotli, ZSTD. Not LZ4, pyarrow's name for two different codecs.
_CODECS = frozenset({_UNCOMPRESSED, 1, 2, 4, 6})
_CODEC_BYTES = frozenset(b"".join(map(write_integer, _CODECS)))

# Room for a number: seven bits a byte, one bit of them the sign; only in the last byte the highest bit is not set.
_BLANK = b"\x80\x80\x80\x80\x80\x00"
_SHIFTS = 7 * np.arange(len(_BLANK))

ARROW_SCHEMA = b"ARROW:schema"
"""The key under which Arrow's writers keep the schema."""

NUMBERS_END = 1 << (7 * len(_BLANK) - 1)
"""Numbers in [0, NUMBERS_END) fit into a blank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileFacts:
    """The facts that joined footers have in common.

    head: see `footer_head`. paths, types: of the leaf columns; physical types.
    arrow_schema: the value of that key. created_by: the writer; decoders work around mistakes of old writers.
    """

    head: bytes
    paths: Sequence[str]
    types: tuple[str, ...]
    arrow_schema: bytes | None
    created_by: str


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
    except (IndexError, ValueError, RecursionError):  # it is no footer
        return None
    return footer[:stop]


def chunk_codecs(footer: bytes, facts: FileFacts, num_row_groups: int) -> list[tuple[int, ...]] | None:
    """The codecs of a footer's chunks, by row group; None if one of them is not known here, or in doubt.

    pyarrow ends the process when asked for a codec that it does not know, so it must not be asked. The codec of a chunk
    is found after its path; not if the name of the column has dots.
    """
    marks = [_path_mark(path) for path in facts.paths]
    place, found = len(facts.head), []
    for mark in marks * num_row_groups:
        place = footer.find(mark, place) + len(mark)
        if place < len(mark) or footer[place] not in _CODEC_BYTES:
            return None
        found.append(read_integer(footer, place))
    return list(zip(*[iter(found)] * len(marks), strict=True))


@lru_cache(maxsize=1024)
def _path_mark(path: str) -> bytes:
    """The bytes before the codec of a chunk."""
    parts = path.split(".")
    written = b"".join(write_binary(part.encode()) for part in parts)
    return write_field(1, Type.LIST) + write_list(len(parts), Type.BINARY) + written + write_field(1, Type.INT32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedFooter:
    """Writes footers for row groups with the same columns and codecs.

    head, tail: the bytes before and after the row groups, without the number of rows.
    group: the bytes of a row group with blanks. blanks: where these are, shape [blanks, bytes].
    """

    head: bytes
    tail: bytes
    group: np.ndarray[Any, np.dtype[np.uint8]]
    blanks: Int64s

    @classmethod
    def of(cls, facts: FileFacts, leaves: Sequence[int], codecs: Sequence[int]) -> Self | None:
        """For row groups of which these leaf columns are read; None if a codec is not known.

        codecs: of every leaf column.
        """
        if not {codecs[leaf] for leaf in leaves} <= _CODECS:
            return None
        written, starts = bytearray(), []
        written += write_field(1, Type.LIST) + write_list(len(facts.types), Type.STRUCT)
        for leaf, (physical_type, codec) in enumerate(zip(facts.types, codecs, strict=True)):
            is_read = leaf in leaves
            # Decoders need no encodings and no path here: pages have the first, the schema has the second.
            written += _integer(2, Type.INT64, 0) + write_field(1, Type.STRUCT)
            written += _integer(1, Type.INT32, _PHYSICAL_TYPES.index(physical_type))
            written += write_field(1, Type.LIST) + write_list(1, Type.INT32) + write_integer(0)
            written += write_field(1, Type.LIST) + write_list(1, Type.BINARY) + write_binary(b"")
            written += _integer(1, Type.INT32, codec if is_read else _UNCOMPRESSED)
            for step in (1, 1, 1, 2):  # values, bytes, stored bytes, start
                written += write_field(step, Type.INT64)
                if is_read:
                    starts.append(len(written))
                written += _BLANK if is_read else write_integer(0)
            written += END_OF_STRUCT + END_OF_STRUCT
        for _ in range(2):  # bytes, rows
            written += write_field(1, Type.INT64)
            starts.append(len(written))
            written += _BLANK
        return cls(
            head=facts.head,
            tail=_tail(facts),
            group=np.frombuffer(bytes(written + END_OF_STRUCT), dtype=np.uint8),
            blanks=np.asarray(starts, dtype=np.int64)[:, None] + np.arange(len(_BLANK)),
        )

    def write(self, *, rows: Int64s, starts: Int64s, lengths: Int64s, num_values: Int64s) -> bytes:
        """The footer of these row groups; all numbers are in [0, NUMBERS_END).

        Args:
            rows: of each row group, shape [groups].
            starts, lengths, num_values: of each chunk, leaves in ascending order, shape [groups, leaves].
        """
        chunks = np.stack([num_values, lengths, lengths, starts], axis=2).reshape(len(rows), -1)
        numbers = np.concatenate([chunks, lengths.sum(axis=1)[:, None], rows[:, None]], axis=1) << 1
        groups = np.repeat(self.group[None], len(rows), axis=0)
        # The highest bit of each byte is in the template.
        groups[:, self.blanks] |= ((numbers[:, :, None] >> _SHIFTS) & 0x7F).astype(np.uint8)
        before = (
            _integer(1, Type.INT64, int(rows.sum())) + write_field(1, Type.LIST) + write_list(len(rows), Type.STRUCT)
        )
        return self.head + before + groups.tobytes() + self.tail


def _integer(step: int, kind: Type, value: int) -> bytes:
    return write_field(step, kind) + write_integer(value)


def _tail(facts: FileFacts) -> bytes:
    """The part of the footer about the file itself."""
    written, step = b"", 2
    if facts.arrow_schema is not None:
        key = write_field(1, Type.BINARY) + write_binary(ARROW_SCHEMA)
        value = write_field(1, Type.BINARY) + write_binary(facts.arrow_schema)
        written += write_field(1, Type.LIST) + write_list(1, Type.STRUCT) + key + value + END_OF_STRUCT
        step = 1
    if facts.created_by:
        written += write_field(step, Type.BINARY) + write_binary(facts.created_by.encode())
    return written + END_OF_STRUCT
