"""The numbers of a Parquet footer, by one pass of the compiled decoder over its bytes.

pyarrow gives them too: a Python object and some microseconds a column chunk.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils import _decoder
from torch_dataloader_utils.formats.parquet.trailer import TRAILER_BYTES, footer_length

_Int64s = npt.NDArray[np.int64]


class OfChunk(IntEnum):
    """The numbers of a column chunk; -1 where the footer has none."""

    CODEC = 0
    VALUES = 1
    UNCOMPRESSED = 2
    COMPRESSED = 3
    DATA_START = 4
    DICTIONARY_START = 5
    NULLS = 6


class FooterNumbers(NamedTuple):
    """What a footer says of its row groups, not checked.

    head: the bytes of version and schema. tail: those after the row groups, about the file: its writer, what that says
        of the schema. Footers with the same head and tail differ in these numbers alone, and in statistics.
    rows: of the whole file. groups: rows and decompressed bytes, int64 [row groups, 2].
    chunks: int64 [row groups, leaves, len(OfChunk)].
    """

    head: bytes
    tail: bytes
    rows: int
    groups: _Int64s
    chunks: _Int64s

    @property
    def starts(self) -> _Int64s:
        """The start of each chunk's first page, int64 [row groups, leaves]; see `chunk_start`."""
        return chunk_starts(self.chunks)


def chunk_starts(chunks: _Int64s) -> _Int64s:
    """The start of the first page of chunks, int64 [...]; see `chunk_start`. chunks: int64 [..., len(OfChunk)]."""
    data, dictionary = chunks[..., OfChunk.DATA_START], chunks[..., OfChunk.DICTIONARY_START]
    return np.where((dictionary > 0) & (dictionary < data), dictionary, data)


def footer_numbers(tail: bytes | memoryview) -> FooterNumbers | None:
    """The numbers of a footer; tail: the last bytes of the file, with all of it.

    None where the compiled decoder is not there or does not understand the footer wholly: encrypted columns, chunks in
    other files, a field missing that pyarrow demands.
    """
    encoded = memoryview(tail)[-footer_length(tail) : -TRAILER_BYTES]
    found = _decoder.read_footer(encoded) if _decoder.IS_BUILT else None
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
