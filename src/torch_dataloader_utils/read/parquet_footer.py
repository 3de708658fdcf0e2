"""Footers of Parquet files, with their columns and row groups; parsed once in each process.

Source: parquet-format, "File Format"; pyarrow.parquet.FileMetaData.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import Int64s, RowGroupTask
from torch_dataloader_utils._formats.parquet_trailer import (
    TRAILER_BYTES,
    check_metadata,
    checked_footer_length,
    footer_length,
)
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._store import TAIL_BYTES
from torch_dataloader_utils.read.checks import no_such_group, repeated_names
from torch_dataloader_utils.read.file_cache import FileCache
from torch_dataloader_utils.read.joined_footer import ARROW_SCHEMA, FileFacts, chunk_codecs, footer_head
from torch_dataloader_utils.read.number_columns import NumberColumn, chunk_numbers, number_columns
from torch_dataloader_utils.read.source import TaskSource

# Tables with other columns.
_MOST_KNOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileColumns:
    """The columns of a file.

    facts: what other files with these columns have too; None for a large footer, or one without a plain end of columns.
    schema: the file's Arrow schema. repeated: names that several columns have.
    leaves: by top-level column, the numbers of its leaf columns.
    row_bits: by top-level column, the bits of a decoded row (of an offset, if values have no fixed width).
    int96: the top-level columns with timestamps of the type INT96.
    numbers: the top-level columns that the compiled decoder reads.
    """

    facts: FileFacts | None
    schema: pa.Schema
    repeated: frozenset[str]
    leaves: dict[str, tuple[int, ...]]
    row_bits: dict[str, int]
    int96: frozenset[str]
    numbers: dict[str, NumberColumn]

    @classmethod
    def of(cls, metadata: pq.FileMetaData, footer: bytes) -> Self:
        """The columns that a parsed footer describes; footer: its bytes."""
        schema = metadata.schema.to_arrow_schema()
        leaves: dict[str, list[int]] = {name: [] for name in schema.names}
        int96 = set()
        for index in range(metadata.num_columns):
            column = metadata.schema.column(index)
            # As pyarrow selects: "a" stands for every leaf below it, and a name may itself hold dots.
            for name in accumulate(column.path.split("."), "{}.{}".format):
                if name in leaves:
                    leaves[name].append(index)
                    if column.physical_type == "INT96":
                        int96.add(name)
        return cls(
            facts=_facts(metadata, footer),
            schema=schema,
            repeated=repeated_names(schema.names),
            leaves={name: tuple(indices) for name, indices in leaves.items()},
            row_bits={each.name: _row_bits(each.type) for each in schema},
            int96=frozenset(int96),
            numbers=number_columns(metadata, schema),
        )

    def leaves_of(self, columns: Iterable[str]) -> tuple[int, ...]:
        """The leaf columns of these, each once, in the file's order."""
        return tuple(sorted({leaf for name in columns for leaf in self.leaves[name]}))

    def are_of(self, metadata: pq.FileMetaData, footer: bytes) -> bool:
        """Whether another file has the same columns, described by the same bytes, from the same writer."""
        facts = self.facts
        if facts is None or not footer.startswith(facts.head) or facts.created_by != _created_by(metadata):
            return False
        if facts.arrow_schema == _arrow_schema(metadata):
            return True
        # It also has what pandas writes about the rows, such as the end of the index, which is not compared.
        schema = metadata.schema.to_arrow_schema()
        return bool(schema.with_metadata(self.schema.metadata).equals(self.schema, check_metadata=True))


def _facts(metadata: pq.FileMetaData, footer: bytes) -> FileFacts | None:
    head = footer_head(footer) if len(footer) <= TAIL_BYTES else None
    created_by = _created_by(metadata)
    if head is None or created_by is None:
        return None
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    return FileFacts(
        head=head,
        paths=[column.path for column in columns],
        types=tuple(column.physical_type for column in columns),
        arrow_schema=_arrow_schema(metadata),
        created_by=created_by,
    )


def _arrow_schema(metadata: pq.FileMetaData) -> bytes | None:
    found: bytes | None = (metadata.metadata or {}).get(ARROW_SCHEMA)
    return found


def _created_by(metadata: pq.FileMetaData) -> str | None:
    try:
        writer: str = metadata.created_by
    except UnicodeDecodeError:
        return None
    return writer


