"""A reader that packs the documents which another reader reads into samples."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, RowGroupTask
from torch_dataloader_utils.errors import RowCountError
from torch_dataloader_utils.read.reader import Reader
from torch_dataloader_utils.token_packing.documents import Documents, list_documents
from torch_dataloader_utils.token_packing.footers import count_from_footer, footer_counts
from torch_dataloader_utils.token_packing.layout import count_samples, document_tokens, lay_out
from torch_dataloader_utils.token_packing.options import TokenPacking
from torch_dataloader_utils.token_packing.samples import pack_documents


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingReader:
    """A `RowGroupReader` of samples; a task's `live_rows` counts the samples of its row group.

    reader: reads the packed column only. Picklable and thread-safe if the reader is.
    """

    reader: Reader
    packing: TokenPacking

    def read_columns(self, task: RowGroupTask, stop_row: int | None = None) -> Generator[pa.RecordBatch]:  # noqa: ARG002
        """All samples of one row group, in one batch. `stop_row` is not used: packing needs all documents.

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
        yield pack_documents(documents, tokens, pieces, self.packing, planned)

    def read_together(self, tasks: Sequence[RowGroupTask]) -> None:
        """None: samples end with their row group."""

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
