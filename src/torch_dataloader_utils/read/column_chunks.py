"""Where the column chunks of Parquet row groups lie, by their footers; checked against the sizes of the files.

Source: parquet-format, "Column chunks"; pyarrow.parquet.ColumnChunkMetaData.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s, RowGroupTask
from torch_dataloader_utils._parquet.compact_protocol import write_integer
from torch_dataloader_utils._parquet.footer_pattern import RowGroupNumbers, all_numbers, chunk_start
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.read.joined_footer import NUMBERS_END

# Old writers leave the header of the dictionary page out of a chunk's length, so decoders read so many bytes more of
# their files (PARQUET-816).
_PADDING_BYTES = 100

_PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


class EncodedNumbers(NamedTuple):
    """What a footer says of a row group, encoded as in the footer to stay small; see `RowGroupNumbers`."""

    types: tuple[int, ...]
    codecs: tuple[int, ...]
    written: bytes

    @classmethod
    def of(cls, group: RowGroupNumbers) -> Self:
        """The chunks in the numbers that a footer pattern found."""
        return cls(group.types, group.codecs, b"".join(group.written))

    @classmethod
    def parsed(cls, group: Any, codecs: tuple[int, ...]) -> Self | None:
        """What a parsed footer says of a row group (pyarrow.parquet.RowGroupMetaData), whose codecs are known.

        None if a number is below 0.
        """
        chunks = list(map(group.column, range(group.num_columns)))
        numbers = [
            number
            for chunk in chunks
            for number in (
                chunk.num_values,
                chunk.total_uncompressed_size,
                chunk.total_compressed_size,
                chunk.data_page_offset,
                chunk.dictionary_page_offset or 0,
            )
        ]
        numbers += (group.total_byte_size, group.num_rows)
        if min(numbers) < 0:
            return None
        types = tuple(_PHYSICAL_TYPES.index(chunk.physical_type) for chunk in chunks)
        return cls(types, codecs, b"".join(map(write_integer, numbers)))


class ColumnChunks(NamedTuple):
    """Chunks of some leaf columns (at least one) of some row groups (at least one).

    rows, num_bytes: rows and decompressed bytes of each row group, int64 [groups].
    numbers: start, length and number of values of each chunk, int64 [groups, 3, leaves].
    spans: (offset, length) of all chunks of a row group and what decoders may read after them, int64 [groups, 2].
    """

    rows: Int64s
    num_bytes: Int64s
    numbers: Int64s
    spans: Int64s

    @classmethod
    def of(cls, groups: Sequence[EncodedNumbers], leaves: Sequence[int], file_sizes: Sequence[int]) -> Self | None:
        """The chunks of these row groups; None if one lies outside of its file, or a number is out of range."""
        chunks, totals = all_numbers([group.written for group in groups])
        chunks = chunks[:, leaves]
        if not 0 <= min(chunks.min(), totals.min()) <= max(chunks.max(), totals.max()) < NUMBERS_END:
            return None
        num_values, _, lengths, data_starts, dictionary_starts = np.moveaxis(chunks, 2, 0)
        has_dictionary = (dictionary_starts > 0) & (dictionary_starts < data_starts)
        starts = np.where(has_dictionary, dictionary_starts, data_starts)
        stops, sizes = (starts + lengths).max(axis=1), np.asarray(file_sizes)
        if (stops > sizes).any():
            return None
        first = starts.min(axis=1)
        return cls(
            rows=totals[:, 1],
            num_bytes=totals[:, 0],
            numbers=np.stack([starts, lengths, num_values], axis=1),
            spans=np.stack([first, np.minimum(stops + _PADDING_BYTES, sizes) - first], axis=1),
        )


def physical_types(schema: Any) -> tuple[int, ...]:
    """The physical types, as the format numbers them, of all leaf columns of a pyarrow.parquet.ParquetSchema."""
    names = [schema.column(index).physical_type for index in range(len(schema))]
    return tuple(map(_PHYSICAL_TYPES.index, names))


def chunk_span(task: RowGroupTask, chunk: Any) -> Span:
    """The bytes of a chunk (pyarrow.parquet.ColumnChunkMetaData), all its pages.

    Raises:
        CorruptFileError: they are not in the file.
    """
    start, length = chunk_start(chunk.data_page_offset, chunk.dictionary_page_offset), chunk.total_compressed_size
    if start < 0 or length < 0 or start + length > task.file_size:
        raise CorruptFileError(
            f"{task.where}: column {chunk.path_in_schema} is said to lie at bytes {start} to {start + length} of "
            f"{task.file_size}. The footer is damaged; write the file again."
        )
    return start, length
