"""What runs in a worker process of the loader: it responds to requests with its next batches."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from torch_dataloader_utils._observe.counters import WorkerCounters, during
from torch_dataloader_utils._runtime.processes import end_with_parent
from torch_dataloader_utils.errors import InternalError, LoaderError
from torch_dataloader_utils.stream.batch_groups import LEAST_PART_BYTES, BatchGroup
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.transport.sendable import with_sendable_results
from torch_dataloader_utils.stream.transport.slabs import Held, SlabMemory, SlabMessage, SlabWriter
from torch_dataloader_utils.stream.transport.socket_directory import sweep_if_orphaned
from torch_dataloader_utils.stream.transport.torch_workers import end_if_an_answer_is_lost
from torch_dataloader_utils.stream.transport.worker_death import Notes, NotingReader
from torch_dataloader_utils.stream.transport.worker_requests import Answer, BatchPace, Start, Ticket
from torch_dataloader_utils.stream.worker import Pipeline, WorkerStream


class TicketWorker(Dataset[Answer]):
    """The data set of a worker process: it has nothing to read until the first ticket comes.

    Set before workers start: directory (see share_temporary_directory); options, how far each decodes ahead; counts,
    shared memory for what they count, int64 [workers, *counts_shape].
    """

    directory: str
    counts: Tensor

    def __init__(self, pipeline: Pipeline, options: DecodeOptions, notes: Notes) -> None:
        self._pipeline = pipeline
        self._notes = notes
        self.options = options
        self._memory: SlabMemory | None = None
        self._slabs: SlabWriter | None = None
        self._pace = BatchPace()
        self._stream: WorkerStream | None = None
        self._batches: Iterator[Any] = iter(())
        self._start: Start | None = None
        self._counters: WorkerCounters | None = None

    def __getitem__(self, ticket: Ticket) -> Answer:
        if ticket.start is not None:
            self._begin(ticket.start)
        if self._start is None or self._stream is None:
            raise InternalError("A worker process was asked before it was told what to read. Please report this.")
        with during(self._stream.counters.main, "make_ns"):
            return self._answer(ticket, self._start, self._stream)

    def _answer(self, ticket: Ticket, start: Start, stream: WorkerStream) -> Answer:
        begin = perf_counter_ns()
        if self._memory is not None and self._slabs is not None:
            self._memory.take_back(ticket.returned)
            self._slabs.begin()
        batches: list[Any] = []
        piece_rows: list[tuple[int, ...]] = []
        rows: list[int] = []
        error, before = None, stream.counters.rows
        try:
            for batch in itertools.islice(self._batches, ticket.batches):
                if isinstance(batch, BatchGroup):
                    batches += [self._referred(piece.batch) for piece in batch.pieces]
                    piece_rows += [piece.rows for piece in batch.pieces]
                else:
                    batches.append(self._copied(batch, ticket.batches - len(batches)))
                rows.append(stream.counters.rows - before)
                before = stream.counters.rows
        except LoaderError as raised:
            error = raised
        self._learn(batches, perf_counter_ns() - begin)
        return Answer(
            worker=start.worker,
            batches=tuple(batches),
            piece_rows=tuple(piece_rows),
            cursor=stream.cursor,
            rows=tuple(rows),
            ended=error is None and len(rows) < ticket.batches,
            error=error,
            pace=self._pace.length,
        )

    def _begin(self, start: Start) -> None:
        close: Callable[[], None] | None = getattr(self._batches, "close", None)
        if close is not None:
            close()
        if self._start is None:
            sweep_if_orphaned(self.directory)
            # torch checks for its parent every five seconds, which under forkserver is a server that lives on after the
            # trainer's death, as long as workers do.
            end_with_parent(self.directory)
            end_if_an_answer_is_lost()
        self._start = start
        self._counters = self._counters or WorkerCounters(self.counts.numpy()[start.worker])
        reader = NotingReader(reader=self._pipeline.reader, notes=self._notes, worker=start.worker)
        functions = with_sendable_results(self._pipeline.functions)
        self._slabs = self._slab_writer(start.held)
        shaper = self._pipeline.shaper
        if self._memory is not None and start.run_length is not None:
            shaper.use_memory(self._memory.recycled)
            # Windows and joins are made in slabs: copying their columns first would be one copy too many.
            if start.work.program.delivers_row_groups:
                shaper = shaper.with_copied_columns(LEAST_PART_BYTES)
        self._stream = WorkerStream(
            start.work,
            replace(self._pipeline, reader=reader, shaper=shaper, functions=functions),
            self.options,
            self._counters,
            watch=lambda where: self._notes.calling(start.worker, where),
        )
        self._batches = iter(self._stream) if start.run_length is None else self._stream.batch_groups(start.run_length)
        self._pace = BatchPace()

    def _slab_writer(self, held: Held | None) -> SlabWriter | None:
        """A writer into the slabs of earlier passes: new memory pages cost as much as filling them."""
        codec = self._pipeline.codec
        if codec is None or held is None:
            return None
        self._memory = self._memory or SlabMemory()
        self._memory.keep_only(held.shares)
        return SlabWriter(codec, self._memory, held)

    def _copied(self, batch: Any, batches_left: int) -> Any:
        """A batch as it is sent; copied before the next one is made, since a transform may reuse one buffer for all."""
        return batch if self._slabs is None else self._slabs.copy(batch, batches_left)

    def _referred(self, batch: Any) -> Any:
        """A piece of a run as it is sent."""
        return batch if self._slabs is None else self._slabs.refer(batch)

    def _learn(self, batches: Sequence[Any], took_ns: int) -> None:
        """Let the pace learn from how long this answer took."""
        if self._slabs is not None and self._start is not None and self._start.run_length is None and batches:
            in_slabs = all(isinstance(batch, SlabMessage) for batch in batches)
            self._pace.learn(len(batches), self._slabs.copied_bytes if in_slabs else 0, took_ns)
