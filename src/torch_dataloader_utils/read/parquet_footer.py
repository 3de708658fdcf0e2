"""Footers of Parquet files: what columns a file has, and where its row groups lie; read once a process.

Source: parquet-format, "File Format"; pyarrow.parquet.FileMetaData.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._core.footer_parts import footer_head
from torch_dataloader_utils._core.footer_pattern import FooterNumbers
from torch_dataloader_utils._core.inventory import RowGroupTask
from torch_dataloader_utils._core.known_footers import KnownFooters
from torch_dataloader_utils._core.parquet_limits import footer_excess
from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError
from torch_dataloader_utils.read.checks import no_such_group, repeated_names
from torch_dataloader_utils.read.column_chunks import EncodedNumbers, physical_types
from torch_dataloader_utils.read.footers import FooterCache
from torch_dataloader_utils.read.joined_footer import ARROW_SCHEMA, FileFacts, chunk_codecs
from torch_dataloader_utils.read.source import TAIL_BYTES, TaskSource

# Length of the footer (uint32) and the magic, which is another one if the footer is encrypted.
_TRAILER_BYTES = 8
_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"

# What is kept of a row group's numbers, for ten columns or so.
_NUMBERS_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileColumns:
    """The columns of a file.

    facts: what other files with these columns have too; None of a large footer, or if it is not plain where the columns
    end. schema: the file's Arrow schema. repeated: names that several columns have. Of each top-level column, leaves:
    the numbers of its leaf columns; row_bits: the bits of a decoded row (of an offset, where its values have no fixed
    width).
    """

    facts: FileFacts | None
    schema: Any
    repeated: frozenset[str]
    leaves: dict[str, tuple[int, ...]]
    row_bits: dict[str, int]

    @classmethod
    def of(cls, metadata: Any, footer: bytes) -> Self:
        """Those that a parsed footer describes; `footer`: the bytes of it."""
        schema = metadata.schema.to_arrow_schema()
        leaves: dict[str, list[int]] = {name: [] for name in schema.names}
        for index in range(metadata.num_columns):
            # As pyarrow selects: "a" stands for every leaf below it, and a name may itself hold dots.
            for name in accumulate(metadata.schema.column(index).path.split("."), "{}.{}".format):
                if name in leaves:
                    leaves[name].append(index)
        return cls(
            facts=_facts(metadata, footer),
            schema=schema,
            repeated=repeated_names(schema.names),
            leaves={name: tuple(indices) for name, indices in leaves.items()},
            row_bits={each.name: _row_bits(each.type) for each in schema},
        )

    def leaves_of(self, columns: Iterable[str]) -> tuple[int, ...]:
        """The leaf columns of these, each once, in the file's order."""
        return tuple(sorted({leaf for name in columns for leaf in self.leaves[name]}))

    def are_of(self, metadata: Any, footer: bytes) -> bool:
        """Whether another file has the same columns, in the same words and from the same writer."""
        facts = self.facts
        if facts is None or not footer.startswith(facts.head) or facts.created_by != _created_by(metadata):
            return False
        if facts.arrow_schema == _arrow_schema(metadata):
            return True
        # What pandas says of the rows (its index goes to 41) is in there too.
        schema = metadata.schema.to_arrow_schema()
        return bool(schema.with_metadata(self.schema.metadata).equals(self.schema, check_metadata=True))


def _facts(metadata: Any, footer: bytes) -> FileFacts | None:
    head = footer_head(footer) if len(footer) <= TAIL_BYTES else None
    created_by = _created_by(metadata)
    if head is None or created_by is None:
        return None
    return FileFacts(
        head=head,
        paths=[metadata.schema.column(index).path for index in range(metadata.num_columns)],
        types=physical_types(metadata.schema),
        arrow_schema=_arrow_schema(metadata),
        created_by=created_by,
    )


def _arrow_schema(metadata: Any) -> bytes | None:
    found: bytes | None = (metadata.metadata or {}).get(ARROW_SCHEMA)
    return found


def _created_by(metadata: Any) -> str | None:
    try:
        writer: str = metadata.created_by
    except UnicodeDecodeError:
        return None
    return writer


class KnownColumns:
    """The columns of small footers of late, so that files with the same ones share them.

    Of small files they cost as much to find out as the footer to parse, and files are decoded together only if they
    share them. For all threads, without a lock: entries are read, set where there is none, and deleted, each at once.
    """

    _MOST = 16

    def __init__(self) -> None:
        self._known: dict[Any, FileColumns] = {}

    def of(self, metadata: Any, footer: bytes) -> FileColumns:
        """The columns that a parsed footer describes."""
        for known in list(self._known.values()):
            if known.are_of(metadata, footer):
                return known
        columns = FileColumns.of(metadata, footer)
        facts = columns.facts
        if facts is None:
            return columns
        # Two threads with the same columns get those of the one that is first.
        same = columns.schema.remove_metadata().to_string(), facts.head, facts.created_by
        columns = self._known.setdefault(same, columns)
        while len(self._known) > self._MOST:
            self._known.pop(next(iter(self._known)), None)
        return columns


