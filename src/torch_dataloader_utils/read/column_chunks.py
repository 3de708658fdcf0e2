"""Where the column chunks of Parquet row groups lie, by their footers; checked against the sizes of the files.

Source: parquet-format, "Column chunks"; pyarrow.parquet.ColumnChunkMetaData.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import Int64s, RowGroupTask
from torch_dataloader_utils._formats.parquet_trailer import chunk_start
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.read.joined_footer import NUMBERS_END

# Old writers leave the header of the dictionary page out of a chunk's length, so decoders read so many bytes more of
# their files (PARQUET-816).
_PADDING_BYTES = 100

# Numbers of a chunk in `RowGroupNumbers`.
_CHUNK_NUMBERS = 4


class RowGroupNumbers(NamedTuple):
    """The numbers of a row group as its footer has them, not checked.

    types: the physical type of each chunk. codecs: of each chunk, as the format numbers them.
    numbers: int64 [leaves * 4 + 2]. Of each chunk its values (with nulls), stored bytes with the dictionary page, start
        of the data pages, start of the dictionary page (0: none); then decompressed bytes and rows of the row group.
    """

    types: tuple[str, ...]
    codecs: tuple[int, ...]
    numbers: Int64s

    @classmethod
    def of(cls, group: pq.RowGroupMetaData, codecs: tuple[int, ...]) -> Self:
        """The numbers of a parsed row group, whose codecs are known."""
        types: list[str] = []
        numbers: list[int] = []
        for chunk in map(group.column, range(len(codecs))):
            types.append(chunk.physical_type)
            numbers += (
                chunk.num_values,
                chunk.total_compressed_size,
                chunk.data_page_offset,
                chunk.dictionary_page_offset or 0,
            )
        numbers += (group.total_byte_size, group.num_rows)
        return cls(tuple(types), codecs, np.array(numbers, dtype=np.int64))


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
    def of(cls, groups: Sequence[RowGroupNumbers], leaves: Sequence[int], file_sizes: Sequence[int]) -> Self | None:
        """The chunks of these row groups; None if one lies outside of its file, or a number is out of range."""
        numbers = np.stack([group.numbers for group in groups])
        totals = numbers[:, -2:]
        chunks = numbers[:, :-2].reshape(len(groups), -1, _CHUNK_NUMBERS)[:, leaves]
        if not 0 <= min(chunks.min(), totals.min()) <= max(chunks.max(), totals.max()) < NUMBERS_END:
            return None
        num_values, lengths, data_starts, dictionary_starts = np.moveaxis(chunks, 2, 0)
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
