"""Packs the documents of another reader into samples, and counts samples by reading or from the footer."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.documents import Documents, list_documents, plain_type, to_plain
from torch_dataloader_utils._arrow.schema import is_list
from torch_dataloader_utils._core.block import JoinedRows
from torch_dataloader_utils._core.inventory import ALL_ROWS, UNKNOWN, GroupRows, Int64s, RowGroupTask
from torch_dataloader_utils._core.permute import Purpose
from torch_dataloader_utils.errors import DataError, NullValueError, RowCountError
from torch_dataloader_utils.samples.batch_fields import PackedField
from torch_dataloader_utils.samples.layout import (
    count_greedy,
    count_samples,
    document_tokens,
    lay_out,
    over_long_cost,
)
from torch_dataloader_utils.samples.sample_batch import PackedGroup
from torch_dataloader_utils.samples.text import BAD_ROW, TokenizingReader
from torch_dataloader_utils.samples.token_packing import PerDocument, PerToken, TokenPacking
from torch_dataloader_utils.tables.reader import Reader, join_row_groups, slice_rows


def footer_counts(packing: TokenPacking) -> bool:
    """Return whether the list items that a footer counts give the number of samples of a row group."""
    is_sum = packing.fill == "greedy" and packing.pad_to_multiple_of == 1 and packing.tokenizer is None
    return is_sum and packing.counts == "footers"


def count_from_footer(items: Int64s, packing: TokenPacking) -> int:
    """Return the samples of one row group: exact where the footer counts nulls, else an upper bound.

    items: (rows, level entries, entries without a value) of the column, see `Reader.list_items`. An empty or null list
    is one entry without a value:

        [7, 8] [] [9]      rows 3, entries 4, without value 1: 3 tokens in 2 documents
    """
    rows, entries, without_value = np.asarray(items).tolist()
    num_tokens = entries - without_value
    num_documents = max(0, rows - without_value)
    return count_greedy(num_tokens + (num_documents if packing.eod is not None else 0), packing)


class DocumentCounts(NamedTuple):
    """Counts of one row group.

    over_long, left_out: See `over_long_cost`. rows: Live rows. bad: Rows that the tokenizer refuses. first_bad: Number
    of the first bad row.
    """

    samples: int
    over_long: int
    left_out: int
    rows: int
    bad: int
    first_bad: int


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
        """Yield the samples of one row group, in one batch. All documents are packed, whatever `rows` selects.

        rows: Samples to return.

        Raises:
            RowCountError: the number of samples differs from the plan.
            NullValueError: a token is null, or a value of a field with one value for each token.
            DataError: a list of a per-token field is not as long as the tokens of its row.
            DataError, StoreError: see Reader.read.
        """
        # UNKNOWN, because `live_rows` counts samples, which are checked after packing. Stored rows are still checked.
        stored = self.reader.read(replace(task, live_rows=UNKNOWN))
        documents = list_documents(stored.column(0), task.where)
        tokens = document_tokens(documents.lengths, self.packing, task.where)
        pieces = lay_out(tokens, self.packing, self._order(task, len(tokens)))
        planned = pieces.sample_count if task.live_rows == UNKNOWN else task.live_rows
        if pieces.sample_count != planned:
            self._check_bound(task, pieces.sample_count)
        group = PackedGroup(
            packing=self.packing, lengths=documents.lengths, tokens=tokens, pieces=pieces, num_samples=planned
        )
        arrays = [_field(field, group, documents, stored, task) for field in self.fields]
        yield slice_rows(pa.RecordBatch.from_arrays(arrays, names=[field.name for field in self.fields]), rows)

    def read_together(self, tasks: Sequence[RowGroupTask]) -> JoinedRows:
        """Return all samples of several row groups; each row group is packed by itself."""
        return join_row_groups(self, tasks)

    def count_documents(self, task: RowGroupTask) -> DocumentCounts:
        """Return `count_lengths` of one row group of documents, not of samples, by reading its tokens."""
        if isinstance(self.counter, TokenizingReader):
            return self.count_lengths(self.counter.measure(task).column(0).to_numpy(), task)
        return self.count_lengths(list_documents(self.counter.read(task).column(0), task.where).lengths, task)

    def count_lengths(self, lengths: Int64s, task: RowGroupTask) -> DocumentCounts:
        """Return the counts of one row group from the lengths of its documents, where bad rows are BAD_ROW."""
        bad = np.flatnonzero(lengths == BAD_ROW)
        tokens = lengths.clip(min=0)
        samples = count_samples(document_tokens(tokens, self.packing, task.where), self.packing)
        cost = over_long_cost(tokens, self.packing) if self.packing.fill == "best_fit" else (0, 0)
        return DocumentCounts(samples, *cost, len(lengths), len(bad), int(bad[0]) if len(bad) else 0)

    def _order(self, task: RowGroupTask, count: int) -> Int64s | None:
        if task.epoch_key is None or not self.packing.shuffle_documents:
            return None
        return task.epoch_key.permutation(count, Purpose.DOCUMENTS)

    def _check_bound(self, task: RowGroupTask, samples: int) -> None:
        """Raise RowCountError, unless the plan took an upper bound from this footer and there are fewer samples."""
        items = self.reader.list_items(task, self.packing.column) if footer_counts(self.packing) else None
        if items is not None and samples < task.live_rows == count_from_footer(items[task.ordinal], self.packing):
            return
        reason = (
            'The file changed, or its footer counts nulls that are not there: plan again, with counts="read" in '
            "pack_tokens."
            if self.packing.tokenizer is None
            else "The file changed, or the tokenizer gives other tokens than when they were counted: let it give the "
            "same tokens every time, and change its `fingerprint` when its tokens change; then plan again."
        )
        raise RowCountError(f"{task.where} gave {samples} of {task.live_rows} planned samples. {reason}")


def _field(
    field: PackedField, group: PackedGroup, documents: Documents, rows: pa.RecordBatch, task: RowGroupTask
) -> pa.Array:
    """Return one field of all samples. documents: The tokens. rows: All columns of the packing."""
    match field.source:
        case None:
            return group.own_field(field.name, documents, task)
        case PerDocument(column=column):
            return group.per_document(to_plain(rows.column(column)))
        case PerToken(column=column, pad=pad, eod=eod):
            values = to_plain(rows.column(column))
            where = f"{task.where}, column {column!r},"
            if not is_list(plain_type(values.type)):
                return group.per_token(_repeated(values, group.tokens, where), pad, pad)
            lists = list_documents(values, where)
            _check_lengths(lists.lengths, group.lengths, where)
            return group.per_token(lists, pad if eod is None else eod, pad)


def _repeated(values: pa.Array, tokens: Int64s, where: str) -> Documents:
    """Return the value of each document, once for each of its tokens."""
    if values.null_count:
        raise NullValueError(
            f"{where} has {values.null_count} nulls of {len(values)}, but every token needs a value: clean the column, "
            "or filter the rows with nulls out."
        )
    offsets = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.cumsum(tokens, out=offsets[1:])
    return Documents(values=np.repeat(values.to_numpy(zero_copy_only=False), tokens), offsets=offsets)


def _check_lengths(lengths: Int64s, tokens: Int64s, where: str) -> None:
    others = np.flatnonzero(lengths != tokens)
    if len(others):
        row = int(others[0])
        raise DataError(
            f"{where} has lists of other lengths than the tokens in {len(others)} of {len(tokens)} rows. The first is "
            f"live row {row}, with {lengths[row]} values for {tokens[row]} tokens. Write one value for each token, or "
            "filter these rows out."
        )
