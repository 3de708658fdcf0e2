"""Packs the documents of another reader into samples, and counts samples by reading or from the footer."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.batches import one_after_other
from torch_dataloader_utils._arrow.documents import Documents, list_documents, plain_type, to_plain
from torch_dataloader_utils._arrow.schema import is_list
from torch_dataloader_utils._core.block import JoinedRows
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._observe.counters import Counts, count_thread_in, thread_counts
from torch_dataloader_utils._runtime.parallel import map_in_order, threads_for
from torch_dataloader_utils.errors import DataError, NullValueError, RowCountError
from torch_dataloader_utils.samples.batch_fields import PackedField
from torch_dataloader_utils.samples.layout import count_greedy, document_tokens, lay_out, over_long_cost
from torch_dataloader_utils.samples.sample_batch import PackedGroup
from torch_dataloader_utils.samples.token_packing import PerDocument, PerToken, TokenPacking
from torch_dataloader_utils.samples.tokenizing_reader import BAD_ROW, TokenizingReader
from torch_dataloader_utils.tables.reader import Reader, join_row_groups, slice_rows

# Row groups of one window that are read at once; several windows are read at the same time.
_REMOTE_READS = 8


def footer_counts(packing: TokenPacking) -> bool:
    """Return whether the list items that a footer counts give the number of samples of a packing window."""
    is_sum = packing.fill == "greedy" and packing.pad_to_multiple_of == 1 and packing.tokenizer is None
    return is_sum and packing.counts == "footers"


def tokens_from_footer(items: Int64s, packing: TokenPacking) -> int:
    """Return the tokens of one row group with EODs: exact where the footer counts nulls, else an upper bound.

    items: (rows, level entries, entries without a value) of the column, see `Reader.list_items`. An empty or null list
    is one entry without a value:

        [7, 8] [] [9]      rows 3, entries 4, without value 1: 3 tokens in 2 documents
    """
    rows, entries, without_value = np.asarray(items).tolist()
    num_documents = max(0, rows - without_value)
    return int(entries - without_value + (num_documents if packing.eod is not None else 0))


class DocumentCounts(NamedTuple):
    """Counts of one row group.

    tokens: Tokens that the documents take, see `document_tokens`. over_long, left_out: See `over_long_cost`. rows: Live
    rows. bad: Rows that the tokenizer refuses. first_bad: Number of the first bad row.
    """

    tokens: int
    over_long: int = 0
    left_out: int = 0
    rows: int = 0
    bad: int = 0
    first_bad: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingReader:
    """`RowGroupReader` of samples; a task's `live_rows` counts the samples of its row group.

    Picklable and thread-safe if `reader` and `counter` are.

    reader: Reader of the columns of the packing, in the order of `packing.columns`.
    counter: Reader of the tokens alone, for counting.
    fields: Fields of the batches, see `find_fields`.
    """

    reader: Reader | TokenizingReader
    counter: Reader | TokenizingReader
    packing: TokenPacking
    fields: tuple[PackedField, ...]

    def read_columns(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Generator[pa.RecordBatch]:
        """Yield the samples of one packing window, in one batch. All documents are packed, whatever `rows` selects.

        rows: Samples to return.

        Raises:
            RowCountError: the number of samples differs from the plan.
            NullValueError: a token is null, or a value of a field with one value for each token.
            DataError: a list of a per-token field is not as long as the tokens of its row.
            DataError, StoreError: see Reader.read.
        """
        window = WindowRows.of(self._read_window(members_of(task)))
        documents = list_documents(window.stored.column(0), task.where)
        tokens = np.concatenate(
            [
                document_tokens(lengths, self.packing, member.where)
                for member, lengths in window.split(documents.lengths)
            ]
        )
        planned = None if task.live_rows == UNKNOWN else task.live_rows
        pieces = lay_out(tokens, self.packing, task.epoch_key, planned)
        if planned is not None and pieces.sample_count != planned:
            self._check_bound(task, pieces.sample_count)
        group = PackedGroup(
            packing=self.packing,
            lengths=documents.lengths,
            tokens=tokens,
            pieces=pieces,
            num_samples=pieces.sample_count if planned is None else planned,
        )
        arrays = [_field(field, group, documents, window) for field in self.fields]
        yield slice_rows(pa.RecordBatch.from_arrays(arrays, names=[field.name for field in self.fields]), rows)

    def _read_window(self, tasks: Sequence[RowGroupTask]) -> list[tuple[RowGroupTask, pa.RecordBatch]]:
        """Return the documents of each row group; row groups of remote files are read in parallel."""
        # UNKNOWN, because `live_rows` counts samples, which are checked after packing. Stored rows are still checked.
        if len(tasks) == 1 or "://" not in tasks[0].path:
            return [(task, self.reader.read(replace(task, live_rows=UNKNOWN))) for task in tasks]
        own = thread_counts()

        def read(task: RowGroupTask) -> tuple[RowGroupTask, pa.RecordBatch, Counts]:
            before, counts = count_thread_in(Counts()), thread_counts()
            try:
                return task, self.reader.read(replace(task, live_rows=UNKNOWN)), counts
            finally:
                count_thread_in(before)

        threads = min(len(tasks), _REMOTE_READS)
        with threads_for(threads, "tdu-window") as pool:
            found = list(map_in_order(read, tasks, pool, most_pending=2 * threads))
        for _, _, counts in found:
            own.add(counts)
        return [(task, rows) for task, rows, _ in found]

    def read_together(self, tasks: Sequence[RowGroupTask]) -> JoinedRows:
        """Return all samples of several row groups; each row group is packed by itself."""
        return join_row_groups(self.read_columns, tasks)

    def count_documents(self, task: RowGroupTask) -> tuple[DocumentCounts, Int64s]:
        """Return `count_lengths` of one row group of documents, not of samples, by reading its tokens."""
        if isinstance(self.counter, TokenizingReader):
            return self.count_lengths(self.counter.measure(task).column(0).to_numpy(), task)
        return self.count_lengths(list_documents(self.counter.read(task).column(0), task.where).lengths, task)

    def count_lengths(self, lengths: Int64s, task: RowGroupTask) -> tuple[DocumentCounts, Int64s]:
        """Return the counts of one row group, and the tokens that each document takes.

        lengths: Tokens of each document, BAD_ROW for a bad row.
        """
        bad = np.flatnonzero(lengths == BAD_ROW)
        own = lengths.clip(min=0)
        tokens = document_tokens(own, self.packing, task.where)
        cost = over_long_cost(own, self.packing) if self.packing.fill == "best_fit" else (0, 0)
        first_bad = int(bad[0]) if len(bad) else 0
        return DocumentCounts(int(tokens.sum()), *cost, len(lengths), len(bad), first_bad), tokens

    def _check_bound(self, task: RowGroupTask, samples: int) -> None:
        """Raise RowCountError, unless the plan took an upper bound from footers and there are fewer samples."""
        if samples < task.live_rows == self._samples_from_footers(task):
            return
        reason = (
            'The file changed, or its footer counts nulls that are not there: plan again, with counts="read" in '
            "pack_tokens."
            if self.packing.tokenizer is None
            else "The file changed, or the tokenizer gives other tokens than when they were counted: let it give the "
            "same tokens every time, and change its `fingerprint` when its tokens change; then plan again."
        )
        raise RowCountError(f"{task.where} gave {samples} of {task.live_rows} planned samples. {reason}")

    def _samples_from_footers(self, task: RowGroupTask) -> int | None:
        """Return the samples that the footers of a window count; None where the footers do not count them."""
        tokens = 0
        for member in members_of(task) if footer_counts(self.packing) else ():
            items = self.reader.list_items(member, self.packing.column)
            if items is None:
                return None
            tokens += tokens_from_footer(items[member.ordinal], self.packing)
        return count_greedy(tokens, self.packing)


def members_of(task: RowGroupTask) -> tuple[RowGroupTask, ...]:
    """Return the tasks of the row groups of a packing window, each by itself."""
    return (replace(task, packed_with=()), *task.packed_with) if task.packed_with else (task,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowRows:
    """Rows of the row groups of one packing window, one after the other.

    tasks: Row groups. starts: int64 [row groups]: number of each row group's first row in `stored`.
    """

    tasks: tuple[RowGroupTask, ...]
    starts: Int64s
    stored: pa.RecordBatch

    @classmethod
    def of(cls, parts: Sequence[tuple[RowGroupTask, pa.RecordBatch]]) -> "WindowRows":
        """Return the rows of these row groups, at least one. A single one is not copied."""
        ends = np.cumsum([rows.num_rows for _, rows in parts])
        return cls(
            tasks=tuple(task for task, _ in parts),
            starts=np.append(0, ends[:-1]),
            stored=parts[0][1] if len(parts) == 1 else one_after_other([[rows] for _, rows in parts]),
        )

    def split(self, values: Int64s) -> Iterator[tuple[RowGroupTask, Int64s]]:
        """Return each row group with the values of its rows. values: A value for each row."""
        return zip(self.tasks, np.split(values, self.starts[1:]), strict=True)

    def member(self, row: Int64s) -> Int64s:
        """Return the number of the row group of each row; a row group without rows has none."""
        return self.starts.searchsorted(row, side="right") - 1

    def origin(self, name: str, row: Int64s) -> pa.Array:
        """Return the value of a field that says where rows come from, for each of these rows."""
        member = self.member(row)
        match name:
            case "document_file":
                return pa.array([task.path for task in self.tasks]).take(pa.array(member))
            case "document_row_group":
                return pa.array(np.array([task.ordinal for task in self.tasks], dtype=np.int32)[member])
        return pa.array(row - self.starts[member])

    def place(self, row: int) -> tuple[str, int]:
        """Return the row group of a row, for messages, and the number of the row in it."""
        member = int(self.member(np.array([row]))[0])
        return self.tasks[member].where, row - int(self.starts[member])


def _field(field: PackedField, group: PackedGroup, documents: Documents, window: WindowRows) -> pa.Array:
    """Return one field of all samples. documents: The tokens. window: All columns of the packing."""
    match field.source:
        case None:
            return group.own_field(field.name, documents, window.origin)
        case PerDocument(column=column):
            return group.per_document(to_plain(window.stored.column(column)))
        case PerToken(column=str(column), pad=pad, eod=eod):
            values = to_plain(window.stored.column(column))
            if not is_list(plain_type(values.type)):
                return group.per_token(_repeated(values, group.tokens, column, window), pad, pad)
            lists = list_documents(values, f"{window.tasks[0].where}, column {column!r},")
            _check_lengths(lists.lengths, group.lengths, column, window)
            return group.per_token(lists, pad if eod is None else eod, pad)


def _repeated(values: pa.Array, tokens: Int64s, column: str, window: WindowRows) -> Documents:
    """Return the value of each document, once for each of its tokens."""
    if values.null_count:
        where, _ = window.place(int(values.is_null().to_numpy(zero_copy_only=False).argmax()))
        raise NullValueError(
            f"{where}, column {column!r}, has {values.null_count} nulls of {len(values)}, but every token needs a "
            "value: clean the column, or filter the rows with nulls out."
        )
    offsets = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.cumsum(tokens, out=offsets[1:])
    return Documents(values=np.repeat(values.to_numpy(zero_copy_only=False), tokens), offsets=offsets)


def _check_lengths(lengths: Int64s, tokens: Int64s, column: str, window: WindowRows) -> None:
    others = np.flatnonzero(lengths != tokens)
    if len(others):
        first = int(others[0])
        where, row = window.place(first)
        raise DataError(
            f"{where}, column {column!r}, has lists of other lengths than the tokens in {len(others)} of {len(tokens)} "
            f"rows. The first is live row {row}, with {lengths[first]} values for {tokens[first]} tokens. Write one "
            "value for each token, or filter these rows out."
        )
