"""Decoding of one Parquet row group, a few columns at a time.

    footer (once a file) → column chunks of the asked columns → RecordBatches of some columns each

Source: parquet-format, "Column chunks"; pyarrow.parquet.ParquetReader.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.batches import contiguous, one_after_other, rows_only, side_by_side
from torch_dataloader_utils._arrow.schema import is_list, type_holds, values_at
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._observe.counters import count_chunks
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.errors import CorruptFileError, SchemaError
from torch_dataloader_utils.formats.checks import check_all_decoded, check_decoded_size, check_stored_rows, check_unique
from torch_dataloader_utils.formats.parquet.footer import FileColumns, Footer, WantedColumns, parquet_footer
from torch_dataloader_utils.formats.parquet.numbers import read_numbers
from torch_dataloader_utils.formats.parquet.trailer import chunk_start
from torch_dataloader_utils.formats.statistics import counts_contradict
from torch_dataloader_utils.formats.task_source import NO_CHANGES, Changes, TaskSource

_log = logging.getLogger(__name__)

# Decoded bytes of the columns of one call. pyarrow holds the pages of all columns, stored and decompressed, until it
# returns. The pages of a few columns stay in a core's cache, and the next call uses their memory again (51 columns of
# 65,536 rows: 1.2 times as fast as by one call).
_BYTES_AT_ONCE = 1 << 20

# pyarrow decodes the rows before the needed rows too. So many rows are held at once, or as many as are needed.
_LEAST_ROWS_AT_ONCE = 1 << 16

# The unit for INT96 timestamps that nanoseconds cannot hold.
_WIDE_UNIT = "us"


def decode_parquet(source: TaskSource, schema: pa.Schema, needed: GroupRows = ALL_ROWS) -> pa.RecordBatch:
    """Return rows of one row group, with the columns of `schema` that the file has, in the file's types.

    needed: Rows to return. Rows beside them cost less work, but the same bytes are fetched. Pages before the first
    needed row are not decoded in columns that the compiled decoder reads; pages after the last needed row are never
    decoded.

    Raises:
        CorruptFileError, SchemaError, UnsupportedFeatureError, FileChangedError; and every error of pyarrow.
    """
    parts = [list(_columns(part, schema, rows, NO_CHANGES)) for part, rows in _of_one_group_each(source, needed)]
    if len(parts) > 1 and not any(batch.num_columns for part in parts for batch in part):
        return rows_only(sum(part[0].num_rows for part in parts))
    return one_after_other(parts) if len(parts) > 1 else side_by_side(parts[0])


def _of_one_group_each(source: TaskSource, needed: GroupRows) -> list[tuple[TaskSource, GroupRows]]:
    """Return the row groups that hold the needed rows, each with its needed rows; at least one row group.

    Several row groups come from a manifest that names one split offset for a file of several, so that the plan took the
    file for one row group.
    """
    task, footer = source.task, parquet_footer(source)
    if not _is_whole_file(source, footer):
        return [(source, needed)]
    start, stop = needed.of(task.physical_rows)
    parts: list[tuple[TaskSource, GroupRows]] = []
    first = 0
    for ordinal in range(footer.num_row_groups):
        rows = footer.metadata.row_group(ordinal).num_rows
        # A negative number of rows is kept: reading raises the error.
        if rows < 0 or (first < stop and first + rows > start) or (start == stop and not parts):
            part = replace(task, ordinal=ordinal, first_row=first, physical_rows=rows)
            span = GroupRows(max(start - first, 0), min(stop - first, rows))
            parts.append((replace(source, task=part), span))
        first += rows
    return parts


def _is_whole_file(source: TaskSource, footer: Footer) -> bool:
    """Return whether the task stands for all row groups of a file that has several."""
    task = source.task
    may_be = source.is_of_table and task.ordinal == 0
    return may_be and footer.num_row_groups > 1 and task.physical_rows == footer.metadata.num_rows


def parquet_columns(source: TaskSource, schema: pa.Schema, needed: GroupRows = ALL_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield rows of one row group, a few columns at a time, as soon as they are decoded; see `decode_parquet`.

    One batch without columns comes if the file has none of the columns. Rows are valid only once the iterator has
    ended: then the file is known to have stayed the same. Columns come as `source.changes` has them, if they can.
    """
    return _columns(source, schema, needed, source.changes)


