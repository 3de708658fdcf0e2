"""Numbers of a Parquet footer, by one pass of the compiled decoder over its bytes.

pyarrow gives them too, at a Python object and some microseconds a column chunk.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils import _engine
from torch_dataloader_utils.formats.parquet.trailer import TRAILER_BYTES, footer_length

_Int64s = npt.NDArray[np.int64]


class OfChunk(IntEnum):
    """Numbers of a column chunk; -1 where the footer has no number."""

    CODEC = 0
    VALUES = 1
    UNCOMPRESSED = 2
    COMPRESSED = 3
    DATA_START = 4
    DICTIONARY_START = 5
    NULLS = 6


class FooterNumbers(NamedTuple):
    """Numbers of a footer about its row groups, not checked.

    head: Bytes of version and schema. tail: Bytes after the row groups, about the file: its writer, and the writer's
        notes on the schema. Footers with the same head and tail differ in these numbers and in statistics alone.
    rows: Number of rows of the file. groups: Rows and decompressed bytes, int64 [row groups, 2].
    chunks: int64 [row groups, leaves, len(OfChunk)].
    """

    head: bytes
    tail: bytes
    rows: int
    groups: _Int64s
    chunks: _Int64s

    @property
    def starts(self) -> _Int64s:
        """Start of each chunk's first page, int64 [row groups, leaves]; see `chunk_start`."""
        return chunk_starts(self.chunks)


def chunk_starts(chunks: _Int64s) -> _Int64s:
    """Return the start of each chunk's first page, int64 [...]; see `chunk_start`. chunks: [..., len(OfChunk)]."""
    data, dictionary = chunks[..., OfChunk.DATA_START], chunks[..., OfChunk.DICTIONARY_START]
    return np.where((dictionary > 0) & (dictionary < data), dictionary, data)


def footer_numbers(tail: bytes | memoryview) -> FooterNumbers | None:
    """Return the numbers of a footer; tail: Last bytes of the file, with the whole footer.

    None if the compiled decoder is not built or does not fully understand the footer: encrypted columns, chunks in
    other files, or a missing field that pyarrow demands.
    """
    encoded = memoryview(tail)[-footer_length(tail) : -TRAILER_BYTES]
    found = _engine.read_footer(encoded) if _engine.IS_BUILT else None
    if found is None:
        return None
    num_groups, num_leaves, rows, head_end, tail_start, content = found
    numbers = np.frombuffer(content, np.int64).reshape(num_groups, 2 + len(OfChunk) * num_leaves)
    return FooterNumbers(
        head=bytes(encoded[:head_end]),
        tail=bytes(encoded[tail_start:]),
        rows=rows,
        groups=numbers[:, :2],
        chunks=numbers[:, 2:].reshape(num_groups, num_leaves, len(OfChunk)),
    )
