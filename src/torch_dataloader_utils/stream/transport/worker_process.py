"""Respond to requests in a worker process: the data set that the worker's DataLoader loop reads."""

from dataclasses import replace

from torch import Tensor
from torch.utils.data import Dataset

from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils._runtime.processes import end_with_parent
from torch_dataloader_utils._runtime.shared_memory import sweep_if_orphaned
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.batch_groups import LEAST_PART_BYTES
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.transport.requests import BatchRequest, BatchResponse, Start
from torch_dataloader_utils.stream.transport.responder import Responder
from torch_dataloader_utils.stream.transport.sendable import with_sendable_results
from torch_dataloader_utils.stream.transport.slabs import Held, SlabMemory, SlabWriter
from torch_dataloader_utils.stream.transport.torch_workers import end_if_a_response_is_lost
from torch_dataloader_utils.stream.transport.worker_death import Notes, NotingReader
from torch_dataloader_utils.stream.worker import Pipeline, WorkerStream


class RequestWorker(Dataset[BatchResponse]):
    """Data set of a worker process: item `request` is the response. No data is read before the first request.

    Attributes to set before workers start:
    directory: see share_temporary_directory. options: limits of decoding ahead of each worker.
    counts: shared memory for the workers' counts, int64 [workers, *counts_shape].
    """

    directory: str
    counts: Tensor

    def __init__(self, pipeline: Pipeline, options: DecodeOptions, notes: Notes) -> None:
        self._pipeline = pipeline
        self._notes = notes
        self.options = options
        self._memory: SlabMemory | None = None
        self._responder: Responder | None = None
        self._counters: WorkerCounters | None = None

    def __getitem__(self, request: BatchRequest) -> BatchResponse:
        if request.start is not None:
            self._responder = self._begin(request.start)
        if self._responder is None:
            raise InternalError("A worker process got a request before the start of a pass. Please report this.")
        if self._memory is not None:
            self._memory.free(request.freed)
        return self._responder.respond(request.batches)

    def _begin(self, start: Start) -> Responder:
        if self._responder is not None:
            self._responder.close()
        else:
            sweep_if_orphaned(self.directory)
            # torch checks for its parent every five seconds. Under forkserver the parent is a server, which lives on
            # after the trainer's death, as long as workers live.
            end_with_parent(self.directory)
            end_if_a_response_is_lost()
        self._counters = self._counters or WorkerCounters(self.counts.numpy()[start.worker])
        reader = NotingReader(reader=self._pipeline.reader, notes=self._notes, worker=start.worker)
        functions = with_sendable_results(self._pipeline.functions)
        slabs = self._slab_writer(start.held)
        shaper = self._pipeline.shaper
        if self._memory is not None and start.group_length is not None:
            shaper.use_memory(self._memory.recycled)
            # Windows and joined row groups are made in slabs: copying their columns first would be one copy too many.
            if start.work.program.delivers_row_groups:
                shaper = shaper.with_copied_columns(LEAST_PART_BYTES)
        stream = WorkerStream(
            start.work,
            replace(self._pipeline, reader=reader, shaper=shaper, functions=functions),
            self.options,
            self._counters,
            watch=lambda where: self._notes.calling(start.worker, where),
        )
        return Responder(start.worker, stream, start.group_length, slabs)

    def _slab_writer(self, held: Held | None) -> SlabWriter | None:
        """Return a writer into the slabs of earlier passes: new memory pages cost as much as filling them."""
        codec = self._pipeline.codec
        if codec is None or held is None:
            return None
        self._memory = self._memory or SlabMemory()
        self._memory.keep_only(held.regions)
        return SlabWriter(codec, self._memory, held)