def _columns(source: TaskSource, schema: pa.Schema, needed: GroupRows, changes: Changes) -> Iterator[pa.RecordBatch]:
    task = source.task
    footer = parquet_footer(source)
    group = footer.row_group(task)
    # The plan may be from another footer (a stale _metadata file), and rows after the last needed row are not read.
    check_stored_rows(task, group.num_rows)
    wanted = footer.wanted(schema, changes)
    of_file, columns = wanted.columns, wanted.names
    check_unique(task, of_file.repeated, columns)
    start, stop = needed.of(group.num_rows)
    _check_budget(source, group, wanted, stop - start)
    num_rows = None
    numbers = wanted.numbers if source.is_compiled else of_file.number_table((), {})
    _count_others(source, footer, wanted.num_leaves, len(numbers.columns))
    chunks = footer.chunks_of(numbers, task.file_size) if numbers.columns else None
    if chunks is not None:
        decoded = read_numbers(source, chunks, group.num_rows, GroupRows(start, stop))
        yield from decoded
        if sum(batch.num_columns for batch in decoded) == len(columns):
            return
        if decoded:
            num_rows = stop
            found = {name for batch in decoded for name in batch.schema.names}
            columns = [name for name in columns if name not in found]
    with source.open(lambda: _spans(source, footer, of_file.leaves_of(columns))) as file:
        stored = StoredRows(groups=(task.ordinal,), rows=group.num_rows, needed=GroupRows(start, stop))
        int96_unit = _WIDE_UNIT if _is_wide(source, of_file, schema, columns) else None
        if int96_unit is None:
            _check_int96(source, file, footer, of_file, columns, stored)
        encoded = [leaf for name in columns if name in wanted.dictionaries for leaf in of_file.leaves[name]]
        reader = open_parquet(source, file, footer.metadata, int96_unit, encoded)
        num_rows = yield from decode_columns(reader, task, of_file, columns, stored, num_rows)
    if num_rows != stop:
        check_stored_rows(task, num_rows)


def _count_others(source: TaskSource, footer: Footer, num_leaves: int, num_numbers: int) -> None:
    """Count the chunks that the compiled decoder is not asked for. The decoder counts chunks of numbers itself."""
    foreign = "type" if _engine.IS_BUILT else "not_built"
    if num_leaves > num_numbers:
        count_chunks(foreign if source.is_compiled else "turned_off", num_leaves - num_numbers)
    if num_numbers and footer.numbers is None:
        count_chunks("damaged", num_numbers)


def _is_wide(source: TaskSource, of_file: FileColumns, schema: pa.Schema, columns: Sequence[str]) -> bool:
    """Return whether the schema or a table wants INT96 timestamps as microseconds."""
    if source.is_of_table:
        return True
    wanted = [schema.field(of_file.path(name)[0]).type for name in columns if name in of_file.int96]
    return bool(wanted) and not any(type_holds(each, _is_nanoseconds) for each in wanted)


def _is_nanoseconds(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type)) and data_type.unit == "ns"


class StoredRows(NamedTuple):
    """Row groups of a reader, one after the other, their number of rows, and the range of needed rows."""

    groups: Sequence[int]
    rows: int
    needed: GroupRows = ALL_ROWS

    @property
    def num_needed(self) -> int:
        """Number of needed rows."""
        start, stop = self.needed.of(self.rows)
        return stop - start


def open_parquet(
    source: TaskSource,
    file: pa.NativeFile,
    metadata: pq.FileMetaData | None = None,
    int96_unit: str | None = None,
    dictionaries: Sequence[int] = (),
) -> pq.ParquetReader:
    """Return a pyarrow.parquet.ParquetReader of a file; metadata: The file's footer, if it is parsed already.

    int96_unit: Unit of INT96 timestamps; None for nanoseconds. dictionaries: Leaf columns of text that become
    dictionary-encoded.
    """
    # A ParquetFile would first look at every column of the file: 5,000 columns take 20 ms.
    reader = pq.ParquetReader()
    reader.open(
        file,
        metadata=metadata,
        pre_buffer=False,
        read_dictionary=dictionaries,
        coerce_int96_timestamp_unit=int96_unit,
        page_checksum_verification=source.page_checksums,
        arrow_extensions_enabled=True,
    )
    return reader


