"""Make the batches of one worker: the same code in the trainer's process, in a worker process, and in tests."""

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch_dataloader_utils._core.block import Block, RowGroupReader, Shaper
from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import ListedBatches, RotatingLanes, WorkerInput, rows_of_parts
from torch_dataloader_utils._core.slab_codec import SlabCodec
from torch_dataloader_utils._observe.counters import WorkerCounters, during
from torch_dataloader_utils.errors import InternalError, LoaderError, TransformError, in_words, of_type
from torch_dataloader_utils.stream.batch_groups import BatchGroup, BlockSlice, GroupPart, group_parts, put_together
from torch_dataloader_utils.stream.decode import DecodeOptions, DecodeScheduler
from torch_dataloader_utils.stream.lane import LaneBlocks, LaneReader
from torch_dataloader_utils.stream.mixed_lanes import MixedBatch, MixedLanes
from torch_dataloader_utils.stream.origins import Origins, noting_origins

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


Made = tuple[Any, int, LaneReader | MixedBatch]
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
        self._program = work.program
        self._pipeline = pipeline
        self._decoder = DecodeScheduler(work, pipeline.reader, pipeline.shaper, options, self.counters)
        self._blocks = [LaneBlocks(self._decoder, work, lane) for lane in work.program.lanes]
        self._lanes = [LaneReader(work.program, blocks, pipeline.shaper) for blocks in self._blocks]

    @property
    def num_batches(self) -> int | None:
        """Number of batches; None if row counts are not known."""
        return self._program.batching.num_batches

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
            if isinstance(self._program.batching, RotatingLanes):
                yield from self._groups_of_rotating_lanes(length)
            else:
                yield from self._groups_of_one_lane(self.num_batches, length)

    def _groups_of_one_lane(self, num_batches: int, length: int) -> Iterator[BatchGroup]:
        """Yield groups of batches of a single lane. Rows of one block are not copied, see `group_parts`."""
        rows_left = (rows_of_parts(self._program.batching.parts(number)) for number in range(num_batches))
        while rows := tuple(itertools.islice(rows_left, length)):
            yield self._group(rows)

    def _group(self, rows: tuple[int, ...]) -> BatchGroup:
        slices = self._slices(0, sum(rows))
        self.counters.rows += sum(rows)
        return BatchGroup(parts=tuple(group_parts(slices, rows, self._pipeline.shaper)))

    def _groups_of_rotating_lanes(self, length: int) -> Iterator[BatchGroup]:
        """Yield groups of batches from lanes in rotation: a group has rows of several lanes, even if no batch has."""
        for block, batches in self._mixed_blocks(length):
            stop = 0
            for first in range(0, len(batches), length):
                rows = tuple(batch.rows for batch in batches[first : first + length])
                start, stop = stop, stop + sum(rows)
                self.counters.rows += stop - start
                yield BatchGroup(parts=(GroupPart(block.slice(start, stop).to_batch(), rows),))

    def _slices(self, lane: int, rows: int) -> list[BlockSlice]:
        """Return the next rows of a lane as slices of their blocks, without a copy.

        Raises:
            InternalError: the lane has fewer rows.
        """
        slices = list(self._lanes[lane].take(rows))
        if (found := sum(each.num_rows for each in slices)) != rows:
            raise InternalError(f"A batch of {rows} planned rows has {found}. Please report this with the plan.")
        return slices

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Let all lanes decode ahead inside the context. At its end, stop decoding and release all rows."""
        try:
            self._decoder.prefetch()
            yield
        finally:
            self._decoder.close()
            for lane in self._lanes:
                lane.close()

    def _made(self) -> Iterator[Made]:
        """Return an iterator over all batches before functions of the user."""
        mixes = bool(self.num_batches) and len(self._program.batching.parts(0)) > 1
        return self._of_mixed_lanes() if mixes else self._of_lanes()

    def _of_lanes(self) -> Iterator[Made]:
        """Yield batches that have rows of one lane each: views of a block where the rows lie whole in it.

        The last batch of a lane without row counts may be shorter.
        """
        cuts_ahead = not isinstance(self._program.batching, ListedBatches)
        is_counted = self.num_batches is not None
        for number in itertools.count() if self.num_batches is None else range(self.num_batches):
            ((index, rows),) = self._program.batching.parts(number)
            lane = self._lanes[index]
            batch = lane.whole_batch(rows, cuts_ahead=cuts_ahead)
            if batch is None:  # the present block has fewer rows
                slices = self._slices(index, rows) if is_counted else list(lane.take(rows))
                if not slices:
                    return
                block = put_together(slices, self._pipeline.shaper)
                batch, rows = block.to_batch(), block.num_rows
                del slices, block
            yield batch, rows, lane

    def _of_mixed_lanes(self) -> Iterator[Made]:
        """Yield batches with rows of several lanes, cut from blocks of many batches."""
        for block, batches in self._mixed_blocks(1):
            stop = 0
            whole = block.split(batches[0].rows)
            for mixed in batches:
                start, stop = stop, stop + mixed.rows
                # The last batch of an epoch may be shorter.
                is_whole = mixed.rows == batches[0].rows
                batch = next(whole) if is_whole else block.slice(start, stop).to_batch()
                yield batch, mixed.rows, mixed

    def _mixed_blocks(self, at_least: int) -> Iterator[tuple[Block, Sequence[MixedBatch]]]:
        return MixedLanes(self._program, self._blocks, self._pipeline.shaper, self._decoder).blocks(at_least)

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
                    f"{function_name(function)} raised {in_words(error)}{advice} The batch ends in {where}."
                ) from error
            if batch is None:
                name = function_name(function)
                raise TransformError(f"{name} returned None for the batch that ends in {where}: return the batch.")
        return batch


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
