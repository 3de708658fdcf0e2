"""Decoding of the numbers of several small Parquet row groups by one call of the compiled decoder.

    bytes of their chunks, one after the other in memory → one call of the compiled decoder → one RecordBatch

A file of 500 rows of 10 columns takes 20 us to decode, and many times as long for the work around each call.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.number_batch import NumberBatch
from torch_dataloader_utils._arrow.process_memory import RECYCLED
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._observe.counters import count_chunks
from torch_dataloader_utils.formats.checks import check_stored_rows, check_unique
from torch_dataloader_utils.formats.parquet.footer import Footer, parquet_footer
from torch_dataloader_utils.formats.parquet.footer_numbers import OfChunk, chunk_starts
from torch_dataloader_utils.formats.parquet.number_places import NumberTable, Places
from torch_dataloader_utils.formats.parquet.numbers import PAGES
from torch_dataloader_utils.formats.task_source import TaskSource

# Everything between the first and the last chunk of a row group is read. A longer span is not worth it.
_MOST_SPAN_BYTES = 64 << 10

# Decoded bytes of a call. A footer may claim any number of rows, and memory is taken before pages are looked at.
_MOST_DECODED_BYTES = 32 << 20


class NumberGroups(NamedTuple):
    """Row groups (at least one) with columns of numbers (at least one) that one call decodes.

    others: Names of their other columns, lists of numbers among them. rows: Rows of each row group, int64 [groups].
    codecs, starts, lengths: Numbers of each chunk, int64 [groups, columns].
    """

    sources: Sequence[TaskSource]
    numbers: NumberTable
    others: frozenset[str]
    rows: Int64s
    codecs: Int64s
    starts: Int64s
    lengths: Int64s

    @classmethod
    def of(cls, sources: Sequence[TaskSource], schema: pa.Schema) -> Self | None:
        """Return the columns of `schema` that the decoder reads in the files of all these row groups.

        None if the decoder reads no column, or if the row groups should not be decoded together: files with different
        columns, unknown codecs, chunks outside of their file, or more bytes than are worth it.

        Raises:
            DataError, StoreError: a file, or its footer, is not as planned.
        """
        footers: list[Footer] = []
        for _, run in groupby(sources, key=lambda source: source.key):
            of_file = list(run)
            footers += [parquet_footer(of_file[0])] * len(of_file)
        columns, names = footers[0].columns, set(schema.names)
        flat = (field for field in schema if field.name in columns.numbers and not columns.numbers[field.name].is_list)
        numbers = columns.number_table(flat, sources[0].changes.conversions)
        others = frozenset(names.intersection(columns.leaves).difference(numbers.schema.names))
        if not numbers.columns or any(footer.columns is not columns for footer in footers):
            return None
        check_unique(sources[0].task, columns.repeated, schema.names)
        for footer, source in zip(footers, sources, strict=True):
            footer.check_has(source.task)
        found = _numbers_of(footers, sources)
        if found is None:
            return None
        rows, chunks = found[0], found[1][:, numbers.leaves]
        codecs, lengths = chunks[:, :, OfChunk.CODEC], chunks[:, :, OfChunk.COMPRESSED]
        sizes = np.array([source.task.file_size for source in sources])[:, None]
        starts = chunk_starts(chunks)
        if (
            not 0 <= rows.min() <= rows.max() <= _MOST_DECODED_BYTES
            or not all(map(_engine.has_codec, np.unique(codecs).tolist()))
            or (chunks[:, :, OfChunk.VALUES] != rows[:, None]).any()
            or ((starts < 0) | (lengths < 0) | (starts > sizes) | (lengths > sizes - starts)).any()
            or ((starts + lengths).max(axis=1) - starts.min(axis=1)).max() > _MOST_SPAN_BYTES
        ):
            return None
        return cls(sources, numbers, others, rows, codecs, starts, lengths)

    def decode(self) -> list[pa.RecordBatch | NumberBatch] | None:
        """Return all rows of these columns, see `Places.batches`.

        None if the decoder refuses a chunk, or if the rows have too many bytes.

        Raises:
            RowCountError, FileChangedError, StoreError: a row group is not as planned.
        """
        for source, rows in zip(self.sources, self.rows.tolist(), strict=True):
            check_stored_rows(source.task, rows)
        num_rows = int(self.rows.sum())
        places = Places.flat(self.numbers, num_rows)
        most = self.sources[0].max_row_group_bytes
        if places.num_bytes > min(_MOST_DECODED_BYTES, most):
            return None
        if self.others:  # reads small files once
            for source in self.sources:
                source.whole()
        pages, begins = self._pages()
        memory, results = RECYCLED.take(places.num_bytes), np.empty((len(self.numbers.columns), 2), np.int64)
        values = np.broadcast_to(self.rows[:, None], self.codecs.shape)
        reasons = _engine.decode(
            pages,
            memory,
            places.numbers,
            np.stack([self.codecs, begins, self.lengths, values], axis=2),
            np.stack([np.zeros_like(self.rows), self.rows], axis=1),
            results,
            most,
            self.sources[0].page_checksums,
        )
        if any(reasons):
            return None
        count_chunks("compiled", self.codecs.size)
        return list(places.batches(memory, results, reasons))

    def _pages(self) -> tuple[memoryview, Int64s]:
        """Return the bytes of all row groups, and the start of each chunk in the bytes, int64 [groups, columns]."""
        firsts, stops = self.starts.min(axis=1), (self.starts + self.lengths).max(axis=1)
        ends = np.cumsum(stops - firsts)
        places = ends - (stops - firsts)
        pages = PAGES.take(int(ends[-1])).data
        spans = zip(self.sources, firsts.tolist(), stops.tolist(), places.tolist(), strict=True)
        for _, run in groupby(spans, key=lambda span: span[0].key):
            _read_run(list(run), pages)
        return pages, self.starts + (places - firsts)[:, None]


def _read_run(run: Sequence[tuple[TaskSource, int, int, int]], pages: memoryview) -> None:
    """Read row groups of one file, each (source, start, stop, place in `pages`). Neighbours come by one read."""
    merged: list[tuple[int, int, int]] = []
    for _, start, stop, place in run:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop, merged[-1][2])
        else:
            merged.append((start, stop, place))
    spans = [(start, stop - start) for start, stop, _ in merged]
    buffers = [pages[place : place + length] for (*_, place), (_, length) in zip(merged, spans, strict=True)]
    run[0][0].read_into(spans, buffers)


def _numbers_of(footers: Sequence[Footer], sources: Sequence[TaskSource]) -> tuple[Int64s, Int64s] | None:
    """Return rows [groups] and numbers of chunks [groups, leaves, ...]; None if a footer was not understood."""
    rows, chunks = [], []
    for footer, run in groupby(zip(footers, sources, strict=True), key=lambda pair: pair[0]):
        if footer.numbers is None:
            return None
        ordinals = [source.task.ordinal for _, source in run]
        rows.append(footer.numbers.groups[ordinals, 0])
        chunks.append(footer.numbers.chunks[ordinals])
    return np.concatenate(rows), np.concatenate(chunks)
