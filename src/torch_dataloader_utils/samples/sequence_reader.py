"""Reads a row group with the rows of its sequences, and says which rows each sequence has."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torch_dataloader_utils._arrow.batches import one_after_other
from torch_dataloader_utils._core.block import JoinedRows, ReadPart
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils.errors import InternalError, RowCountError, UnsupportedFeatureError
from torch_dataloader_utils.samples.sequence_keys import KeyRows
from torch_dataloader_utils.samples.sequence_layout import Spans, sequence_spans
from torch_dataloader_utils.samples.sequences import Sequences
from torch_dataloader_utils.tables.reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceReader:
    """`RowGroupReader` of sequences; a task's `live_rows` counts the sequences that begin in its row group.

    reader: Reader of the columns to deliver, and of the key columns.
    """

    reader: Reader
    sequences: Sequences

    def read_columns(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Generator[ReadPart]:
        """Yield the `Spans` of the sequences, and then their rows in one batch.

        rows: Sequences to return; the row group is read whole.

        Raises:
            RowCountError: the number of sequences differs from the plan.
            DataError, StoreError: see KeyRows.of and Reader.read.
        """
        place = task.sequence
        if place is None:
            raise InternalError(f"{task.where} has no place for its sequences. Please report this.")
        own = replace(task, live_rows=place.rows, packed_with=(), sequence=None)
        parts, wanted = [[self.reader.read(own)]], place.halo
        for member in task.packed_with:
            taken = min(wanted, member.live_rows)
            halo = self.reader.read(member, GroupRows(0, taken))
            parts.append([halo])
            wanted -= taken
        stored = one_after_other(parts) if len(parts) > 1 else parts[0][0]
        keys = KeyRows.of(stored, self.sequences, task.where)
        begins = keys.begins if place.lead else np.append(0, keys.begins)
        spans = sequence_spans(begins, stored.num_rows, place, self.sequences, keys.events)
        if len(spans.starts) != task.live_rows:
            raise RowCountError(
                f"{task.where} gave {len(spans.starts)} of {task.live_rows} planned sequences. The file changed: plan "
                "the data set again."
            )
        start, stop = rows.of(task.live_rows)
        yield Spans(spans.starts[start:stop], spans.stops[start:stop])
        yield stored

    def read_together(self, tasks: Sequence[RowGroupTask]) -> JoinedRows:
        """Refuse: sequences of several row groups are read one by one."""
        raise UnsupportedFeatureError(f"sequences of {len(tasks)} row groups are read one by one")
