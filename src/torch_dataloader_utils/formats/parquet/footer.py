"""Footers of Parquet files, with their columns and row groups. A process parses each footer once.

Source: parquet-format, "File Format"; pyarrow.parquet.FileMetaData.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.schema import FieldPath, all_nullable, field_at, leaf_ranges, leaves_at
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._store import TAIL_BYTES, Buffer, Store, redact
from torch_dataloader_utils.formats.checks import no_such_group, repeated_names
from torch_dataloader_utils.formats.file_cache import FileCache
from torch_dataloader_utils.formats.parquet.footer_numbers import FooterNumbers, footer_numbers
from torch_dataloader_utils.formats.parquet.number_columns import NumberColumn, number_column, number_columns
from torch_dataloader_utils.formats.parquet.number_places import NumberTable
from torch_dataloader_utils.formats.parquet.numbers import FileChunks
from torch_dataloader_utils.formats.parquet.trailer import (
    check_metadata,
    check_structure,
    checked_footer_length,
    footer_length,
    has_sound_bounds,
)
from torch_dataloader_utils.formats.task_source import Changes, Conversion, TaskSource

# Types that pyarrow can read as dictionaries.
_DICTIONARY_TYPES = (pa.string(), pa.binary())

# Number of tables, each with other columns.
_MOST_KNOWN = 16


class WantedColumns(NamedTuple):
    """Columns of a schema that a file has, with what reading a row group has to know of them, computed once.

    columns: Columns of the file, with leaves of structs beside them. names: Names of the columns and leaves to read; a
    column of structs is not read if its leaves are. numbers: The columns that the compiled decoder reads. row_bits:
    Bits of a decoded row. num_leaves: Number of their leaf columns. dictionaries: Names of columns of text that become
    dictionary-encoded.
    """

    schema: pa.Schema
    changes: Changes
    columns: "FileColumns"
    names: Sequence[str]
    numbers: NumberTable
    row_bits: int
    num_leaves: int
    dictionaries: Set[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileColumns:
    """Columns of a file.

    schema: Arrow schema of the file. repeated: Names that several columns have.
    leaves: Numbers of the leaf columns, by top-level column. num_leaves: Number of leaf columns of the file.
    row_bits: Bits of a decoded row, by top-level column (of an offset, if values have no fixed width).
    int96: Top-level columns with timestamps of the type INT96.
    numbers: Top-level columns that the compiled decoder reads.
    paths: Paths of leaves of structs that `leaves`, `row_bits`, `int96` and `numbers` have by name, beside the columns.
    """

    schema: pa.Schema
    repeated: frozenset[str]
    leaves: dict[str, tuple[int, ...]]
    num_leaves: int
    row_bits: dict[str, int]
    int96: frozenset[str]
    numbers: dict[str, NumberColumn]
    paths: Mapping[str, FieldPath] = field(default_factory=dict)
    _tables: Recent[tuple[object, ...], NumberTable] = field(default_factory=lambda: Recent(_MOST_KNOWN), init=False)
    _wanted: Recent[int, WantedColumns] = field(default_factory=lambda: Recent(_MOST_KNOWN), init=False)

    @classmethod
    def of(cls, metadata: pq.FileMetaData, schema: pa.Schema) -> Self:
        """Return the columns that a parsed footer describes; schema: Arrow schema of the footer."""
        kinds = [metadata.schema.column(leaf).physical_type for leaf in range(metadata.num_columns)]
        leaves = {name: tuple(each) for name, each in zip(schema.names, leaf_ranges(schema), strict=True)}
        int96 = (name for name, each in leaves.items() if any(kinds[leaf] == "INT96" for leaf in each))
        return cls(
            schema=schema,
            repeated=repeated_names(schema.names),
            leaves=leaves,
            num_leaves=metadata.num_columns,
            row_bits={each.name: _row_bits(each.type) for each in schema},
            int96=frozenset(int96),
            numbers=number_columns(metadata, schema),
        )

    def number_table(self, fields: Iterable[pa.Field], conversions: Mapping[str, Conversion]) -> NumberTable:
        """The columns of a data set that the compiled decoder reads in the file, with their values converted."""
        wanted = {field.name: field.type for field in fields if field.name in self.numbers}
        changes = tuple((name, wanted[name], conversions[name]) for name in wanted if name in conversions)

        def table(_: object) -> NumberTable:
            columns = {name: self.numbers[name] for name in wanted}
            columns |= {name: columns[name].converted(data_type, to) for name, data_type, to in changes}
            return NumberTable.of(columns.values())

        return self._tables.get((tuple(wanted), changes), table)

    def wanted(self, metadata: Callable[[], pq.FileMetaData], schema: pa.Schema, changes: Changes) -> WantedColumns:
        """Return the columns of a schema that the file has. A reader asks with the same objects for all row groups.

        metadata: Function that returns the footer.
        """
        known = self._wanted.find(id(schema))
        if known is None or known.schema is not schema or known.changes is not changes:
            fields = [each for each in schema if each.name in self.leaves]
            apart = {each.name: changes.leaves[each.name] for each in fields if self._has_leaves(each, changes)}
            columns = self._with_leaves(metadata(), apart) if apart else self
            found = [leaf for each in fields for leaf in _leaf_fields(each, apart.get(each.name))]
            names = [each.name for each in found]
            row_bits = sum(columns.row_bits[name] for name in names)
            num_leaves = sum(len(columns.leaves[name]) for name in names)
            numbers = columns.number_table(found, changes.conversions)
            dictionaries = {
                each.name
                for each in found
                if each.name in changes.dictionaries.difference(columns.paths)
                and each.type in _DICTIONARY_TYPES
                and self.schema.field(each.name).type == each.type
            }
            known = WantedColumns(schema, changes, columns, names, numbers, row_bits, num_leaves, dictionaries)
            self._wanted.keep(id(schema), known)
        return known

    def path(self, name: str) -> FieldPath:
        """Return the path of a column or leaf."""
        return self.paths.get(name, (name,))

    def field(self, name: str) -> pa.Field:
        """Return the stored field of a column or leaf; see `field_at`."""
        path = self.path(name)
        return field_at(self.schema.field(path[0]), path)

    def _has_leaves(self, wanted: pa.Field, changes: Changes) -> bool:
        """Return whether a column is read by its leaves: its type is that of the data set, so no leaf is cast."""
        if wanted.name not in changes.leaves or wanted.name in self.repeated:
            return False
        stored = self.schema.field(wanted.name)
        is_same = all_nullable(stored.type) == all_nullable(wanted.type)
        return is_same and (wanted.nullable or not stored.nullable)

    def _with_leaves(self, metadata: pq.FileMetaData, apart: Mapping[str, Mapping[str, FieldPath]]) -> Self:
        """Return the columns with leaves of structs beside them; apart: Name and path of each leaf, by column."""
        paths = {name: path for leaves in apart.values() for name, path in leaves.items()}
        leaves, row_bits, int96, numbers = dict(self.leaves), dict(self.row_bits), set(self.int96), dict(self.numbers)
        for name, path in paths.items():
            column = self.schema.field(path[0])
            leaf = field_at(column, path).with_name(name)
            leaves[name] = tuple(self.leaves[path[0]][0] + inside for inside in leaves_at(column, path))
            row_bits[name] = _row_bits(leaf.type)
            int96.discard(name)
            if any(metadata.schema.column(number).physical_type == "INT96" for number in leaves[name]):
                int96.add(name)
            numbers.pop(name, None)
            number = number_column(metadata, leaf, leaves[name])
            if number is not None:
                numbers[name] = number
        return replace(self, leaves=leaves, row_bits=row_bits, int96=frozenset(int96), numbers=numbers, paths=paths)

    def leaves_of(self, columns: Iterable[str]) -> tuple[int, ...]:
        """Return the leaf columns of these columns, each once, in the file's order."""
        return tuple(sorted({leaf for name in columns for leaf in self.leaves[name]}))


