"""`Reader`: reads the live rows of one row group of any format, and checks their number."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.batches import for_take, one_after_other, rows_only, side_by_side
from torch_dataloader_utils._arrow.number_batch import NumberBatch, as_arrow
from torch_dataloader_utils._arrow.row_filter import keep_mask
from torch_dataloader_utils._arrow.schema import nested_path, values_at
from torch_dataloader_utils._core.block import JoinedRows
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s
from torch_dataloader_utils._core.option_values import Holdout
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._core.table_file import TableFile
from torch_dataloader_utils._store import Store, open_store
from torch_dataloader_utils.errors import ConfigError, DataError
from torch_dataloader_utils.formats.checks import check_live_rows, check_stored_rows
from torch_dataloader_utils.formats.conform import conform, constant
from torch_dataloader_utils.formats.errors import FOREIGN, foreign_errors
from torch_dataloader_utils.formats.parquet.together import NumberGroups
from torch_dataloader_utils.formats.registry import format_of
from torch_dataloader_utils.formats.task_source import NO_CHANGES, Changes, TaskSource
from torch_dataloader_utils.tables.holdout import is_in_part, left_out, other_parts
from torch_dataloader_utils.tables.iceberg.decode import decode_table_rows, stored_name
from torch_dataloader_utils.tables.live_rows import group_deletes, has_unplaced_deletes, live_mask, stored_range
from torch_dataloader_utils.tables.metadata_columns import place_column
from torch_dataloader_utils.tables.projection import Projection, ReadSpec, project

if TYPE_CHECKING:
    from torch_dataloader_utils.formats.file_format import DecodeParts


def make_reader(spec: ReadSpec) -> "Reader":
    """Return the reader for a spec, which is checked here, once.

    Raises:
        ConfigError: a column or a filter does not fit the schema.
    """
    # A count delivers no column: only the filter's columns are decoded.
    return Reader(spec=spec, projection=project(spec), counting=project(replace(spec, columns=())))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reader:
    """`RowGroupReader` for every file format; tasks of different formats may be mixed.

    Picklable: stores are opened on the first read in a process. Thread-safe: calls share only cached footers.
    """

    spec: ReadSpec
    projection: Projection
    counting: Projection
    _stores: dict[str, Store] = field(default_factory=dict, repr=False)

    def read(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> pa.RecordBatch:
        """Return live rows of one row group as one contiguous RecordBatch, in file order.

        Columns are the spec's, in its order and in the schema's types (text of more than 2 GiB comes as large_string).
        In a Parquet row group, columns of plain numbers decode only the pages that hold `rows`; other columns decode
        the rows up to the last of `rows`. Other formats decode all rows, and so does a read with a filter or deletes by
        value.

        Raises:
            RowCountError: the row group holds, or leaves, another number of rows than planned.
            FileChangedError: the file is gone, or another file has its place.
            CorruptFileError, SchemaError, UnsupportedFeatureError: the row group does not decode, fit, or is not
                supported.
            StoreError: the storage failed.
        """
        batch = side_by_side(list(self._without_changes().read_columns(task, rows)))
        names = list(self.projection.delivered)
        return batch if batch.schema.names == names else batch.select(names)

    def read_columns(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Generator[pa.RecordBatch]:
        """Yield live rows of one row group as RecordBatches of a few columns each; see `RowGroupReader`.

        Several batches come only from a row group of a plain Parquet file without a filter: its rows are delivered as
        stored.
        """
        decode_parts = self._decoder_of_parts(task)
        if decode_parts is None:
            yield self._live_rows(task, self.projection, rows)
        else:
            yield from self._stored_columns(task, rows, decode_parts)

    def read_together(self, tasks: Sequence[RowGroupTask]) -> JoinedRows:
        """Return the rows of several row groups; see `RowGroupReader`.

        Columns of plain numbers come by one call of the compiled decoder, other columns row group by row group.
        """
        groups = self.numbers_of(tasks)
        numbers = None if groups is None else groups.decode()
        if groups is None or numbers is None:
            return join_row_groups(self._without_changes().read_columns, tasks)
        stored, rows = self.projection.stored, groups.rows.tolist()
        others = pa.schema([field for field in stored if field.name in groups.others])
        here = stored if not others else pa.schema([field for field in stored if field.name not in groups.others])
        parts = list(self._conformed(tasks[0], numbers, here))
        if others:
            found = [conform(source.task, _decode(source, others, ALL_ROWS), others) for source in groups.sources]
            if [columns.num_rows for columns in found] != rows:  # damaged: one of them alone raises the error
                return join_row_groups(self._without_changes().read_columns, tasks)
            parts.append(one_after_other([[columns] for columns in found]))
        if self.projection.made:
            of_tasks = [(task, 0, num_rows) for task, num_rows in zip(tasks, rows, strict=True)]
            parts.append(_with_made(of_tasks, self.projection, rows_only(sum(rows))))
        if self.projection.holdout is not None:
            mask, rows = _of_part(tasks, rows, self.projection.holdout)
            parts = [_live(part, mask) for part in parts]
        for task, num_rows in zip(tasks, rows, strict=True):
            check_live_rows(task, num_rows)
        return JoinedRows(parts, rows, by_one_call=not others)

    def _without_changes(self) -> "Reader":
        """Return a reader whose row groups have the same columns: changes are made row group by row group."""
        return replace(self, spec=replace(self.spec, changes=NO_CHANGES))

    def numbers_of(self, tasks: Sequence[RowGroupTask]) -> NumberGroups | None:
        """Return the columns of numbers of these row groups for one call of the compiled decoder, or None."""
        if not self.spec.is_compiled or None in map(self._decoder_of_parts, tasks):
            return None
        decode_together = format_of(tasks[0].file_format).decode_together
        if decode_together is None or len({task.file_format for task in tasks}) > 1:
            return None
        sources = [self._source(task, changes=self.spec.changes) for task in tasks]
        return decode_together(sources, self.projection.stored)

    def _decoder_of_parts(self, task: RowGroupTask) -> "DecodeParts | None":
        """Return the decoder of a few columns at a time, where rows are delivered by their place alone; else None."""
        is_plain = task.extra is None and _are_placed(task, self.projection)
        return format_of(task.file_format).decode_parts if is_plain else None

    def count_rows(self, task: RowGroupTask) -> int:
        """Return the live rows of one row group, after deletes and filter. Only the filter's columns are decoded."""
        return int(self._live_rows(task, self.counting, ALL_ROWS, check_live=False).num_rows)

    def list_items(self, task: RowGroupTask, column: str) -> Int64s | None:
        """Return counts of a list column in the footer of the task's file; see `formats.parquet.decode.list_items`.

        None if the format has no counts.
        """
        list_items, source = format_of(task.file_format).list_items, self._source(task)
        if list_items is None:
            return None
        with foreign_errors(task, source.file_is_planned):
            if isinstance(task.extra, TableFile):
                column = stored_name(source, self.projection.stored.field(column), task.extra)
            return list_items(source, column)

    def _live_rows(
        self, task: RowGroupTask, projection: Projection, rows: GroupRows, *, check_live: bool = True
    ) -> pa.RecordBatch:
        deleted = left_out(group_deletes(task), task, task.physical_rows, projection.holdout)
        takes_rows = format_of(task.file_format).decode_rows is not None
        decoded = stored_range(rows, deleted) if takes_rows and _are_placed(task, projection) else ALL_ROWS
        source = self._source(task, projection.known)
        with foreign_errors(task, source.file_is_planned, lambda: self._refused_columns(source, projection)):
            stored, deleted = self._decoded(source, projection, decoded, deleted)
            _check_decoded(task, decoded, stored.num_rows)
            if task.physical_rows == UNKNOWN:
                deleted = left_out(deleted, task, stored.num_rows, projection.holdout)
            is_live = _mask(decoded.start, stored.num_rows, deleted)
            made = _with_made(
                [(task, decoded.start, stored.num_rows)], projection, conform(task, stored, projection.stored)
            )
            live = _select(task, projection, made, is_live)
        if decoded != ALL_ROWS:
            _check_planned(task, deleted)
            return live
        if check_live:
            check_live_rows(task, live.num_rows)
        return slice_rows(live, rows)

    def _stored_columns(
        self, task: RowGroupTask, rows: GroupRows, decode_parts: "DecodeParts"
    ) -> Generator[pa.RecordBatch]:
        """Yield all columns of a row group, with its stored rows (or the rows of one part) as delivered rows."""
        source, num_rows, mask = self._source(task, changes=self.spec.changes), 0, None
        others = left_out(None, task, task.physical_rows, self.projection.holdout)
        rows = stored_range(rows, others)
        with foreign_errors(task, source.file_is_planned, lambda: self._refused_columns(source, self.projection)):
            stored = self.projection.stored
            for part in self._conformed(task, decode_parts(source, stored, rows), stored):
                if part.num_rows != num_rows:  # once: all parts have the same rows
                    num_rows = part.num_rows
                    mask = _mask(rows.start, num_rows, others)
                yield _live(part, mask)
        _check_decoded(task, rows, num_rows)
        _check_planned(task, others)
        if self.projection.made:
            made = _with_made([(task, rows.start, num_rows)], self.projection, rows_only(num_rows))
            yield _live(made, mask)

    def _refused_columns(self, source: TaskSource, projection: Projection) -> list[str]:
        """Return the columns that do not decode by themselves, for a message; none for a format that stores rows."""
        refused = []
        for each in projection.stored if format_of(source.task.file_format).is_columnar else ():
            try:
                self._decoded(source, replace(projection, stored=pa.schema([each])), ALL_ROWS, None)
            except (*FOREIGN, DataError):
                refused.append(each.name)
        return refused

    def _conformed(
        self, task: RowGroupTask, parts: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the parts (at least one) in the types of `schema`, and one more part with the missing columns."""
        found, num_rows = [], 0
        for part in parts:
            num_rows = part.num_rows
            fields, columns = self.projection.fields_of(part.schema)
            found.append(columns)
            yield conform(task, part, fields)
        # Leaves of one column may come in several parts.
        may_lack = sum(map(len, found)) < len(schema) or bool(self.projection.leaves)
        missing = set(schema.names).difference(*found) if may_lack else None
        if missing:
            yield conform(task, rows_only(num_rows), self.projection.fields(sorted(missing)))

    def _source(
        self, task: RowGroupTask, known: frozenset[str] | None = None, changes: Changes = NO_CHANGES
    ) -> TaskSource:
        store = self._store(task.path)
        store.note_read(task.path, task.identity, task.ordinal)
        return TaskSource(
            task=task,
            store=store,
            page_checksums=self.spec.page_checksums,
            is_compiled=self.spec.is_compiled,
            max_row_group_bytes=self.spec.max_row_group_bytes,
            known=known,
            changes=changes,
            is_of_table=isinstance(task.extra, TableFile),
        )

    def _decoded(
        self, source: TaskSource, projection: Projection, rows: GroupRows, deleted: Int64s | None
    ) -> tuple[pa.RecordBatch, Int64s | None]:
        """Return these stored rows, and all rows of the row group that are deleted."""
        extra = source.task.extra
        if not isinstance(extra, TableFile):
            return _decode(source, projection.stored, rows), deleted
        found = decode_table_rows(source, extra, projection.stored, rows, _decode, self._store)
        if len(found.deleted):
            deleted = found.deleted if deleted is None else np.union1d(deleted, found.deleted)
        return found.stored, deleted

    def _store(self, path: str) -> Store:
        # One store for each scheme and authority, so that a client is opened once and not for each file.
        head, separator, rest = path.partition("://")
        key = path if "::" in path else f"{head}{separator}{rest.partition('/')[0]}" if separator else ""
        store = self._stores.get(key)
        if store is None:
            store = self._stores.setdefault(key, open_store(path, self.spec.access))
        return store


def _are_placed(task: RowGroupTask, projection: Projection) -> bool:
    """Return whether places alone say which rows of a row group are live. Otherwise all rows have to be read first.

    Values may choose the rows, or deletes by value; and a part without `by` needs the number of stored rows.
    """
    is_counted = projection.holdout is None or task.physical_rows != UNKNOWN
    return is_counted and not projection.chooses_by_value and not has_unplaced_deletes(task)


def _check_decoded(task: RowGroupTask, rows: GroupRows, num_rows: int) -> None:
    """Raise RowCountError unless all stored rows of the range were decoded. Do nothing if the plan has no count."""
    start, stop = rows.of(task.physical_rows)
    check_stored_rows(task, task.physical_rows - (stop - start) + num_rows)


def _check_planned(task: RowGroupTask, deleted: Int64s | None = None) -> None:
    """Raise RowCountError unless as many stored rows as planned are not deleted by position."""
    if task.physical_rows != UNKNOWN:
        check_live_rows(task, task.physical_rows - (0 if deleted is None else len(deleted)))


def _decode(source: TaskSource, fields: pa.Schema, rows: GroupRows) -> pa.RecordBatch:
    """Return stored rows: `rows` if the format decodes some rows of a row group, else all rows."""
    file_format = format_of(source.task.file_format)
    if file_format.decode_rows is not None:
        return file_format.decode_rows(source, fields, rows)
    return file_format.decode(source, fields)


def _select(
    task: RowGroupTask, projection: Projection, rows: pa.RecordBatch, mask: pa.BooleanArray | None
) -> pa.RecordBatch:
    """Return the delivered columns of the rows of `mask` (None: all) that are not filtered out."""
    if projection.row_filter is not None:
        kept = _evaluate_filter(task, projection, rows.select(projection.filtered))
        mask = kept if mask is None else pc.and_(mask, kept)
    if projection.holdout is not None and projection.holdout.by is not None:
        kept = pa.array(
            is_in_part(values_at(rows, nested_path(rows.schema, projection.holdout.by)), projection.holdout)
        )
        mask = kept if mask is None else pc.and_(mask, kept)
    return _live(rows.select(projection.delivered) if rows.schema.names != list(projection.delivered) else rows, mask)


def _of_part(
    tasks: Sequence[RowGroupTask], num_rows: Sequence[int], holdout: Holdout
) -> tuple[pa.BooleanArray, list[int]]:
    """Return the mask of the part's rows among the joined rows of these row groups, and how many each group has."""
    others = other_parts(tasks, num_rows, holdout)
    masks = [live_mask(0, count, each) for count, each in zip(num_rows, others, strict=True)]
    return pa.array(np.concatenate(masks)), [len(mask) - len(each) for mask, each in zip(masks, others, strict=True)]


def _mask(first_row: int, num_rows: int, deleted: Int64s | None) -> pa.BooleanArray | None:
    """Return `live_mask` for Arrow; None if nothing is deleted."""
    return None if deleted is None else pa.array(live_mask(first_row, num_rows, deleted))


def _live(rows: pa.RecordBatch | NumberBatch, mask: pa.BooleanArray | None) -> pa.RecordBatch | NumberBatch:
    """Return the rows of the mask; None is all rows."""
    if mask is None or mask.true_count == rows.num_rows:
        return rows
    return for_take(as_arrow(rows)).filter(mask) if rows.num_columns else rows_only(mask.true_count)


def _with_made(
    tasks: Sequence[tuple[RowGroupTask, int, int]], projection: Projection, stored: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the stored rows with the columns that files do not hold; tasks: (task, first row, number of rows) each."""
    if not projection.made:
        return stored
    columns = []
    for item in projection.made:
        pieces = [_made_column(task, item, first_row, rows) for task, first_row, rows in tasks]
        columns.append(pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces))
    schema = pa.schema([*stored.schema, *projection.made])
    return pa.RecordBatch.from_arrays([*stored.columns, *columns], schema=schema)


def _made_column(task: RowGroupTask, item: pa.Field, first_row: int, num_rows: int) -> pa.Array:
    for known, value in task.partition_values:
        if known == item.name:
            return constant(value, item, num_rows)
    return place_column(task, item.name, first_row, num_rows)


def _evaluate_filter(task: RowGroupTask, projection: Projection, batch: pa.RecordBatch) -> pa.BooleanArray:
    try:
        return keep_mask(projection.row_filter, batch)
    except pa.ArrowException as error:
        raise ConfigError(
            f"{task.where}: the row filter {projection.row_filter} cannot be evaluated ({error}). It fits the types "
            "but not these values; rewrite it."
        ) from error


def join_row_groups(
    read_columns: Callable[[RowGroupTask], Iterable[pa.RecordBatch]], tasks: Sequence[RowGroupTask]
) -> JoinedRows:
    """Return the joined rows of several row groups, each read by itself; see `RowGroupReader.read_together`."""
    groups = [list(read_columns(task)) for task in tasks]
    return JoinedRows([one_after_other(groups)], [columns[0].num_rows for columns in groups], by_one_call=False)


def slice_rows(batch: pa.RecordBatch, rows: GroupRows) -> pa.RecordBatch:
    """Return some rows of a batch, as a view."""
    start, stop = rows.of(batch.num_rows)
    return batch if stop - start == batch.num_rows else batch.slice(start, stop - start)
