"""Carry the origin of rows beside the rows: blocks know which rows they hold, through slices, joins and windows.

    OriginReader    names the row group and the first row of the rows that a reader gives
    OriginShaper    makes blocks that know their rows: `OriginBlock`
    Origins         collects the origins of the batches that are made of these blocks, in order

A reader and a shaper are wrapped, so every operation on rows is also an operation on their origin, and the stream needs
to know nothing of origins. A loader with `audit=` records origins; see `_observe/audit_file.py` for the record.
"""

import secrets
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np

from torch_dataloader_utils._core.block import (
    Block,
    JoinedRows,
    MeasuredBlock,
    ReadPart,
    RowGroupReader,
    Shaper,
    cut_spans,
)
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._core.token_budget import Lengths
from torch_dataloader_utils._observe.audit_file import PLAN_ROWS, BatchOrigin, Span, group_checksum, order_checksum
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.errors import InternalError

# A gather whose first rows are seldom neighbours is a window: its order is one permutation.
_LOOKED_AT = 64


class GroupStarts(NamedTuple):
    """Mark among record batches: for each row group that follows, its first row, as a plan row, and its row count.

    counts: None if there is one row group, which has all rows that follow.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...] | None = None


class Window:
    """Rows that were gathered in one order: row i is row order[i] of `inputs`."""

    __slots__ = ("checksum", "count", "first", "inputs", "number", "order")

    def __init__(self, inputs: "Sequence[Part]", order: Int64s, *, keeps_order: bool) -> None:
        self.inputs = inputs
        self.count = len(order)
        self.first = int(order[0])
        self.checksum = order_checksum(order)
        self.order = order if keeps_order else order[:0]
        self.number = PLAN_ROWS


Part = tuple[Window | None, int, int]
"""(window, first, count): rows [first, first + count) of a window, or of the plan rows if there is no window."""


def _cut(parts: Sequence[Part], ends: Sequence[int], start: int, stop: int) -> tuple[Part, ...]:
    """Return rows [start, stop) of the parts. ends: number of rows up to the end of each part."""
    if len(parts) == 1 and start < stop:
        ((window, first, _),) = parts
        return ((window, first + start, stop - start),)
    found = []
    at = bisect_right(ends, start)
    while start < stop:
        window, first, count = parts[at]
        offset = start - (ends[at] - count)
        taken = min(count - offset, stop - start)
        found.append((window, first + offset, taken))
        start += taken
        at += 1
    return tuple(found)


class OriginBlock:
    """Block that knows its rows, as parts; implements `_core.block.Block`, and `MeasuredBlock` if `rows` does."""

    __slots__ = ("_ends", "_origins", "_parts", "num_rows", "rows")

    def __init__(self, rows: Block, parts: Sequence[Part], origins: "Origins") -> None:
        self.rows = rows
        self.num_rows = rows.num_rows
        self._parts = parts
        self._ends = list(accumulate(count for _, _, count in parts))
        self._origins = origins
        if (self._ends[-1] if parts else 0) != self.num_rows:
            raise InternalError(f"A block of {self.num_rows} rows has another origin: {parts}. Please report this.")

    @property
    def parts(self) -> Sequence[Part]:
        """Rows of the block, in order."""
        return self._parts

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows in memory."""
        return self.rows.num_bytes

    @property
    def lengths(self) -> Lengths:
        """Lengths of the rows."""
        return cast("MeasuredBlock", self.rows).lengths

    def slice(self, start: int, stop: int) -> "OriginBlock":
        """Return rows [start, stop), a view."""
        start, stop = GroupRows(start, stop).of(self.num_rows)
        return OriginBlock(self.rows.slice(start, stop), _cut(self._parts, self._ends, start, stop), self._origins)

    def to_batch(self) -> Any:
        """Return all rows as one batch, and note their origin."""
        batch = self.rows.to_batch()
        self._origins.add(self._parts)
        return batch

    def split(self, batch_rows: int) -> Iterator[Any]:
        """Yield batches of `batch_rows` rows, and note the origin of each; the last batch may be shorter."""
        origins, stop = self._origins, 0
        if len(self._parts) == 1:  # the fast path
            ((window, first, count),) = self._parts
            source, end = origins.source_of(window), first + count
            for batch in self.rows.split(batch_rows):
                rows = batch_rows if first + batch_rows <= end else end - first
                origins.spans.append((source, first, rows))
                first += rows
                yield batch
            return
        for batch in self.rows.split(batch_rows):
            start, stop = stop, min(stop + batch_rows, self.num_rows)
            origins.add(_cut(self._parts, self._ends, start, stop))
            yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginReader:
    """Reader that says of which row group its rows are, before it gives the rows. Implements `RowGroupReader`."""

    reader: RowGroupReader
    origins: "Origins"

    def read_columns(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Generator[ReadPart]:
        """See RowGroupReader. The first value is a `GroupStarts`."""
        yield GroupStarts((self.origins.first_row(task) + rows.start,))
        yield from self.reader.read_columns(task, rows)

    def read_together(self, tasks: Sequence[RowGroupTask]) -> JoinedRows:
        """See RowGroupReader. The first part is a `GroupStarts`."""
        parts, rows, by_one_call = self.reader.read_together(tasks)
        starts = GroupStarts(tuple(map(self.origins.first_row, tasks)), tuple(rows))
        return JoinedRows([starts, *parts], rows, by_one_call)


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginShaper:
    """Shaper of blocks that know their rows. Implements `_core.block.Shaper`.

    keeps_orders: true to keep the order of each window; false if the order follows from seed, epoch and rows.
    """

    shaper: Shaper
    origins: "Origins"
    keeps_orders: bool

    def use_memory(self, memory: RecycledMemory) -> None:
        """See Shaper."""
        self.shaper.use_memory(memory)

    def with_copied_columns(self, least_bytes: int) -> "OriginShaper":
        """See Shaper."""
        return replace(self, shaper=self.shaper.with_copied_columns(least_bytes))

    def block(self, parts: Iterable[ReadPart]) -> OriginBlock:
        """See Shaper. The parts come from an `OriginReader`."""
        marks: list[GroupStarts] = []
        rows = self.shaper.block(_without_marks(parts, marks))
        ((starts, counts),) = marks
        return self._block(rows, list(zip((None,) * len(starts), starts, counts or (rows.num_rows,), strict=True)))

    def concat(self, blocks: Sequence[Block], spans: Int64s | None = None) -> OriginBlock:
        """See Shaper."""
        rows = self.shaper.concat([_rows(block) for block in blocks], spans)
        return self._block(rows, _parts_of(cut_spans(blocks, spans)))

    def gather(self, blocks: Sequence[Block], order: Int64s) -> OriginBlock:
        """See Shaper."""
        rows, parts = self.shaper.gather([_rows(block) for block in blocks], order), _parts_of(blocks)
        if len(order) > 1 and 2 * np.count_nonzero(np.diff(order[:_LOOKED_AT]) != 1) >= len(order[:_LOOKED_AT]):
            return self._block(rows, [(Window(parts, order, keeps_order=self.keeps_orders), 0, len(order))])
        ends = list(accumulate(count for _, _, count in parts))
        borders = [0, *(np.flatnonzero(np.diff(order) != 1) + 1).tolist(), len(order)] if len(order) else [0]
        spans = zip(order[borders[:-1]].tolist(), np.diff(borders).tolist(), strict=True)
        return self._block(rows, [part for start, count in spans for part in _cut(parts, ends, start, start + count)])

    def _block(self, rows: Block, parts: Sequence[Part]) -> OriginBlock:
        return OriginBlock(rows, [part for part in parts if part[2]], self.origins)


def _without_marks(parts: Iterable[ReadPart], marks: list[GroupStarts]) -> Iterator[ReadPart]:
    for part in parts:
        if isinstance(part, GroupStarts):
            marks.append(part)
        else:
            yield part


def _rows(block: Block) -> Block:
    return cast("OriginBlock", block).rows


def _parts_of(blocks: Sequence[Block]) -> list[Part]:
    return [part for block in blocks for part in cast("OriginBlock", block).parts]


class Origins:
    """Origins of the batches of one worker in one pass, in the order in which the batches are made.

    Batches are made in one thread; row groups are read in any thread.

    spans: spans noted since the last `take`.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._windows: list[tuple[int, ...]] = []
        self._groups: list[tuple[int, int]] = []
        # Windows of another worker, or of the same worker after a loss, have other numbers.
        self._number = secrets.randbits(62)

    def first_row(self, task: RowGroupTask) -> int:
        """Return the plan row of the first row of a row group, and note the file that is read for it.

        Raises:
            InternalError: the task is not of an epoch.
        """
        if task.epoch_key is None:
            raise InternalError("A row group is read outside of epochs. Please report this.")
        first = task.epoch_key.first_row
        self._groups.append((first, group_checksum(task.path, task.ordinal)))
        return first

    def add(self, parts: Sequence[Part]) -> None:
        """Note the origin of the next rows that batches are made of."""
        for window, first, count in parts:
            self.spans.append((self.source_of(window), first, count))

    def take(self) -> BatchOrigin:
        """Return the origins noted since the last call."""
        spans, self.spans = self.spans, []
        if not self._windows and not self._groups:
            return BatchOrigin(spans)
        windows, self._windows = self._windows, []
        groups, self._groups = self._groups, []
        return BatchOrigin(spans, windows, groups)

    def source_of(self, window: Window | None) -> int:
        """Return the source of rows: PLAN_ROWS, or the number of the window, which is noted the first time."""
        if window is None:
            return PLAN_ROWS
        if window.number == PLAN_ROWS:
            self._number += 1
            window.number = self._number
            inputs = [
                value for source, first, count in window.inputs for value in (self.source_of(source), first, count)
            ]
            head = (window.number, window.count, window.checksum, window.first, len(window.inputs), len(window.order))
            self._windows.append((*head, *inputs, *window.order.tolist()))
        return window.number


def cut_origin(whole: BatchOrigin, rows: Iterable[int]) -> Iterator[BatchOrigin]:
    """Yield the origins of consecutive batches with rows[0], rows[1], ... rows, from the origin of all their rows.

    Windows and row groups come with the first batch.
    """
    spans, windows, groups = whole
    ends = list(accumulate(count for _, _, count in spans))
    stop = 0
    for count in rows:
        start, stop = stop, stop + count
        yield BatchOrigin(cast("tuple[Span, ...]", _cut(cast("Any", spans), ends, start, stop)), windows, groups)
        windows, groups = (), ()


def noting_origins(
    reader: RowGroupReader, shaper: Shaper, origins: Origins, program: WorkerProgram
) -> tuple[OriginReader, OriginShaper]:
    """Return the reader and shaper of a worker, with their origins noted."""
    # An auditor knows the order of a window from seed, epoch and first row, unless lengths decide it.
    keeps_orders = program.by_length is not None
    return (
        OriginReader(reader=reader, origins=origins),
        OriginShaper(shaper=shaper, origins=origins, keeps_orders=keeps_orders),
    )