class Footer:
    """The footer of a file: its columns, and what it says of row groups.

    encoded: its bytes, trailer included. It is parsed once something is wanted that a pattern does not give; of two
    threads at once, both may do so.
    """

    def __init__(
        self, encoded: bytes, columns: FileColumns, *, metadata: Any = None, numbers: FooterNumbers | None = None
    ) -> None:
        """Either parsed or matched."""
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
        """What it says of a task's row group; None if that cannot be joined with those of other files.

        Kept, as asking a parsed footer takes longer than the rest of a small row group. Raises as `row_group`.
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


_footers: FooterCache[Footer] = FooterCache()

_known_columns = KnownColumns()

# Those of footers that need not be parsed for it.
_known_footers: KnownFooters[FileColumns] = KnownFooters()


def parquet_footer(source: TaskSource) -> Footer:
    """The file's footer, read once a process."""
    return _footers.get(source.key, lambda: _load(source))


def parquet_schema(source: TaskSource) -> Any:
    """The file's own Arrow schema, with field ids as metadata where the file has them."""
    return parquet_footer(source).columns.schema


def _load(source: TaskSource) -> tuple[Footer, int]:
    kept = source.store.kept_tail(*source.key)
    encoded = _fetched(source) if kept is None else bytes(kept[-_footer_bytes(kept) :])
    footer = _footer(source, encoded)
    if kept is None:
        source.store.keep_tail(*source.key, encoded)
    return footer, len(encoded) + footer.num_row_groups * _NUMBERS_BYTES


def _footer(source: TaskSource, encoded: bytes) -> Footer:
    matched = _known_footers.match(encoded[:-_TRAILER_BYTES]) if encoded.endswith(_MAGIC) else None
    if matched is not None and matched.known is not None:
        return Footer(encoded, matched.known, numbers=matched.numbers)
    metadata = _parsed(encoded)
    counts = {"num_columns": metadata.num_columns, "num_row_groups": metadata.num_row_groups}
    _check_excess(source, footer_excess(**counts))
    if metadata.num_row_groups and metadata.num_columns and metadata.row_group(0).column(0).file_path:
        raise UnsupportedFeatureError(
            f"{source.task.where} keeps its columns in other files (a _metadata file?). Scan those files instead."
        )
    columns = _known_columns.of(metadata, encoded)
    if matched is not None:
        _known_footers.learn(matched, columns)
    return Footer(encoded, columns, metadata=metadata)


def _fetched(source: TaskSource) -> bytes:
    """The end of the file, from where the footer begins; an encrypted one too, which pyarrow refuses.

    Raises:
        CorruptFileError: no footer ends the file (it was cut, or is no Parquet file), or one larger than the file.
        UnsupportedFeatureError: a footer of too many bytes.
    """
    size = source.task.file_size
    tail = source.span(source.tail_span())
    if len(tail) < _TRAILER_BYTES:
        raise _no_footer(source, f"{size:,} bytes are no Parquet file")
    if bytes(tail[-len(_MAGIC) :]) not in (_MAGIC, _ENCRYPTED_MAGIC):
        raise _no_footer(source, "the file was cut, or is no Parquet file (it does not end with PAR1)")
    footer_bytes = _footer_bytes(tail)
    if footer_bytes > size:
        raise _no_footer(source, f"the footer claims {footer_bytes:,} bytes of a file of {size:,}")
    _check_excess(source, footer_excess(footer_bytes=footer_bytes))
    if footer_bytes > len(tail):
        tail = source.span(source.tail_span(footer_bytes))
    return bytes(tail[-footer_bytes:])


def _no_footer(source: TaskSource, what: str) -> CorruptFileError:
    return CorruptFileError(f"{source.task.where}: {what}. Write it again or leave it out.")


def _footer_bytes(tail: Buffer) -> int:
    """How long the footer is, trailer included."""
    length: int = struct.unpack_from("<I", tail, len(tail) - _TRAILER_BYTES)[0]
    return length + _TRAILER_BYTES


def _parsed(tail: Any) -> Any:
    # What pq.read_metadata does, less its look at every column: a fifth of the time of small files.
    reader = pq.ParquetReader()
    reader.open(pa.BufferReader(tail))
    return reader.metadata


def _check_excess(source: TaskSource, excess: str | None) -> None:
    if excess is not None:
        raise UnsupportedFeatureError(
            f"{source.task.where}: the file has {excess}. Write the table as more files, or check this one."
        )


def _row_bits(data_type: Any) -> int:
    types = pa.types
    if types.is_primitive(data_type) or types.is_decimal(data_type) or types.is_fixed_size_binary(data_type):
        return int(data_type.bit_width)
    return 32