def _leaf_fields(column: pa.Field, leaves: Mapping[str, FieldPath] | None) -> list[pa.Field]:
    """Return the leaves of a column in the types of the data set; None: the column itself."""
    if leaves is None:
        return [column]
    return [field_at(column, path).with_name(name) for name, path in leaves.items()]


class KnownColumns:
    """Columns of the last few small footers, so that files of one kind are parsed once and share one object.

    To parse the footer of a small file and to look at its columns takes longer than to decode it. Thread-safe.
    """

    def __init__(self) -> None:
        self._of_footers: Recent[tuple[bytes, bytes], FileColumns] = Recent(_MOST_KNOWN)
        self._of_heads: Recent[bytes, FileColumns] = Recent(_MOST_KNOWN)

    def find(self, numbers: FooterNumbers) -> FileColumns | None:
        """Return the columns of an earlier footer that differs in numbers alone; None if no footer does."""
        columns = self._of_footers.find((numbers.head, numbers.tail))
        fits = columns is not None and (not len(numbers.chunks) or numbers.chunks.shape[1] == columns.num_leaves)
        return columns if fits else None

    def of(self, metadata: pq.FileMetaData, numbers: FooterNumbers | None) -> FileColumns:
        """Return the columns that a parsed footer describes; numbers: Numbers of a small footer that was understood."""
        schema = metadata.schema.to_arrow_schema()
        if numbers is None:
            return FileColumns.of(metadata, schema)
        # The tail also has pandas' facts about the rows, such as the end of the index. They are not compared.
        known = self._of_heads.find(numbers.head)
        if known is None or not _are_same(known.schema, schema):
            known = FileColumns.of(metadata, schema)
            self._of_heads.keep(numbers.head, known)
        return self._of_footers.keep((numbers.head, numbers.tail), known)


def _are_same(known: pa.Schema, schema: pa.Schema) -> bool:
    return bool(schema.with_metadata(known.metadata).equals(known, check_metadata=True))


def _row_bits(data_type: pa.DataType) -> int:
    types = pa.types
    if types.is_primitive(data_type) or types.is_decimal(data_type) or types.is_fixed_size_binary(data_type):
        return int(data_type.bit_width)
    return 32


