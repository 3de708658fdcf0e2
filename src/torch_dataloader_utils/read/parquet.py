"""One Parquet row group, decoded, a few columns at a time.

    footer (once a file) → column chunks of the asked columns → RecordBatches of some columns each

Source: parquet-format, "Column chunks"; pyarrow.parquet.ParquetReader.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.parquet as pq

from torch_dataloader_utils._store import Span
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.read.checks import (
    check_all_decoded,
    check_decoded_size,
    check_stored_rows,
    check_unique,
    no_such_group,
)
from torch_dataloader_utils.read.contiguous import contiguous, rows_only
from torch_dataloader_utils.read.parquet_footer import Footer, parquet_footer
from torch_dataloader_utils.read.source import TaskSource
from torch_dataloader_utils.record_batches import side_by_side

# Columns that are decoded by one call, in bytes of their rows. pyarrow holds the pages of all of them, stored and
# decompressed, until it returns: those of a few stay in a core's cache, and their memory is used again for the next
# (51 columns of 65,536 rows: 1.2 times as fast as by one call).
_BYTES_AT_ONCE = 1 << 20


def decode_parquet(source: TaskSource, schema: Any, stop_row: int | None) -> Any:
    """The rows of one row group, columns of `schema` as far as the file has them, in the file's types.

    With `stop_row` decoding stops once that many rows are there: bytes fetched are the same, time is not.

    Raises:
        CorruptFileError, SchemaError, UnsupportedFeatureError, FileChangedError; and whatever pyarrow raises.
    """
    return side_by_side(list(parquet_columns(source, schema, stop_row)))


def parquet_columns(source: TaskSource, schema: Any, stop_row: int | None) -> Iterator[Any]:
    """The same, a few columns at a time, each as soon as it is decoded; one batch without columns if there are none.

    What is given is not certain before the end: only there the file is known to have stayed the same.
    """
    task = source.task
    footer = parquet_footer(source)
    if task.ordinal >= footer.metadata.num_row_groups:
        raise no_such_group(task, footer.metadata.num_row_groups)
    group = footer.metadata.row_group(task.ordinal)
    # The plan may be from elsewhere (a stale _metadata file), and what comes after `stop_row` is not looked at.
    check_stored_rows(task, group.num_rows)
    columns = [name for name in schema.names if name in footer.columns.leaves]
    check_unique(task, footer.columns.repeated, columns)
    rows = group.num_rows if stop_row is None else min(stop_row, group.num_rows)
    _check_budget(source, footer, columns, rows)
    with source.open(lambda: _spans(source, footer, columns)) as file:
        # What is inside of a ParquetFile, which would first look at every column of the file: 5,000 of them take 20 ms.
        reader = pq.ParquetReader()
        reader.open(
            file,
            metadata=footer.metadata,
            pre_buffer=False,
            page_checksum_verification=source.page_checksums,
            arrow_extensions_enabled=True,
        )
        num_rows = None
        for few in _few_at_once(footer, columns, rows):
            leaves = [leaf for name in few for leaf in footer.columns.leaves[name]]
            decoded = _decode(reader, task.ordinal, leaves, rows, is_prefix=stop_row is not None)
            check_all_decoded(task, few, decoded)
            if num_rows not in (None, decoded.num_rows):
                raise CorruptFileError(
                    f"{task.where}: some columns have {num_rows} rows and {few[0]} has {decoded.num_rows}. The file is "
                    "damaged; write it again or leave it out."
                )
            num_rows = decoded.num_rows
            yield _only(few, decoded)


def _few_at_once(footer: Footer, columns: Sequence[str], rows: int) -> Iterator[Sequence[str]]:
    """The columns in lots of `_BYTES_AT_ONCE`, a larger one alone; an empty lot if there are none."""
    lot: list[str] = []
    room = _BYTES_AT_ONCE
    for name in columns:
        num_bytes = rows * footer.columns.row_bits[name] // 8
        if lot and num_bytes > room:
            yield lot
            lot, room = [], _BYTES_AT_ONCE
        lot.append(name)
        room -= num_bytes
    yield lot


def _decode(reader: Any, group: int, leaves: Sequence[int], rows: int, *, is_prefix: bool) -> Any:
    """Some columns of one row group: all its rows, or the first `rows`.

    Text of more than 2 GiB comes as several batches, whose borders differ from column to column.
    """
    if not is_prefix:
        table = reader.read_row_group(group, column_indices=leaves, use_threads=False)
        return contiguous(table.to_batches()) if leaves else rows_only(table.num_rows)
    batches, have = [], 0
    for batch in reader.iter_batches(max(1, rows), row_groups=[group], column_indices=leaves, use_threads=False):
        batches.append(batch)
        have += batch.num_rows
        if have >= rows:
            break
    decoded = contiguous(batches)
    return decoded.slice(0, rows) if have > rows else decoded


def _only(columns: Sequence[str], batch: Any) -> Any:
    """The batch without what pyarrow decoded beside: a struct `a` for a column whose name is "a.b"."""
    names = batch.schema.names
    return batch if len(names) <= len(columns) else batch.select([name for name in names if name in columns])


def _check_budget(source: TaskSource, footer: Footer, columns: Sequence[str], rows: int) -> None:
    group, budget = footer.metadata.row_group(source.task.ordinal), source.max_row_group_bytes
    if group.num_rows < 0:
        raise CorruptFileError(f"{source.task.where}: the footer says {group.num_rows} rows. Write the file again.")
    # Encoded pages may decode to more (a dictionary), so that fixed-width columns count by their rows too.
    check_decoded_size(source.task, rows * sum(footer.columns.row_bits[name] for name in columns) // 8, budget)
    if group.total_byte_size > budget:
        leaves = {leaf for name in columns for leaf in footer.columns.leaves[name]}
        check_decoded_size(source.task, sum(group.column(leaf).total_uncompressed_size for leaf in leaves), budget)


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
