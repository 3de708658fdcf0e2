"""Footers of Parquet files, with their columns and row groups; read once in each process.

Source: parquet-format, "File Format"; pyarrow.parquet.FileMetaData.
"""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import RowGroupTask
from torch_dataloader_utils._parquet.footer_pattern import FooterNumbers
from torch_dataloader_utils._parquet.known_footers import KnownFooters
from torch_dataloader_utils._parquet.trailer import TRAILER_BYTES, check_metadata, checked_footer_length, footer_length
from torch_dataloader_utils.read.checks import no_such_group
from torch_dataloader_utils.read.column_chunks import EncodedNumbers
from torch_dataloader_utils.read.file_cache import FileCache
from torch_dataloader_utils.read.file_columns import FileColumns, KnownColumns
from torch_dataloader_utils.read.joined_footer import chunk_codecs
from torch_dataloader_utils.read.source import TaskSource

# Bytes that the numbers of a row group take in the cache, for about ten columns.
_NUMBERS_BYTES = 512


class Footer:
    """The footer of a file: its columns and its numbers of row groups.

    encoded: its bytes, trailer included. If it was matched by a pattern (see `KnownFooters`), it is parsed only when
    something else is asked for; two threads may both do that.
    """

    def __init__(
        self, encoded: bytes, columns: FileColumns, *, metadata: Any = None, numbers: FooterNumbers | None = None
    ) -> None:
        """metadata: if it was parsed. numbers: if it was matched."""
        self.columns = columns
        self.num_row_groups: int = metadata.num_row_groups if numbers is None else len(numbers.groups)
        self._encoded = encoded
        self._metadata = metadata
        self._numbers: list[EncodedNumbers | None] | None = None
        if numbers is not None:
            self._numbers = list(map(EncodedNumbers.of, numbers.groups))

    @property
    def metadata(self) -> Any:
        """The pyarrow.parquet.FileMetaData."""
        if self._metadata is None:
            self._metadata = _parsed(self._encoded)
        return self._metadata

    def row_group(self, task: RowGroupTask) -> Any:
        """The metadata of a task's row group.

        Raises:
            CorruptFileError: the file does not have it.
        """
        self._check_has(task)
        return self.metadata.row_group(task.ordinal)

    def numbers(self, task: RowGroupTask) -> EncodedNumbers | None:
        """The numbers of a task's row group; None if it cannot be joined with row groups of other files.

        Kept, because asking a parsed footer takes longer than the rest of a small row group. Raises as `row_group`.
        """
        self._check_has(task)
        if self._numbers is None:
            self._numbers = self._parsed_numbers() or []
        return self._numbers[task.ordinal] if self._numbers else None

    def _parsed_numbers(self) -> list[EncodedNumbers | None] | None:
        facts = self.columns.facts
        codecs = None if facts is None else chunk_codecs(self._encoded, facts, self.num_row_groups)
        if codecs is None:
            return None
        groups = map(self.metadata.row_group, range(self.num_row_groups))
        return list(map(EncodedNumbers.parsed, groups, codecs))

    def _check_has(self, task: RowGroupTask) -> None:
        if task.ordinal >= self.num_row_groups:
            raise no_such_group(task, self.num_row_groups)


_footers: FileCache[Footer] = FileCache()

_known_columns = KnownColumns()

# Columns of footers that are matched and not parsed.
_known_footers: KnownFooters[FileColumns] = KnownFooters()


def parquet_footer(source: TaskSource) -> Footer:
    """The file's footer, read once a process."""
    return _footers.get(source.key, lambda: _load(source))


def parquet_schema(source: TaskSource) -> Any:
    """The file's own Arrow schema, with field ids as metadata where the file has them."""
    return parquet_footer(source).columns.schema


def _load(source: TaskSource) -> tuple[Footer, int]:
    kept = source.store.kept_tail(*source.key)
    encoded = _fetched(source) if kept is None else bytes(kept[-footer_length(kept) :])
    footer = _footer(source, encoded)
    if kept is None:
        source.store.keep_tail(*source.key, encoded)
    return footer, len(encoded) + footer.num_row_groups * _NUMBERS_BYTES


def _footer(source: TaskSource, encoded: bytes) -> Footer:
    matched = _known_footers.match(encoded[:-TRAILER_BYTES])
    if matched is not None and matched.known is not None:
        return Footer(encoded, matched.known, numbers=matched.numbers)
    metadata = _parsed(encoded)
    check_metadata(encoded, metadata, source.task.where)
    columns = _known_columns.of(metadata, encoded)
    if matched is not None:
        _known_footers.learn(matched, columns)
    return Footer(encoded, columns, metadata=metadata)


def _fetched(source: TaskSource) -> bytes:
    """The end of the file, from where the footer begins.

    Raises:
        CorruptFileError, UnsupportedFeatureError: as `checked_footer_length`.
    """
    task = source.task
    tail = source.span(source.tail_span())
    length = checked_footer_length(tail, task.file_size, task.where)
    if length > len(tail):
        tail = source.span(source.tail_span(length))
    return bytes(tail[-length:])


def _parsed(tail: Any) -> Any:
    # As pq.read_metadata, without its look at every column, which takes a fifth of the time of small files.
    reader = pq.ParquetReader()
    reader.open(pa.BufferReader(tail))
    return reader.metadata
