"""Run the worker processes of one loader from the trainer's process: send requests, and receive batches in order.

docs/design/0016-worker-processes.md lists all messages, and which process holds which memory.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import counts_shape
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils._runtime.shared_memory import (
    check_socket_names,
    share_temporary_directory,
    shared_bytes,
)
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.transport.receiver import Receiver, group_length, until_ended
from torch_dataloader_utils.stream.transport.requests import BatchResponse, RequestSampler, RequestSize
from torch_dataloader_utils.stream.transport.sendable import SentFunctions, check_functions
from torch_dataloader_utils.stream.transport.slabs import SlabReader
from torch_dataloader_utils.stream.transport.worker_death import Notes, responses_of
from torch_dataloader_utils.stream.transport.worker_process import RequestWorker
from torch_dataloader_utils.stream.transport.worker_transport import Delivered, RestOf
from torch_dataloader_utils.stream.worker import Pipeline


def as_it_is(batch: object) -> Any:
    """Return the batch: the collate function of a loader that gives batches already."""
    return batch


class WorkerProcesses:
    """Worker processes of a loader: a DataLoader over requests, with the trainer's side of each pass.

    options: options of DataLoader. With in_order=False, batches come as they are ready and not in the plan's order.
    """

    def __init__(self, pipeline: Pipeline, decode: DecodeOptions, num_workers: int, options: Mapping[str, Any]) -> None:
        self._pipeline = pipeline
        self._decode = decode
        self._options = options
        self._in_order = options.get("in_order", True)
        self._has_timeout = bool(options.get("timeout"))
        if pipeline.codec is not None or pipeline.functions:
            check_socket_names()  # sockets send tensors
        check_functions(pipeline.functions, options.get("multiprocessing_context"))
        self._num_workers = num_workers
        # Persistent workers keep their slabs, and the trainer may still hold batches of earlier passes.
        self._readers = self._new_readers() if options.get("persistent_workers") else None
        self._sampler = RequestSampler()
        self._notes = Notes(num_workers)
        sent = replace(pipeline, functions=SentFunctions(pipeline.functions))
        self._worker = RequestWorker(sent, self._share(), self._notes)
        self._loader: DataLoader[BatchResponse] = DataLoader(
            self._worker,
            batch_size=None,
            sampler=self._sampler,
            num_workers=num_workers,
            collate_fn=as_it_is,
            **{name: value for name, value in options.items() if not name.startswith("pin_memory")},
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Make copies without a pass: a copy starts its own workers."""
        return WorkerProcesses, (self._pipeline, self._decode, self._num_workers, self._options)

    def reading(self, pipeline: Pipeline) -> "WorkerProcesses":
        """Return these processes if this is their pipeline, else new processes with the same options."""
        if pipeline is self._pipeline:
            return self
        return WorkerProcesses(pipeline, self._decode, self._num_workers, self._options)

    def decode_as(self, decode: DecodeOptions) -> None:
        """Set the limits of decoding ahead for all processes together that start from now on."""
        self._decode = decode
        self._worker.options = self._share()

    def _share(self) -> DecodeOptions:
        """Return the limits of decoding ahead for one process."""
        decode = self._decode
        return replace(decode, threads=decode.worker_threads, budget_bytes=decode.budget_bytes // self._num_workers)

    def deliver(
        self,
        works: Sequence[WorkerInput],
        first_worker: int,
        left: int | None,
        meter: LoaderMeter,
        rest_of: RestOf,  # noqa: ARG002 - a worker process that dies ends the pass
    ) -> Generator[Delivered]:
        """See WorkerTransport.deliver."""
        counted = left if self._in_order else None
        readers = self._readers or self._new_readers()
        workers = [(first_worker + process) % len(works) for process in range(len(works))]
        size = self._sampler.start(
            works,
            workers=workers,
            count=counted,
            group_length=None if counted is None else group_length(works, self._pipeline),
            readers=readers,
        )
        receiver = Receiver(dict(zip(workers, readers, strict=True)), meter)
        try:
            if left == 0:
                return
            # Closed explicitly: an unpickled error with its traceback (tblib) keeps these frames alive.
            with closing(responses_of(self._loader, self._notes, partial(self._prepare, meter))) as arriving:
                responses = meter.responses(self._of_pass(size, arriving))
                if counted is not None:
                    yield from receiver.in_plan_order(self._set_size(responses, size), workers, counted)
                else:
                    yield from receiver.as_they_come(until_ended(responses, len(works), left))
        finally:
            self._sampler.forget(size)
            if self._readers is None:
                self._worker.counts = torch.empty(0)  # an open file

    def _new_readers(self) -> list[SlabReader]:
        """Return a reader of slabs for each process.

        With in_order=False readers have no codec, and batches come through the queue: any process may get a request,
        and the request would name slabs of another process.
        """
        codec = self._pipeline.codec if self._in_order else None
        return [SlabReader(codec) for _ in range(self._num_workers)]

    def _prepare(self, meter: LoaderMeter, are_new: bool) -> None:
        """Prepare a pass. New processes count in new memory: the memory of ended processes may show a running fetch."""
        if are_new:
            shape = (self._num_workers, *counts_shape(self._worker.options.threads))
            self._worker.counts = shared_bytes(math.prod(shape) * torch.int64.itemsize).view(torch.int64).view(shape)
            self._worker.directory = share_temporary_directory()
        meter.count_workers(self._worker.counts.numpy())

    def _of_pass(self, size: RequestSize, responses: Iterator[BatchResponse]) -> Iterator[BatchResponse]:
        """Yield the responses of this pass. Raises ConfigError once persistent workers work for a later pass."""
        while self._readers is None or self._sampler.is_latest(size):
            response = next(responses, None)
            if response is None:
                return
            yield response
        raise ConfigError(
            "Another iterator over this loader was made since, and persistent workers work for one iterator at a time. "
            "Finish one iterator before you make the next, build two loaders, or leave persistent_workers out."
        )

    def _set_size(self, responses: Iterator[BatchResponse], size: RequestSize) -> Iterator[BatchResponse]:
        """Yield all responses. Each response sets the number of batches that the next requests ask for.

        With DataLoader's `timeout` the number stays 1: the time limit is for a batch but measured for a response.
        """
        for response in responses:
            if not self._has_timeout:
                size.batches = response.next_batches
            yield response
