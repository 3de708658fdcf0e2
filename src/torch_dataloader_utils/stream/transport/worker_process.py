"""The data set of a worker process of the loader: it responds to requests with its next batches."""

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
from torch_dataloader_utils.stream.transport.requests import BatchRequest, BatchResponse, ResponseSize, Start
from torch_dataloader_utils.stream.transport.sendable import with_sendable_results
from torch_dataloader_utils.stream.transport.shared_memory import sweep_if_orphaned
from torch_dataloader_utils.stream.transport.slabs import Held, SlabMemory, SlabMessage, SlabWriter
from torch_dataloader_utils.stream.transport.torch_workers import end_if_a_response_is_lost
from torch_dataloader_utils.stream.transport.worker_death import Notes, NotingReader
from torch_dataloader_utils.stream.worker import Pipeline, WorkerStream


class RequestWorker(Dataset[BatchResponse]):
    """The data set of a worker process: item `request` is the response; nothing is read before the first request.

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
        self._size = ResponseSize()
        self._stream: WorkerStream | None = None
        self._batches: Iterator[Any] = iter(())
        self._start: Start | None = None
        self._counters: WorkerCounters | None = None

    def __getitem__(self, request: BatchRequest) -> BatchResponse:
        if request.start is not None:
            self._begin(request.start)
        if self._start is None or self._stream is None:
            raise InternalError("A worker process got a request before the start of a pass. Please report this.")
        with during(self._stream.counters.main, "make_ns"):
            return self._respond(request, self._start, self._stream)

    def _respond(self, request: BatchRequest, start: Start, stream: WorkerStream) -> BatchResponse:
        begin = perf_counter_ns()
        if self._memory is not None and self._slabs is not None:
            self._memory.free(request.freed)
            self._slabs.begin()
        batches: list[Any] = []
        part_rows: list[tuple[int, ...]] = []
        rows: list[int] = []
        error, before = None, stream.counters.rows
        try:
            for batch in itertools.islice(self._batches, request.batches):
                if isinstance(batch, BatchGroup):
                    batches += [self._referred(part.batch) for part in batch.parts]
                    part_rows += [part.rows for part in batch.parts]
                else:
                    batches.append(self._copied(batch, request.batches - len(batches)))
                rows.append(stream.counters.rows - before)
                before = stream.counters.rows
        except LoaderError as raised:
            error = raised
        self._learn(batches, perf_counter_ns() - begin)
        return BatchResponse(
            worker=start.worker,
            batches=tuple(batches),
            part_rows=tuple(part_rows),
            cursor=stream.cursor,
            rows=tuple(rows),
            ended=error is None and len(rows) < request.batches,
            error=error,
            next_batches=self._size.batches,
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
            end_if_a_response_is_lost()
        self._start = start
        self._counters = self._counters or WorkerCounters(self.counts.numpy()[start.worker])
        reader = NotingReader(reader=self._pipeline.reader, notes=self._notes, worker=start.worker)
        functions = with_sendable_results(self._pipeline.functions)
        self._slabs = self._slab_writer(start.held)
        shaper = self._pipeline.shaper
        if self._memory is not None and start.group_length is not None:
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
        self._batches = (
            iter(self._stream) if start.group_length is None else self._stream.batch_groups(start.group_length)
        )
        self._size = ResponseSize()

    def _slab_writer(self, held: Held | None) -> SlabWriter | None:
        """A writer into the slabs of earlier passes: new memory pages cost as much as filling them."""
        codec = self._pipeline.codec
        if codec is None or held is None:
            return None
        self._memory = self._memory or SlabMemory()
        self._memory.keep_only(held.regions)
        return SlabWriter(codec, self._memory, held)

    def _copied(self, batch: Any, batches_left: int) -> Any:
        """A batch as it is sent; copied before the next one is made, since a transform may reuse one buffer for all."""
        return batch if self._slabs is None else self._slabs.copy(batch, batches_left)

    def _referred(self, batch: Any) -> Any:
        """A part of a batch group as it is sent."""
        return batch if self._slabs is None else self._slabs.refer(batch)

    def _learn(self, batches: Sequence[Any], took_ns: int) -> None:
        """Learn from how long this response took."""
        if self._slabs is not None and self._start is not None and self._start.group_length is None and batches:
            in_slabs = all(isinstance(batch, SlabMessage) for batch in batches)
            self._size.learn(len(batches), self._slabs.copied_bytes if in_slabs else 0, took_ns)
