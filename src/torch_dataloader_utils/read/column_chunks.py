"""Where the column chunks of a Parquet row group lie, as its footer says, and checked against the file's size.

Source: parquet-format, "Column chunks"; pyarrow.parquet.ColumnChunkMetaData.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s, RowGroupTask
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.errors import CorruptFileError

# Writers of old leave the header of the dictionary page out of a chunk's length, so that decoders read so much more of
# their files (PARQUET-816).
_PADDING_BYTES = 100


class ColumnChunks(NamedTuple):
    """Chunks of one row group, one for each of some leaf columns (at least one).

    rows, num_bytes: of the row group, decompressed. numbers: start, length and number of values of each chunk, int64
    [3, leaves]. span: where all of them lie, with what decoders may read beside. codecs: of each, by pyarrow's names.
    """

    rows: int
    num_bytes: int
    numbers: Int64s
    span: Span
    codecs: tuple[str, ...]


def column_chunks(task: RowGroupTask, group: Any, leaves: Sequence[int]) -> ColumnChunks:
    """Those of a row group's metadata (pyarrow.parquet.RowGroupMetaData).

    Raises:
        CorruptFileError: one of them is not in the file.
    """
    chunks = list(map(group.column, leaves))
    spans = [chunk_span(task, chunk) for chunk in chunks]
    first = min(start for start, _ in spans)
    stop = min(max(map(sum, spans)) + _PADDING_BYTES, task.file_size)
    return ColumnChunks(
        rows=group.num_rows,
        num_bytes=group.total_byte_size,
        numbers=np.array([(*span, chunk.num_values) for span, chunk in zip(spans, chunks, strict=True)]).T,
        span=(first, stop - first),
        codecs=tuple(chunk.compression for chunk in chunks),
    )


def chunk_span(task: RowGroupTask, chunk: Any) -> Span:
    """The bytes of a chunk (pyarrow.parquet.ColumnChunkMetaData), all its pages.

    Raises:
        CorruptFileError: they are not in the file.
    """
    start = chunk.data_page_offset
    # Some writers say 0 for "no dictionary page".
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    length = chunk.total_compressed_size
    if start < 0 or length < 0 or start + length > task.file_size:
        raise CorruptFileError(
            f"{task.where}: column {chunk.path_in_schema} is said to lie at bytes {start} to {start + length} of "
            f"{task.file_size}. The footer is damaged; write the file again."
        )
    return start, length