def decode_columns(
    reader: pq.ParquetReader,
    task: RowGroupTask,
    file_columns: FileColumns,
    columns: Sequence[str],
    stored: StoredRows,
    num_rows: int | None = None,
) -> Generator[pa.RecordBatch, None, int]:
    """Yield the needed rows of a reader, a few columns at a time. Return the end of the rows that were found.

    The end is the stop of the needed rows, or less if the row groups end before it.

    task: Task, for messages. num_rows: End of the rows in columns that were decoded before; None if there are no such
    columns.

    Raises:
        CorruptFileError, UnsupportedFeatureError; and every error of pyarrow.
    """
    for few in _few_at_once(file_columns, columns, stored.num_needed):
        leaves = [leaf for name in few for leaf in file_columns.leaves[name]]
        decoded, end = _decode(reader, leaves, stored)
        if file_columns.paths:
            decoded = _apart(decoded, few, file_columns)
        check_all_decoded(task, few, decoded)
        if num_rows not in (None, end):
            raise CorruptFileError(
                f"{task.where}: some columns have {num_rows} rows and {few[0]} has {end}. The file is damaged; write "
                "it again or leave it out."
            )
        num_rows = end
        yield decoded
    return num_rows or 0


def _apart(decoded: pa.RecordBatch, names: Sequence[str], file_columns: FileColumns) -> pa.RecordBatch:
    """Return columns and leaves of structs by their names. A leaf of a null struct is null."""
    arrays = {}
    for name in names:
        path = file_columns.path(name)
        if path[0] in decoded.schema.names:
            arrays[name] = values_at(decoded, path)
        elif decoded.num_rows == 0:  # pyarrow leaves columns out then
            arrays[name] = pa.array([], file_columns.field(name).type)
    return pa.RecordBatch.from_arrays([*arrays.values()], [*arrays]) if arrays else decoded


def _few_at_once(file_columns: FileColumns, columns: Sequence[str], rows: int) -> Iterator[Sequence[str]]:
    """Yield the columns in groups of `_BYTES_AT_ONCE`. A larger column comes alone; no column gives one empty group."""
    few: list[str] = []
    room = _BYTES_AT_ONCE
    for name in columns:
        num_bytes = rows * file_columns.row_bits[name] // 8
        if few and num_bytes > room:
            yield few
            few, room = [], _BYTES_AT_ONCE
        few.append(name)
        room -= num_bytes
    yield few


