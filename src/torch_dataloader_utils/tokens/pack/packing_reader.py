"""A reader that packs the documents of another reader into samples, and counts them by reading or by the footer."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._core.block import JoinedRows
from torch_dataloader_utils._core.inventory import ALL_ROWS, UNKNOWN, FileFormat, Int64s, RowGroupTask, RowRange
from torch_dataloader_utils.errors import RowCountError
from torch_dataloader_utils.read.reader import Reader, join_row_groups, slice_rows
from torch_dataloader_utils.tokens.documents import Documents, list_documents
from torch_dataloader_utils.tokens.pack.layout import count_greedy, count_samples, document_tokens, lay_out
from torch_dataloader_utils.tokens.pack.sample_batch import pack_documents
from torch_dataloader_utils.tokens.pack.token_packing import TokenPacking


def footer_counts(file_format: int, packing: TokenPacking) -> bool:
    """Whether row groups of this format can be counted by the footer."""
    return file_format == FileFormat.PARQUET and packing.fill == "greedy" and packing.counts == "footers"


def count_from_footer(items: Int64s, packing: TokenPacking) -> int:
    """Samples of one row group: exact where the footer counts nulls, else an upper bound.

    items: (rows, level entries, entries that hold no value) of the column, see `Reader.list_items`. An empty or null
    list is one entry without a value, so that

        [7, 8] [] [9]      rows 3, entries 4, without value 1: 3 tokens in 2 documents
    """
    rows, entries, without_value = np.asarray(items).tolist()
    num_tokens = entries - without_value
    num_documents = max(0, rows - without_value)
    return count_greedy(num_tokens + (num_documents if packing.eod is not None else 0), packing)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingReader:
    """A `RowGroupReader` of samples; a task's `live_rows` counts the samples of its row group.

    reader: reads the packed column only. Picklable and thread-safe if the reader is.
    """

    reader: Reader
    packing: TokenPacking

    def read_columns(self, task: RowGroupTask, rows: RowRange = ALL_ROWS) -> Generator[pa.RecordBatch]:
        """Samples of one row group, in one batch. All documents are packed, whatever rows are asked for.

        Raises:
            RowCountError: another number of samples than planned.
            NullValueError: a null token.
            DataError, StoreError: see Reader.read.
        """
        documents, tokens = self._documents(task)
        pieces = lay_out(tokens, self.packing)
        planned = pieces.sample_count if task.live_rows == UNKNOWN else task.live_rows
        if pieces.sample_count != planned:
            self._check_bound(task, pieces.sample_count)
        yield slice_rows(pack_documents(documents, tokens, pieces, self.packing, planned), rows)

    def read_together(self, tasks: Sequence[RowGroupTask]) -> JoinedRows:
        """All samples of several row groups; each row group is packed by itself."""
        return join_row_groups(self, tasks)

    def count_rows(self, task: RowGroupTask) -> int:
        """Samples of one row group, counted by reading it."""
        return count_samples(self._documents(task)[1], self.packing)

    def _documents(self, task: RowGroupTask) -> tuple[Documents, Int64s]:
        # The wrapped reader then checks only the number of stored rows; `live_rows` are samples, and checked here.
        batch = self.reader.read(replace(task, live_rows=UNKNOWN))
        documents = list_documents(batch.column(0), task.where)
        return documents, document_tokens(documents.lengths, self.packing, task.where)

    def _check_bound(self, task: RowGroupTask, samples: int) -> None:
        """Fewer samples than planned are right where the plan took an upper bound from this very footer."""
        items = (
            self.reader.list_items(task, self.packing.column) if footer_counts(task.file_format, self.packing) else None
        )
        if items is not None and samples < task.live_rows == count_from_footer(items[task.ordinal], self.packing):
            return
        raise RowCountError(
            f"{task.where} gave {samples} of {task.live_rows} planned samples. The file changed, or its footer counts "
            'nulls that are not there: plan again, with counts="read" in pack_tokens.'
        )
