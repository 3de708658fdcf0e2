"""Footers of Parquet files: what columns a file has, and where its row groups lie; read once a process.

Source: parquet-format, "File Format"; pyarrow.parquet.FileMetaData.
"""

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._core.parquet_limits import footer_excess
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError
from torch_dataloader_utils.read.checks import repeated_names
from torch_dataloader_utils.read.footers import FooterCache
from torch_dataloader_utils.read.source import TAIL_BYTES, TaskSource

# Length of the footer (uint32) and the magic "PAR1" or "PARE".
_TRAILER_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileColumns:
    """The columns of a file.

    paths, parquet, key_values: of its leaf columns and of the footer, what all of this was made of. schema: the file's
    Arrow schema. repeated: names that several columns have. Of each top-level column, leaves: the numbers of its leaf
    columns; row_bits: the bits of a decoded row (of an offset, where its values have no fixed width).
    """

    paths: tuple[str, ...]
    parquet: Any
    key_values: dict[bytes, bytes] | None
    schema: Any
    repeated: frozenset[str]
    leaves: dict[str, tuple[int, ...]]
    row_bits: dict[str, int]

    @classmethod
    def of(cls, metadata: Any) -> Self:
        """Those that a parsed footer describes."""
        schema = metadata.schema.to_arrow_schema()
        leaves: dict[str, list[int]] = {name: [] for name in schema.names}
        paths = _leaf_paths(metadata)
        for index, path in enumerate(paths):
            # As pyarrow selects: "a" stands for every leaf below it, and a name may itself hold dots.
            for name in accumulate(path.split("."), "{}.{}".format):
                if name in leaves:
                    leaves[name].append(index)
        return cls(
            paths=paths,
            parquet=metadata.schema,
            key_values=metadata.metadata,
            schema=schema,
            repeated=repeated_names(schema.names),
            leaves={name: tuple(indices) for name, indices in leaves.items()},
            row_bits={field.name: _row_bits(field.type) for field in schema},
        )

    def are_of(self, metadata: Any) -> bool:
        """Whether `of` would give the same for this footer, if none of these columns is nested.

        `equals` compares leaf columns alone, and calls two list columns of different names equal.
        """
        return (
            self.paths == _leaf_paths(metadata)
            and bool(self.parquet.equals(metadata.schema))
            and self.key_values == metadata.metadata
        )


def _leaf_paths(metadata: Any) -> tuple[str, ...]:
    return tuple(metadata.schema.column(index).path for index in range(metadata.num_columns))


class LastColumns:
    """The columns of the small footer parsed last; the next file most often has the same.

    Of small files they cost as much to find out as the footer to parse. For all threads, without a lock: one
    reference is read, and replaced.
    """

    def __init__(self) -> None:
        self._last: FileColumns | None = None

    def of(self, metadata: Any) -> FileColumns:
        """The columns that a parsed footer describes."""
        last = self._last
        if last is not None and last.are_of(metadata):
            return last
        columns = FileColumns.of(metadata)
        # They keep their footer alive. Paths of nested columns have dots.
        if metadata.serialized_size <= TAIL_BYTES and not any("." in path for path in columns.paths):
            self._last = columns
        return columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Footer:
    """A parsed footer."""

    metadata: Any
    columns: FileColumns


_footers: FooterCache[Footer] = FooterCache()

_last_columns = LastColumns()


def parquet_footer(source: TaskSource) -> Footer:
    """The file's footer, read once a process."""
    return _footers.get(source.key, lambda: _load(source))


def parquet_schema(source: TaskSource) -> Any:
    """The file's own Arrow schema, with field ids as metadata where the file has them."""
    return parquet_footer(source).columns.schema


def _load(source: TaskSource) -> tuple[Footer, int]:
    metadata = _read_metadata(source)
    counts = {"num_columns": metadata.num_columns, "num_row_groups": metadata.num_row_groups}
    _check_excess(source, footer_excess(**counts))
    if metadata.num_row_groups and metadata.num_columns and metadata.row_group(0).column(0).file_path:
        raise UnsupportedFeatureError(
            f"{source.task.where} keeps its columns in other files (a _metadata file?). Scan those files instead."
        )
    return Footer(metadata=metadata, columns=_last_columns.of(metadata)), metadata.serialized_size


def _read_metadata(source: TaskSource) -> Any:
    size, (path, identity) = source.task.file_size, source.key
    kept = source.store.kept_tail(path, identity)
    if kept is not None:
        return _parsed(kept)
    tail = source.span(source.tail_span())
    if len(tail) < _TRAILER_BYTES:
        raise CorruptFileError(
            f"{source.task.where}: {size} bytes are no Parquet file. Write it again or leave it out."
        )
    footer_bytes = struct.unpack_from("<I", tail, len(tail) - _TRAILER_BYTES)[0] + _TRAILER_BYTES
    _check_excess(source, footer_excess(footer_bytes=footer_bytes))
    if footer_bytes > len(tail) and footer_bytes <= size:
        tail = source.span(source.tail_span(footer_bytes))
    metadata = _parsed(tail)
    source.store.keep_tail(path, identity, tail[-footer_bytes:])
    return metadata


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
