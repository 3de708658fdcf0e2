"""Make the batches of one worker: the same code in the trainer's process, in a worker process, and in tests."""

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch_dataloader_utils._core.block import Block, RowGroupReader, Shaper
from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import (
    Batching,
    BatchParts,
    ListedBatches,
    SingleLane,
    WorkerInput,
    rows_of_parts,
)
from torch_dataloader_utils._core.slab_codec import SlabCodec
from torch_dataloader_utils._observe.counters import WorkerCounters, during
from torch_dataloader_utils.errors import InternalError, LoaderError, TransformError, of_type
from torch_dataloader_utils.stream.batch_groups import BatchGroup, BlockSlice, GroupPart, group_parts, put_together
from torch_dataloader_utils.stream.decode import DecodeOptions, DecodeScheduler
from torch_dataloader_utils.stream.lane import LaneBlocks, LaneReader
from torch_dataloader_utils.stream.origins import Origins, noting_origins

# If lanes mix: largest number of batches that are gathered at once, and of their bytes, about as much as a window. One
# batch at a time is slow, because slicing 64 lanes of 51 columns takes 6 ms for any number of rows.
_MOST_BATCHES = 64
_MOST_BYTES = 16 << 20


class CollectedBatch(NamedTuple):
    """Batch among several collected batches: its rows, and the row group of its last row (for messages)."""

    rows: int
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembler:
    """Assembler of batches: takes rows from lanes, in the order of the batching.

    says_where: true if `CollectedBatch.where` is needed; `where` takes time to compute.
    """

    batching: Batching
    lanes: Sequence[LaneReader]
    shaper: Shaper
    says_where: bool

    @property
    def mixes(self) -> bool:
        """True if batches have rows of several lanes."""
        return bool(self.batching.num_batches) and len(self.batching.parts(0)) > 1

    def slices(self, parts: BatchParts) -> list[BlockSlice]:
        """Return the rows of these parts as slices of their blocks, without a copy.

        Raises:
            InternalError: a lane has fewer rows than were planned.
        """
        slices = [each for lane, rows in parts for each in self.lanes[lane].take(rows)]
        found, wanted = sum(each.stop - each.start for each in slices), rows_of_parts(parts)
        if found != wanted:
            raise InternalError(f"A batch of {wanted} planned rows has {found}. Please report this with the plan.")
        return slices

    def collected(self, length: int) -> Iterator[tuple[Block, list[CollectedBatch]]]:
        """Yield the rows of several batches as one block, with a description of each batch.

        Collects `length` batches at a time; if lanes mix, up to twice as many each time, a multiple of `length`.

        Raises:
            InternalError: a lane has fewer rows than were planned.
        """
        first, at_once, count = 0, length, self.batching.num_batches or 0
        while first < count:
            slices: list[BlockSlice] = []
            numbers = range(first, min(first + at_once, count))
            batches = [self._collect(self.batching.parts(number), slices) for number in numbers]
            block = put_together(slices, self.shaper)
            del slices
            yield block, batches
            first += len(batches)
            if self.mixes:
                most = min(_MOST_BATCHES, _MOST_BYTES * len(batches) // max(block.num_bytes, 1))
                at_once = max(length, min(2 * at_once, most) // length * length)

    def _collect(self, parts: BatchParts, slices: list[BlockSlice]) -> CollectedBatch:
        slices += self.slices(parts)
        where = self.lanes[parts[-1][0]].where if self.says_where else ""
        return CollectedBatch(rows=rows_of_parts(parts), where=where)


Function = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Steps from row groups to the batches that the trainer receives. Picklable, and the same for every worker.

    codec: codec that writes batches into shared slabs; None: batches are pickled through a queue.
    functions: transform and collate function of the user, applied to each batch one after the other.
    row_bytes: bytes of a row in columns of fixed width.
    notes_origins: true if streams note which rows their batches have, see `Origins`.
    """

    reader: RowGroupReader
    shaper: Shaper
    codec: SlabCodec | None = None
    functions: tuple[Function, ...] = ()
    row_bytes: int = 0
    notes_origins: bool = False


Made = tuple[Any, int, LaneReader | CollectedBatch]
"""A batch, its number of rows, and an object with `where`: the row group of the batch's last row."""


class WorkerStream:
    """Iterable over the batches of one worker, in order. cursor: place after the last batch (see LaneReader).

    origins: origins of the batches, if the pipeline notes origins. counters: counters of the worker's work. watch:
    function that returns a context for each call of the user's functions; its argument is the row group of the batch's
    last row.
    """

    def __init__(
        self,
        work: WorkerInput,
        pipeline: Pipeline,
        options: DecodeOptions,
        counters: WorkerCounters | None = None,
        watch: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.origins = Origins() if pipeline.notes_origins else None
        if self.origins is not None:
            reader, shaper = noting_origins(pipeline.reader, pipeline.shaper, self.origins, work.program)
            pipeline = replace(pipeline, reader=reader, shaper=shaper)
        self.counters = counters or WorkerCounters()
        self._watch = watch
        self._batching = work.program.batching
        self._pipeline = pipeline
        self._decoder = DecodeScheduler(work, pipeline.reader, pipeline.shaper, options, self.counters)
        self._lanes = [
            LaneReader(work.program, lane, LaneBlocks(self._decoder, work, lane), pipeline.shaper, exact=work.exact)
            for lane in work.program.lanes
        ]
        self._assembler = Assembler(
            batching=self._batching, lanes=self._lanes, shaper=pipeline.shaper, says_where=bool(pipeline.functions)
        )

    @property
    def num_batches(self) -> int | None:
        """Number of batches; None if row counts are not known."""
        return self._batching.num_batches

    @property
    def cursor(self) -> Cursor:
        """Place in the (only) lane after the last batch; meaningful for plans without row counts."""
        return self._lanes[0].cursor

    def __iter__(self) -> Generator[Any]:
        functions = self._pipeline.functions
        with self._running():
            for batch, rows, ending in self._made():
                self.counters.rows += rows
                yield self._transformed(batch, ending.where) if functions else batch

    def batch_groups(self, length: int) -> Generator[BatchGroup]:
        """Yield the same batches in groups of `length` (fewer in the last group); only without functions of the user.

        Raises:
            InternalError: row counts are not known, or the user gave functions.
        """
        if self.num_batches is None or self._pipeline.functions:
            raise InternalError("Batches that are counted by reading or changed by functions come one by one.")
        with self._running():
            if isinstance(self._batching, SingleLane):
                yield from self._groups_of_one_lane(self._batching, length)
            else:
                yield from self._groups_of_mixed_batches(length)

    def _groups_of_one_lane(self, batching: SingleLane, length: int) -> Iterator[BatchGroup]:
        """Yield groups of batches of a single lane. Rows of one block are not copied, see `group_parts`."""
        regular = batching.num_batches - len(batching.tail_rows)
        rows_left = itertools.chain(itertools.repeat(batching.batch_rows, regular), batching.tail_rows)
        while rows := tuple(itertools.islice(rows_left, length)):
            yield self._group(rows)

    def _group(self, rows: tuple[int, ...]) -> BatchGroup:
        slices = self._assembler.slices(((0, sum(rows)),))
        self.counters.rows += sum(rows)
        return BatchGroup(parts=tuple(group_parts(slices, rows, self._pipeline.shaper)))

    def _groups_of_mixed_batches(self, length: int) -> Iterator[BatchGroup]:
        for block, batches in self._assembler.collected(length):
            stop = 0
            for first in range(0, len(batches), length):
                rows = tuple(batch.rows for batch in batches[first : first + length])
                start, stop = stop, stop + sum(rows)
                self.counters.rows += stop - start
                yield BatchGroup(parts=(GroupPart(block.slice(start, stop).to_batch(), rows),))

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Let all lanes decode ahead inside the context. At its end, stop decoding and release all rows."""
        try:
            for lane in self._lanes:
                lane.prefetch()
            yield
        finally:
            self._decoder.close()
            for lane in self._lanes:
                lane.close()

    def _made(self) -> Iterator[Made]:
        """Return an iterator over all batches before functions of the user."""
        return self._of_mixed_lanes() if self._assembler.mixes else self._of_lanes()

    def _of_lanes(self) -> Iterator[Made]:
        """Yield batches that have rows of one lane each: views of a block where the rows lie whole in it.

        The last batch of a lane without row counts may be shorter.
        """
        cuts_ahead = not isinstance(self._batching, ListedBatches)
        is_counted = self.num_batches is not None
        for number in itertools.count() if self.num_batches is None else range(self.num_batches):
            parts = self._batching.parts(number)
            ((index, rows),) = parts
            lane = self._lanes[index]
            batch = lane.whole_batch(rows, cuts_ahead=cuts_ahead)
            if batch is None:  # the present block has fewer rows
                slices = self._assembler.slices(parts) if is_counted else list(lane.take(rows))
                if not slices:
                    return
                block = put_together(slices, self._pipeline.shaper)
                batch, rows = block.to_batch(), block.num_rows
                del slices, block
            yield batch, rows, lane

    def _of_mixed_lanes(self) -> Iterator[Made]:
        """Yield batches with rows of several lanes: put many batches together at once, and cut them apart again."""
        for block, batches in self._assembler.collected(1):
            stop = 0
            whole = block.split(batches[0].rows)
            for collected in batches:
                start, stop = stop, stop + collected.rows
                # The last batch of an epoch may be shorter.
                is_whole = collected.rows == batches[0].rows
                batch = next(whole) if is_whole else block.slice(start, stop).to_batch()
                yield batch, collected.rows, collected

    def _transformed(self, batch: Any, where: str) -> Any:
        with self._watch(where), during(self.counters.main, "transform_ns"):
            return self._call_functions(batch, where)

    def _call_functions(self, batch: Any, where: str) -> Any:
        for function in self._pipeline.functions:
            try:
                batch = function(batch)
            except LoaderError:
                raise
            except (Exception, GeneratorExit) as error:  # of the user's code; GeneratorExit would end the pass early
                advice = _hint(function, error, batch)
                raise TransformError(
                    f"{function_name(function)} raised {_text(error)}.{advice} The batch ends in {where}."
                ) from error
            if batch is None:
                name = function_name(function)
                raise TransformError(f"{name} returned None for the batch that ends in {where}: return the batch.")
        return batch


def _text(error: BaseException) -> str:
    """Return the error's class, and its text unless the text is empty, as for `StopIteration()`."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _hint(function: Callable[..., Any], error: BaseException, batch: Any) -> str:
    """Return advice for functions made for torch's own loader: they ask for sample 0, or iterate over samples."""
    module = getattr(function, "__module__", None) or type(function).__module__
    is_collator = module.partition(".")[0] in ("transformers", "trl")
    asks_for_0 = isinstance(error, KeyError) and (error.args == (0,) or "no column 0;" in str(error))
    if is_collator or asks_for_0 or (isinstance(error, TypeError) and "string indices must be" in str(error)):
        return f" The function gets one batch, {of_type(batch)} of columns, not a list of samples."
    return ""


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a user's function, for messages."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))