def _decode(reader: pq.ParquetReader, leaves: Sequence[int], stored: StoredRows) -> tuple[pa.RecordBatch, int]:
    """Return some columns as one batch, and the end of their rows: the last needed row, or an earlier one.

    pyarrow splits more than 2 GiB of text into batches that differ by column.
    """
    start, stop = stored.needed.of(stored.rows)
    if (start, stop) == (0, stored.rows):
        table = reader.read_row_groups(stored.groups, column_indices=leaves, use_threads=False)
        batches = list(map(_checked, table.to_batches()))
        return contiguous(batches) if leaves else rows_only(table.num_rows), table.num_rows
    batches, end = [], 0
    at_once = max(stop - start, _LEAST_ROWS_AT_ONCE)
    for batch in reader.iter_batches(at_once, row_groups=stored.groups, column_indices=leaves, use_threads=False):
        _checked(batch)
        begin, end = end, end + batch.num_rows
        if end > start or end >= stop:
            first = max(start, begin)
            batches.append(batch.slice(first - begin, min(stop, end) - first))
        if end >= stop:
            break
    return contiguous(batches), min(stop, end)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch after a check of dictionary indices, because pyarrow 26.0.1 checks the indices of text alone.

    Raises:
        pyarrow.ArrowInvalid: an index is not in its dictionary.
    """
    for column in batch.columns:
        if type_holds(column.type, pa.types.is_dictionary):
            _check_indices(column)
    return batch


def _check_indices(array: pa.Array) -> None:
    if pa.types.is_dictionary(array.type):
        ends = pc.min_max(array.indices)
        if ends["min"].is_valid and not 0 <= ends["min"].as_py() <= ends["max"].as_py() < len(array.dictionary):
            raise pa.ArrowInvalid("Index not in dictionary bounds")
    elif pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            _check_indices(array.field(index))
    elif is_list(array.type) or pa.types.is_map(array.type):
        _check_indices(array.values)


def _check_budget(source: TaskSource, group: pq.RowGroupMetaData, wanted: WantedColumns, rows: int) -> None:
    budget = source.max_row_group_bytes
    if group.num_rows < 0:
        raise CorruptFileError(f"{source.task.where}: the footer says {group.num_rows} rows. Write the file again.")
    # Encoded pages may decode to more (a dictionary), so that fixed-width columns count by their rows too.
    check_decoded_size(source.task, rows * wanted.row_bits // 8, budget)
    if group.total_byte_size > budget:
        leaves = wanted.columns.leaves_of(wanted.names)
        check_decoded_size(source.task, sum(group.column(leaf).total_uncompressed_size for leaf in leaves), budget)


def _check_int96(
    source: TaskSource,
    file: pa.NativeFile,
    footer: Footer,
    of_file: FileColumns,
    columns: Sequence[str],
    stored: StoredRows,
) -> None:
    """Raise SchemaError for INT96 timestamps that nanoseconds cannot hold: pyarrow would give wrong times.

    The columns are decoded twice.
    """
    names = [name for name in columns if name in of_file.int96]
    if not names:
        return
    reader = open_parquet(source, file, footer.metadata, _WIDE_UNIT)
    for part in decode_columns(reader, source.task, of_file, names, stored):
        for name, column in zip(part.schema.names, part.columns, strict=True):
            data_type = of_file.field(name).type
            try:
                column.cast(data_type)
            except pa.ArrowInvalid as error:
                raise SchemaError(
                    f"{source.task.where}: column {name} has timestamps (INT96) outside of 1677 to 2262, which its "
                    f"type, {data_type}, does not hold. Read them as microseconds with "
                    'inventory=scan_files(..., int96_unit="us"), or leave the column out.'
                ) from error


def _spans(source: TaskSource, footer: Footer, leaves: Sequence[int]) -> list[Span]:
    group = footer.row_group(source.task)
    return [_chunk_span(source.task, group.column(leaf)) for leaf in leaves]


def _chunk_span(task: RowGroupTask, chunk: pq.ColumnChunkMetaData) -> Span:
    """Return the span of a chunk with all its pages.

    Raises:
        CorruptFileError: the span is not in the file.
    """
    start, length = chunk_start(chunk.data_page_offset, chunk.dictionary_page_offset), chunk.total_compressed_size
    if start < 0 or length < 0 or start + length > task.file_size:
        raise CorruptFileError(
            f"{task.where}: the footer places column {chunk.path_in_schema} at bytes {start} to {start + length} of "
            f"{task.file_size}. The footer is damaged; write the file again."
        )
    return start, length


def list_items(source: TaskSource, name: str) -> Int64s | None:
    """Return (rows, level entries, entries without a value) of a column in each row group of its file.

    name: Name of the column in the file. Returns int64 [groups, 3]. Entries without a value are empty lists, null lists
    and null items; 0 where the footer does not count them. None if the footer cannot tell: the file lacks the column,
    the column is more than one leaf, or counts contradict each other.
    """
    footer = parquet_footer(source)
    leaves = footer.columns.leaves.get(name, ())
    if len(leaves) != 1 or not footer.has_sound_bounds:
        return None
    items = np.zeros((footer.metadata.num_row_groups, 3), dtype=np.int64)
    for ordinal in range(len(items)):
        group = footer.metadata.row_group(ordinal)
        chunk = group.column(leaves[0])
        statistics = chunk.statistics
        nulls: int = statistics.null_count if statistics is not None and statistics.has_null_count else 0
        if counts_contradict(chunk.num_values, nulls) or chunk.num_values < group.num_rows:
            _log.warning("%s: the counts of column %s contradict themselves and are not used", source.task.where, name)
            return None
        items[ordinal] = (group.num_rows, chunk.num_values, nulls)
    return items.sum(axis=0, keepdims=True) if _is_whole_file(source, footer) else items
