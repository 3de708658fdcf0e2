"""Put rows of several lanes together: blocks of many batches, made in decoding threads ahead of the trainer."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from torch_dataloader_utils._core.block import Block, Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.program import WorkerProgram, rows_of_parts
from torch_dataloader_utils._core.units import PLAIN
from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.batch_groups import BlockSlice
from torch_dataloader_utils.stream.decode import DecodeScheduler
from torch_dataloader_utils.stream.decode_jobs import DependentJob, Pending
from torch_dataloader_utils.stream.lane import LaneBlocks, LaneWindows

# Largest number of batches that are put together at once, and of their bytes, about as much as a window. One batch at a
# time is slow, because slicing 64 lanes of 51 columns takes 6 ms for any number of rows.
_MOST_BATCHES = 64
_MOST_BYTES = 16 << 20


class MixedBatch(NamedTuple):
    """Batch among several batches of one block. rows: Number of rows. blocks, number: Group slice of the last row."""

    rows: int
    blocks: LaneBlocks
    number: int

    @property
    def where(self) -> str:
        """Description of the last row's row group, for messages."""
        return self.blocks.where(self.number)


@dataclass(slots=True, kw_only=True, eq=False)
class Source:
    """Source of neighbouring rows of a lane: one row group, or one window. Its decoding may not have begun.

    slices: Numbers of the lane's group slices that the rows come from. first, rows: First row among the rows that
    `start` gives, and number of rows. start: Starts decoding or gathering. pending: What `start` gave.
    """

    blocks: LaneBlocks
    slices: range
    first: int
    rows: int
    start: Callable[[], Pending[BlockSlice]]
    pending: Pending[BlockSlice] | None = None

    @property
    def has_begun(self) -> bool:
        """True if the decoding of all rows was started."""
        return self.pending is not None or self.blocks.has_begun(self.slices)

    def begin(self) -> Pending[BlockSlice]:
        """Return the pending rows; start decoding them if necessary, even beyond the budget."""
        if self.pending is None:
            self.pending = self.start()
        return self.pending

    def cut(self, decoded: BlockSlice) -> Block:
        """Return the rows of the source as a block. decoded: what `pending` gave.

        Raises:
            InternalError: fewer rows were decoded.
        """
        rows = decoded.cut(self.first, self.first + self.rows)
        if rows.num_rows != self.rows:
            where = self.blocks.where(self.slices[-1])
            raise InternalError(
                f"{where}: {rows.num_rows} of {self.rows} planned rows came. Please report this with the plan."
            )
        return rows.rows()


class SourceRows(NamedTuple):
    """Rows of a source: the first, and the number of rows."""

    source: Source
    start: int
    rows: int


class LaneSources:
    """Rows of one lane, to be taken in order before they are decoded."""

    def __init__(self, program: WorkerProgram, blocks: LaneBlocks, shaper: Shaper) -> None:
        self._blocks = blocks
        self._windows = LaneWindows(program, blocks, shaper)
        self._sources = self._in_order()
        self._source: Source | None = None
        self._taken = 0

    def take(self, rows: int) -> Iterator[SourceRows]:
        """Yield the next `rows` rows.

        Raises:
            InternalError: the lane has fewer rows.
        """
        while rows > 0:
            if self._source is None or self._taken == self._source.rows:
                self._source, self._taken = next(self._sources, None), 0
                if self._source is None:
                    raise InternalError(f"A lane ends {rows} rows too early. Please report this with the plan.")
            start, count = self._taken, min(rows, self._source.rows - self._taken)
            self._taken += count
            rows -= count
            yield SourceRows(self._source, start, count)

    def close(self) -> None:
        """Drop all rows now: reference cycles would keep them until the garbage collector runs."""
        self._sources.close()
        self._windows.close()
        self._source = None

    def _in_order(self) -> Generator[Source]:
        units = self._blocks.units
        for unit, rows in enumerate(units.rows.tolist()):
            slices = self._blocks.slices_of(unit)
            if units.window[unit] == PLAIN:
                yield from map(self._source_of, slices)
            else:
                window = partial(self._windows.begin, unit)
                yield Source(blocks=self._blocks, slices=slices, first=0, rows=rows, start=window)

    def _source_of(self, number: int) -> Source:
        first, end = self._blocks.rows_of(number)
        group = partial(self._blocks.begin, number)
        slices = range(number, number + 1)
        return Source(blocks=self._blocks, slices=slices, first=first, rows=end - first, start=group)


class Mixture:
    """Several batches that a decoding thread puts together in one block.

    sources: Sources of the rows, lane after lane. spans: The rows in the order of the block, int64 [spans, 3]: source,
    first row of the source, number of rows. batches: The batches, in this order.
    """

    def __init__(self, sources: Sequence[Source], spans: Int64s, batches: Sequence[MixedBatch]) -> None:
        self.batches = batches
        self._sources = sources
        self._spans = spans
        self._new = [source for source in sources if source.pending is None]
        self._job: DependentJob[BlockSlice, BlockSlice] | None = None

    @property
    def has_begun(self) -> bool:
        """True if the decoding of all rows was started."""
        return all(source.has_begun for source in self._sources)

    def begin(self, decoder: DecodeScheduler, shaper: Shaper) -> DependentJob[BlockSlice, BlockSlice]:
        """Return the pending block; start what it needs if necessary, even beyond the budget."""
        if self._job is None:
            needed = [source.begin() for source in self._sources]
            job = partial(_put_together, self._sources, self._spans, shaper, decoder.counters)
            self._job = decoder.run_after(needed, job)
        return self._job

    def finish(self) -> None:
        """Release the row groups that this block was the first to use: they no longer count against the budget."""
        for source in self._new:
            source.blocks.finish(source.slices)