class KnownColumns:
    """The last few columns of small footers, so that files with the same columns share one object.

    For a small file it takes as long to make them as to parse the footer; and only files that share them are decoded
    together. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: Recent[tuple[str, bytes, str], FileColumns] = Recent(_MOST_KNOWN)

    def of(self, metadata: pq.FileMetaData, footer: bytes) -> FileColumns:
        """The columns that a parsed footer describes."""
        for known in self._known.values():
            if known.are_of(metadata, footer):
                return known
        columns = FileColumns.of(metadata, footer)
        facts = columns.facts
        if facts is None:
            return columns
        # Two threads with the same columns get those of the one that is first.
        same = columns.schema.remove_metadata().to_string(), facts.head, facts.created_by
        return self._known.keep(same, columns)


def _row_bits(data_type: pa.DataType) -> int:
    types = pa.types
    if types.is_primitive(data_type) or types.is_decimal(data_type) or types.is_fixed_size_binary(data_type):
        return int(data_type.bit_width)
    return 32


# Numbers of a chunk in `RowGroupNumbers`.
CHUNK_NUMBERS = 4


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


# Bytes that the numbers of a row group take in the cache, for about ten columns.
_NUMBERS_BYTES = 512


class Footer:
    """The footer of a file: its columns and row groups.

    encoded: its bytes, trailer included; metadata: what pyarrow parsed of them.
    """

    def __init__(self, encoded: bytes, metadata: pq.FileMetaData, columns: FileColumns) -> None:
        self.columns = columns
        self.num_row_groups: int = metadata.num_row_groups
        self._encoded = encoded
        self._metadata: pq.FileMetaData | None = metadata
        self._numbers: list[RowGroupNumbers] | None = None

    @cached_property
    def chunks(self) -> Int64s | None:
        """See `chunk_numbers`."""
        return chunk_numbers(self._encoded[:-TRAILER_BYTES], self.num_row_groups, self.metadata.num_columns)

    @property
    def metadata(self) -> pq.FileMetaData:
        """The parsed footer, parsed again if only its numbers were kept."""
        metadata = self._metadata
        if metadata is None:
            metadata = self._metadata = _parsed(self._encoded)
        return metadata

    def row_group(self, task: RowGroupTask) -> pq.RowGroupMetaData:
        """The metadata of a task's row group.

        Raises:
            CorruptFileError: the file does not have it.
        """
        self._check_has(task)
        return self.metadata.row_group(task.ordinal)

    def numbers(self, task: RowGroupTask) -> RowGroupNumbers | None:
        """The numbers of a task's row group; None if it cannot be joined with row groups of other files.

        They are kept and the parsed footer is not, which takes ten times its bytes: 20 kB for ten columns. Raises as
        `row_group`.
        """
        self._check_has(task)
        if self._numbers is None:
            self._numbers = self._read_numbers()
            self._metadata = None
        return self._numbers[task.ordinal] if self._numbers else None

    def _read_numbers(self) -> list[RowGroupNumbers]:
        """Those of all row groups; none if the codec of a chunk is not known."""
        facts, num_groups = self.columns.facts, self.num_row_groups
        codecs = None if facts is None else chunk_codecs(self._encoded, facts, num_groups)
        if codecs is None:
            return []
        groups = map(self.metadata.row_group, range(num_groups))
        return list(map(RowGroupNumbers.of, groups, codecs))

    def _check_has(self, task: RowGroupTask) -> None:
        if task.ordinal >= self.num_row_groups:
            raise no_such_group(task, self.num_row_groups)


_footers: FileCache[Footer] = FileCache()

_known_columns = KnownColumns()


def parquet_footer(source: TaskSource) -> Footer:
    """The file's footer, read once a process."""
    return _footers.get(source.key, lambda: _load(source))


def parquet_schema(source: TaskSource) -> pa.Schema:
    """The file's own Arrow schema, with field ids as metadata where the file has them."""
    return parquet_footer(source).columns.schema


def _load(source: TaskSource) -> tuple[Footer, int]:
    kept = source.store.kept_tail(*source.key)
    encoded = _fetched(source) if kept is None else bytes(kept[-footer_length(kept) :])
    metadata = _parsed(encoded)
    check_metadata(encoded, metadata, source.task.where)
    footer = Footer(encoded, metadata, _known_columns.of(metadata, encoded))
    if kept is None:
        source.store.keep_tail(*source.key, encoded)
    return footer, len(encoded) + footer.num_row_groups * _NUMBERS_BYTES


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


def _parsed(tail: bytes) -> pq.FileMetaData:
    # As pq.read_metadata, without its look at every column, which takes a fifth of the time of small files.
    reader = pq.ParquetReader()
    reader.open(pa.BufferReader(tail))
    return reader.metadata
