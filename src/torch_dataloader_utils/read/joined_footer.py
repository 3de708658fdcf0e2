"""One Parquet footer for row groups of many files whose columns are the same.

    "version, schema" as the files have it · rows · a row group for each: where its chunks lie · what wrote the files

A decoder that gets it, and the chunks, takes all of them by one call. Everything in a row group's description but a few
numbers is the same for all, so that it is a template in which numpy fills in numbers of a fixed width. Left out is what
is there to choose row groups by (statistics, indexes), and columns that are not read are said to be empty.
Source: parquet-format, "parquet.thrift".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.read.compact_protocol import (
    BINARY,
    END,
    INT32,
    INT64,
    LIST,
    STRUCT,
    binary,
    end_of,
    field,
    list_of,
    number,
)

_PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")

# By number. Not those that pyarrow calls LZ4: they are two.
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6}

# A number of seven bits a byte, one of them the sign; the last byte is the one whose highest bit is not set.
_BLANK = b"\x80\x80\x80\x80\x80\x00"
_SHIFTS = 7 * np.arange(len(_BLANK))

NUMBERS_END = 1 << (7 * len(_BLANK) - 1)
"""Numbers from 0 up to this fit in."""


def footer_head(footer: bytes) -> bytes | None:
    """Version and schema of a footer, the first two fields, as they are written; None if others come first."""
    version, schema = field(1, INT32), field(1, LIST)
    if not footer.startswith(version):
        return None
    try:
        stop = end_of(footer, len(version), INT32)
        if not footer.startswith(schema, stop):
            return None
        stop = end_of(footer, stop + len(schema), LIST)
    except (IndexError, ValueError):
        return None
    return footer[:stop]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedFooter:
    """What makes footers for row groups of one kind: of some columns and codecs.

    head, tail: what comes before and after the row groups, but for the number of rows. group: a row group with blanks;
    blanks: where in it they are, shape [blanks, bytes].
    """

    head: bytes
    tail: bytes
    group: np.ndarray[Any, np.dtype[np.uint8]]
    blanks: Int64s

    @classmethod
    def of(cls, metadata: Any, head: bytes, leaves: Sequence[int], codecs: Sequence[str]) -> Self | None:
        """For row groups of which these leaf columns, stored with these codecs, are read; None for a codec not known.

        metadata: of one of the files (pyarrow.parquet.FileMetaData). head: its `footer_head`.
        """
        if not set(codecs) <= _CODECS.keys():
            return None
        of_leaf = dict(zip(leaves, codecs, strict=True))
        written, starts = bytearray(field(1, LIST) + list_of(metadata.num_columns, STRUCT)), []
        for leaf in range(metadata.num_columns):
            physical_type = _PHYSICAL_TYPES.index(metadata.schema.column(leaf).physical_type)
            written += field(2, INT64) + number(0) + field(1, STRUCT)  # of a chunk: nothing here, metadata
            written += field(1, INT32) + number(physical_type)
            written += field(1, LIST) + list_of(1, INT32) + number(0)  # encodings: the pages tell
            written += field(1, LIST) + list_of(1, BINARY) + binary(b"")  # path: the schema tells
            written += field(1, INT32) + number(_CODECS[of_leaf.get(leaf, "UNCOMPRESSED")])
            for step in (1, 1, 1, 2):  # values, bytes, stored bytes, start
                written += field(step, INT64)
                if leaf in of_leaf:
                    starts.append(len(written))
                written += _BLANK if leaf in of_leaf else number(0)
            written += END + END
        for _ in range(2):  # bytes, rows
            written += field(1, INT64)
            starts.append(len(written))
            written += _BLANK
        group = np.frombuffer(bytes(written + END), dtype=np.uint8)
        return cls(
            head=head,
            tail=_tail(metadata),
            group=group,
            blanks=np.asarray(starts, dtype=np.int64)[:, None] + np.arange(len(_BLANK)),
        )

    def write(self, *, rows: Int64s, starts: Int64s, lengths: Int64s, num_values: Int64s) -> bytes:
        """The footer of row groups whose chunks lie there; all numbers are in [0, NUMBERS_END).

        Args:
            rows: of each row group, shape [groups].
            starts, lengths, num_values: of each chunk, leaves in ascending order, shape [groups, leaves].
        """
        chunks = np.stack([num_values, lengths, lengths, starts], axis=2).reshape(len(rows), -1)
        numbers = np.concatenate([chunks, lengths.sum(axis=1)[:, None], rows[:, None]], axis=1) << 1
        groups = np.repeat(self.group[None], len(rows), axis=0)
        # The highest bit of each byte is in the template.
        groups[:, self.blanks] |= ((numbers[:, :, None] >> _SHIFTS) & 0x7F).astype(np.uint8)
        num_rows = field(1, INT64) + number(int(rows.sum()))
        return b"".join((self.head, num_rows, field(1, LIST), list_of(len(rows), STRUCT), groups.tobytes(), self.tail))


def _tail(metadata: Any) -> bytes:
    """What the footer says of the file itself: keys (the Arrow schema is one), and who wrote it, for known mistakes."""
    written, step = b"", 1
    if pairs := metadata.metadata:
        written += field(1, LIST) + list_of(len(pairs), STRUCT)
        for key, value in pairs.items():
            written += field(1, BINARY) + binary(key) + field(1, BINARY) + binary(value) + END
    else:
        step = 2
    if metadata.created_by:
        written += field(step, BINARY) + binary(metadata.created_by.encode())
    return written + END
