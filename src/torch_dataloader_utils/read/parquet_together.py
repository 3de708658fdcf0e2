"""Decodes small Parquet row groups of many files by one call, as if they were row groups of one file.

    bytes of their columns, one after the other in memory · one footer for all → RecordBatches of all rows

For a file of 500 rows of 10 columns, two thirds of the time is not decoding but work for each call; this does it once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._formats.parquet_trailer import MAGIC
from torch_dataloader_utils._observe.counters import count_chunks
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.read.checks import check_stored_rows, check_unique
from torch_dataloader_utils.read.joined_footer import NUMBERS_END, FileFacts, JoinedFooter
from torch_dataloader_utils.read.parquet import StoredRows, decode_columns, open_parquet
from torch_dataloader_utils.read.parquet_footer import CHUNK_NUMBERS, FileColumns, RowGroupNumbers, parquet_footer
from torch_dataloader_utils.read.source import TaskSource

# Old writers leave the header of the dictionary page out of a chunk's length, so decoders read so many bytes more of
# their files (PARQUET-816).
_PADDING_BYTES = 100

# Everything between the first and the last chunk of a row group is read; for more than this it is not worth it.
_MOST_SPAN_BYTES = 64 << 10


IS_SUPPORTED = int(pa.__version__.partition(".")[0]) >= 26
"""Before 26 pyarrow stops at the sum of what footers count, so that rows beyond one of them would shift those after it.

With 25 row groups are read one by one.
"""


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
        chunks = numbers[:, :-2].reshape(len(groups), -1, CHUNK_NUMBERS)[:, leaves]
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedRowGroups:
    """Row groups that one call decodes.

    sources, rows, spans: the file of each row group (at least one), its rows, and where its chunks lie.
    file_columns: the columns of every file. columns: the names of those that are decoded.
    numbers: of the chunks of their leaves, shape [groups, 3, leaves]; see `ColumnChunks`. footer: writes their footer.
    """

    sources: Sequence[TaskSource]
    rows: Sequence[int]
    spans: Sequence[Span]
    file_columns: FileColumns
    columns: Sequence[str]
    numbers: Int64s
    footer: JoinedFooter

    @classmethod
    def of(cls, sources: Sequence[TaskSource], schema: pa.Schema) -> Self | None:
        """The columns of `schema`, as far as the files have them, of row groups whose files have the same columns.

        None if they have not, or if pyarrow is too old.

        Raises:
            DataError, StoreError: a file, or its footer, is not as planned.
        """
        if not IS_SUPPORTED:
            return None
        footers = list(map(parquet_footer, sources))
        columns, facts = footers[0].columns, footers[0].columns.facts
        names = [name for name in schema.names if name in columns.leaves]
        if facts is None or not names or any(footer.columns is not columns for footer in footers):
            return None
        if columns.int96.intersection(names):  # whose values are checked, file by file
            return None
        check_unique(sources[0].task, columns.repeated, names)
        groups = [footer.numbers(source.task) for footer, source in zip(footers, sources, strict=True)]
        known = [group for group in groups if group is not None and group.types == facts.types]
        if len(known) < len(groups) or any(group.codecs != known[0].codecs for group in known):
            return None
        leaves, most_bytes = columns.leaves_of(names), sources[0].max_row_group_bytes
        footer = _joined_footer(facts, leaves, known[0].codecs)
        chunks = ColumnChunks.of(known, leaves, [source.task.file_size for source in sources])
        row_bits = sum(columns.row_bits[name] for name in names)
        if (
            footer is None
            or chunks is None
            or chunks.rows.sum() * row_bits // 8 > most_bytes
            or chunks.num_bytes.max() > most_bytes
            or chunks.spans[:, 1].max() > _MOST_SPAN_BYTES
        ):
            return None
        return cls(
            sources=sources,
            rows=chunks.rows.tolist(),
            spans=chunks.spans.tolist(),
            file_columns=columns,
            columns=names,
            numbers=chunks.numbers,
            footer=footer,
        )

    def decode(self) -> Iterator[pa.RecordBatch]:
        """All rows, one row group after the other, a few columns at a time.

        Raises:
            CorruptFileError, FileChangedError, StoreError, and whatever pyarrow raises; the message may not name the
                file.
        """
        task, num_rows = self.sources[0].task, sum(self.rows)
        for source, rows in zip(self.sources, self.rows, strict=True):
            check_stored_rows(source.task, rows)
        reader = open_parquet(self.sources[0], pa.BufferReader(self._file()))
        stored = StoredRows(groups=range(len(self.sources)), rows=num_rows)
        for part in decode_columns(reader, task, self.file_columns, self.columns, stored):
            if part.num_rows != num_rows:
                raise CorruptFileError(f"{task.where}, or one after it, has other rows than its footer says.")
            yield part
        count_chunks("joined", self.numbers[:, 0].size)

    def _file(self) -> pa.Buffer:
        """The chunks and the footer, as a file in memory."""
        firsts, lengths = np.array(self.spans).T
        stops = np.cumsum(lengths)
        places = stops - lengths
        rows = np.array(self.rows)
        # One more than there are: a file with more rows than its footer says would shift the rows of later ones, and
        # pyarrow would stop at the right sum.
        rows[-1] += 1
        written = self.footer.write(
            rows=rows,
            starts=self.numbers[:, 0] + (places - firsts)[:, None],
            lengths=self.numbers[:, 1],
            num_values=self.numbers[:, 2],
        )
        end = written + len(written).to_bytes(4, "little") + MAGIC
        # From Arrow's pool: the C library gives such memory back to the system each time, and to get it again takes as
        # long as all of the decoding.
        file = pa.allocate_buffer(int(stops[-1]) + len(end))
        memory = memoryview(file).cast("B")
        memory[-len(end) :] = end
        buffers = [memory[start:stop] for start, stop in zip(places.tolist(), stops.tolist(), strict=True)]
        of_groups = zip(self.sources, self.spans, buffers, strict=True)
        for _, run in groupby(of_groups, key=lambda group: group[0].key):
            sources, spans, targets = zip(*run, strict=True)
            sources[0].read_into(spans, targets)
        return file


@lru_cache(maxsize=16)
def _joined_footer(facts: FileFacts, leaves: Sequence[int], codecs: Sequence[int]) -> JoinedFooter | None:
    return JoinedFooter.of(facts, leaves, codecs)
