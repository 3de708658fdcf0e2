"""One Parquet row group, decoded.

    footer (once a file) → column chunks of the asked columns → RecordBatch

Source: parquet-format, "File Format" and "Column chunks"; pyarrow.parquet.ParquetFile.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._core.parquet_limits import footer_excess
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError
from torch_dataloader_utils.read.checks import (
    check_all_decoded,
    check_decoded_size,
    check_stored_rows,
    check_unique,
    no_such_group,
)
from torch_dataloader_utils.read.contiguous import contiguous
from torch_dataloader_utils.read.footers import FooterCache
from torch_dataloader_utils.read.source import TAIL_BYTES, TaskSource

# Length of the footer (uint32) and the magic "PAR1" or "PARE".
_TRAILER_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileColumns:
    """The columns of a file.

    paths, parquet, key_values: of its leaf columns and of the footer, what all of this was made of. schema: the file's
    Arrow schema. Of each top-level column, leaves: the numbers of its leaf columns; row_bits: the bits of a decoded row
    (of an offset, where its values have no fixed width).
    """

    paths: tuple[str, ...]
    parquet: Any
    key_values: dict[bytes, bytes] | None
    schema: Any
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


def decode_parquet(source: TaskSource, fields: Sequence[Any], stop_row: int | None) -> Any:
    """The rows of one row group, columns `fields` as far as the file has them, in the file's types.

    With `stop_row` decoding stops once that many rows are there: bytes fetched are the same, time is not.

    Raises:
        CorruptFileError, SchemaError, UnsupportedFeatureError, FileChangedError; and whatever pyarrow raises.
    """
    task = source.task
    footer = parquet_footer(source)
    if task.ordinal >= footer.metadata.num_row_groups:
        raise no_such_group(task, footer.metadata.num_row_groups)
    group = footer.metadata.row_group(task.ordinal)
    # The plan may be from elsewhere (a stale _metadata file), and what comes after `stop_row` is not looked at.
    check_stored_rows(task, group.num_rows)
    columns = [field.name for field in fields if field.name in footer.columns.leaves]
    check_unique(task, footer.columns.schema, columns)
    rows = group.num_rows if stop_row is None else min(stop_row, group.num_rows)
    _check_budget(source, footer, columns, rows)
    with source.open(lambda: _spans(source, footer, columns)) as file:
        reader = pq.ParquetFile(
            file,
            metadata=footer.metadata,
            pre_buffer=False,
            page_checksum_verification=source.page_checksums,
        )
        batches, have = [], 0
        for batch in reader.iter_batches(max(1, rows), [task.ordinal], columns, use_threads=False):
            batches.append(batch)
            have += batch.num_rows
            if stop_row is not None and have >= stop_row:
                break
    decoded = contiguous(batches)
    check_all_decoded(task, columns, decoded)
    return decoded


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
        return pq.read_metadata(pa.BufferReader(kept))
    tail = source.span(source.tail_span())
    if len(tail) < _TRAILER_BYTES:
        raise CorruptFileError(
            f"{source.task.where}: {size} bytes are no Parquet file. Write it again or leave it out."
        )
    footer_bytes = struct.unpack_from("<I", tail, len(tail) - _TRAILER_BYTES)[0] + _TRAILER_BYTES
    _check_excess(source, footer_excess(footer_bytes=footer_bytes))
    if footer_bytes > len(tail) and footer_bytes <= size:
        tail = source.span(source.tail_span(footer_bytes))
    metadata = pq.read_metadata(pa.BufferReader(tail))
    source.store.keep_tail(path, identity, tail[-footer_bytes:])
    return metadata


def _check_excess(source: TaskSource, excess: str | None) -> None:
    if excess is not None:
        raise UnsupportedFeatureError(
            f"{source.task.where}: the file has {excess}. Write the table as more files, or check this one."
        )


def _check_budget(source: TaskSource, footer: Footer, columns: Sequence[str], rows: int) -> None:
    group, budget = footer.metadata.row_group(source.task.ordinal), source.max_row_group_bytes
    if group.num_rows < 0:
        raise CorruptFileError(f"{source.task.where}: the footer says {group.num_rows} rows. Write the file again.")
    # Encoded pages may decode to more (a dictionary), so that fixed-width columns count by their rows too.
    check_decoded_size(source.task, rows * sum(footer.columns.row_bits[name] for name in columns) // 8, budget)
    if group.total_byte_size > budget:
        leaves = {leaf for name in columns for leaf in footer.columns.leaves[name]}
        check_decoded_size(source.task, sum(group.column(leaf).total_uncompressed_size for leaf in leaves), budget)


def _row_bits(data_type: Any) -> int:
    types = pa.types
    if types.is_primitive(data_type) or types.is_decimal(data_type) or types.is_fixed_size_binary(data_type):
        return int(data_type.bit_width)
    return 32


def _spans(source: TaskSource, footer: Footer, columns: Sequence[str]) -> list[Span]:
    group = footer.metadata.row_group(source.task.ordinal)
    spans = []
    for leaf in sorted({leaf for name in columns for leaf in footer.columns.leaves[name]}):
        chunk = group.column(leaf)
        start = chunk.data_page_offset
        # Some writers say 0 for "no dictionary page".
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        length = chunk.total_compressed_size
        if start < 0 or length < 0 or start + length > source.task.file_size:
            raise CorruptFileError(
                f"{source.task.where}: column {chunk.path_in_schema} is said to lie at bytes {start} to "
                f"{start + length} of {source.task.file_size}. The footer is damaged; write the file again."
            )
        spans.append((start, length))
    return spans