class Footer:
    """Footer of a file: its columns and row groups.

    encoded: Bytes of the footer, trailer included. numbers: Numbers that the compiled decoder understood. metadata:
    Footer as pyarrow parsed it; None until somebody asks for it.
    """

    def __init__(
        self, encoded: bytes, columns: FileColumns, numbers: FooterNumbers | None, metadata: pq.FileMetaData | None
    ) -> None:
        self.columns = columns
        self.numbers = numbers
        self._encoded = encoded
        self._metadata = metadata
        self._chunks: tuple[int, FileChunks] | None = None

    def chunks_of(self, table: NumberTable, file_size: int) -> FileChunks | None:
        """The chunks of these columns in all row groups; None if the compiled decoder did not understand the footer."""
        if self.numbers is None:
            return None
        known = self._chunks
        if known is None or known[1].table is not table or known[0] != file_size:
            known = self._chunks = (file_size, FileChunks.of(table, self.numbers, file_size))
        return known[1]

    @property
    def metadata(self) -> pq.FileMetaData:
        """Footer as pyarrow parses it. It takes ten times the footer's bytes: 20 kB for ten columns."""
        metadata = self._metadata
        if metadata is None:
            metadata = self._metadata = _parsed(self._encoded)
        return metadata

    @property
    def has_sound_bounds(self) -> bool:
        """Whether pyarrow may be asked for the statistics of chunks; see `has_sound_bounds`."""
        return has_sound_bounds(self._encoded)

    @property
    def num_row_groups(self) -> int:
        """Number of row groups of the file."""
        return self.metadata.num_row_groups if self.numbers is None else len(self.numbers.groups)

    def wanted(self, schema: pa.Schema, changes: Changes) -> WantedColumns:
        """Return the columns of a schema that the file has; see `FileColumns.wanted`."""
        return self.columns.wanted(lambda: self.metadata, schema, changes)

    def row_group(self, task: RowGroupTask) -> pq.RowGroupMetaData:
        """Return the metadata of a task's row group; raise as `check_has`."""
        self.check_has(task)
        return self.metadata.row_group(task.ordinal)

    def check_has(self, task: RowGroupTask) -> None:
        """Raise CorruptFileError if the file does not have a task's row group."""
        if task.ordinal >= self.num_row_groups:
            raise no_such_group(task, self.num_row_groups)


KEPT = "footer"
"""Name of the value that a host keeps for the footer of a file."""

_footers: FileCache[Footer] = FileCache()

_known_columns = KnownColumns()


def parquet_footer(source: TaskSource) -> Footer:
    """Return the file's footer, read once a process."""
    return _footers.get(source.key, lambda: _load(source))


def parquet_schema(source: TaskSource) -> pa.Schema:
    """Return the file's own Arrow schema, with field ids as metadata where the file has them."""
    return parquet_footer(source).columns.schema


def kept_footer(store: Store, path: str, identity: str, read: Callable[[], Buffer]) -> Buffer:
    """Return the footer of a file, trailer included, checked by `check_structure`; a host keeps it for a remote file.

    read: Function that returns the end of the file, from the footer on or from before the footer.
    """

    def read_footer() -> Buffer:
        return checked_footer(read(), path)

    return read_footer() if store.is_local else store.values(path, identity).once(KEPT, read_footer)


def checked_footer(tail: Buffer, path: str) -> Buffer:
    """Return the footer, trailer included, that ends these bytes, once `check_structure` has passed it."""
    check_structure(memoryview(tail), redact(path))
    return memoryview(tail)[-footer_length(memoryview(tail)) :]


def _load(source: TaskSource) -> tuple[Footer, int]:
    encoded = bytes(kept_footer(source.store, *source.key, lambda: _fetched(source)))
    numbers = footer_numbers(encoded)
    is_small = numbers is not None and len(encoded) <= TAIL_BYTES
    columns = _known_columns.find(numbers) if numbers is not None and is_small else None
    metadata = None
    if columns is None:
        metadata = _parsed(encoded)
        check_metadata(encoded, metadata, source.task.where)
        columns = _known_columns.of(metadata, numbers if is_small else None)
    footer = Footer(encoded, columns, numbers, metadata)
    # The chunks of the columns that are read take as much again, see `chunks_of`.
    return footer, len(encoded) + (0 if numbers is None else 2 * numbers.chunks.nbytes)


def _fetched(source: TaskSource) -> bytes:
    """Return the end of the file, from the first byte of the footer on.

    Raises:
        CorruptFileError, UnsupportedFeatureError: see `checked_footer_length`.
    """
    task = source.task
    tail = source.tail()
    length = checked_footer_length(tail, task.file_size, task.where)
    if length > len(tail):
        tail = source.tail(length)
    return bytes(tail[-length:])


def _parsed(tail: bytes) -> pq.FileMetaData:
    # pq.read_metadata also looks at every column, which takes a fifth of the time of small files.
    reader = pq.ParquetReader()
    reader.open(pa.BufferReader(tail))
    return reader.metadata