def _put_together(
    sources: Sequence[Source], spans: Int64s, shaper: Shaper, counters: WorkerCounters, decoded: Sequence[BlockSlice]
) -> BlockSlice:
    with counters.decoding():
        blocks = [source.cut(rows) for source, rows in zip(sources, decoded, strict=True)]
        return BlockSlice.of(shaper.concat(blocks, spans))


class MixedLanes:
    """Batches of the rows of lanes that rotate, in blocks of several batches."""

    def __init__(
        self, program: WorkerProgram, blocks: Sequence[LaneBlocks], shaper: Shaper, decoder: DecodeScheduler
    ) -> None:
        self._batching = program.batching
        self._lanes = [LaneSources(program, lane, shaper) for lane in blocks]
        self._shaper = shaper
        self._decoder = decoder

    def blocks(self, at_least: int) -> Generator[tuple[Block, Sequence[MixedBatch]]]:
        """Yield all batches; while the trainer has a block, the next block is made.

        at_least: Number of batches of the first block. Later blocks have up to twice as many batches as the block
            before, always a multiple of this number.

        Raises:
            InternalError: a lane has fewer rows than were planned.
        """
        try:
            yield from self._blocks(at_least)
        finally:
            for lane in self._lanes:
                lane.close()

    def _blocks(self, at_least: int) -> Iterator[tuple[Block, Sequence[MixedBatch]]]:
        done, count = 0, at_least
        present = self._next_mixture(done, count)
        while present is not None:
            job = present.begin(self._decoder, self._shaper)
            self._decoder.prefetch()
            block, batches = self._decoder.wait(job).rows(), present.batches
            present.finish()
            del job
            done += len(batches)
            most = min(_MOST_BATCHES, _MOST_BYTES * len(batches) // max(block.num_bytes, 1))
            count = max(at_least, min(2 * count, most) // at_least * at_least)
            present = self._next_mixture(done, count)
            self._decoder.prefetch()
            if present is not None and present.has_begun:
                present.begin(self._decoder, self._shaper)
            yield block, batches

    def _next_mixture(self, first: int, count: int) -> Mixture | None:
        """Take the rows of the next `count` batches from the lanes; return None after the last batch."""
        numbers = range(first, min(first + count, self._batching.num_batches or 0))
        parts_of = [self._batching.parts(number) for number in numbers]
        if not parts_of:
            return None
        sources, spans = self._take(np.array([part for parts in parts_of for part in parts], np.int64))
        rows_of = [rows_of_parts(parts) for parts in parts_of]
        last = spans[spans[:, 2].cumsum().searchsorted(np.cumsum(rows_of)), 0].tolist()
        batches = [
            MixedBatch(rows, sources[source].blocks, sources[source].slices[-1])
            for rows, source in zip(rows_of, last, strict=True)
        ]
        return Mixture(sources, spans, batches)

    def _take(self, parts: Int64s) -> tuple[list[Source], Int64s]:
        """Take rows from the lanes. Return their sources, and the rows in the order of the parts: see `Mixture.spans`.

        parts: (lane, rows) each, int64 [parts, 2]: the next rows of this lane.
        """
        begins = np.flatnonzero(np.diff(parts[:, 0], prepend=-1))  # neighbouring parts of one lane are one part
        lanes, rows = parts[begins, 0], np.add.reduceat(parts[:, 1], begins)
        sources: list[Source] = []
        spans = []  # (part, source, first row of the source, number of rows)
        for lane in np.unique(lanes).tolist():
            of_lane = np.flatnonzero(lanes == lane)
            taken = list(self._lanes[lane].take(int(rows[of_lane].sum())))
            starts, counts = np.array([(each.start, each.rows) for each in taken], np.int64).T
            part, source, begin, length = _spans_of(rows[of_lane], counts)
            spans.append(np.stack([of_lane[part], len(sources) + source, starts[source] + begin, length], axis=1))
            sources += [each.source for each in taken]
        in_order = np.concatenate(spans)
        return sources, in_order[in_order[:, 0].argsort(kind="stable"), 1:]


def _spans_of(parts: Int64s, sources: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Cut rows into spans that lie in one part and in one source; both arguments are numbers of rows, of equal sum.

    Return for each span its part, its source, its first row in the source, and its number of rows.

        parts of 4 and 4 rows, sources of 5 and 3      parts 0 1 1, sources 0 0 1, first rows 0 4 0, rows 4 1 3
    """
    part_ends, source_ends = parts.cumsum(), sources.cumsum()
    ends = np.union1d(part_ends, source_ends)
    begins = np.concatenate([[0], ends[:-1]])
    part, source = part_ends.searchsorted(begins, side="right"), source_ends.searchsorted(begins, side="right")
    return part, source, begins - (source_ends - sources)[source], ends - begins
