"""The worker processes of one loader, as the trainer sees them: it sends requests and receives batches in order.

docs/design/0016-worker-processes.md lists all messages, and who holds which memory.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput, rows_of_parts
from torch_dataloader_utils._observe.counters import counts_shape
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.errors import ConfigError, InternalError
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.transport.requests import BatchResponse, RequestSampler, RequestSize
from torch_dataloader_utils.stream.transport.sendable import check_functions
from torch_dataloader_utils.stream.transport.shared_memory import (
    check_socket_names,
    share_temporary_directory,
    shared_bytes,
)
from torch_dataloader_utils.stream.transport.slabs import SlabReader
from torch_dataloader_utils.stream.transport.worker_death import Notes, responses_of
from torch_dataloader_utils.stream.transport.worker_process import RequestWorker
from torch_dataloader_utils.stream.worker import Pipeline

Delivered = tuple[int, Cursor, Any]
"""Worker, its cursor, batch."""


class Receiver:
    """Reads the responses of one pass, from slabs where they lie in them; `meter` counts each batch as it is taken."""

    def __init__(self, readers: Mapping[int, SlabReader], meter: LoaderMeter) -> None:
        """readers: the reader of each worker's slabs."""
        self._readers = readers
        self._meter = meter

    def as_they_come(self, responses: Iterator[BatchResponse]) -> Iterator[Delivered]:
        """The batches of all responses, one response after the other."""
        yield from chain.from_iterable(map(self._batches_of, responses))

    def in_plan_order(
        self, responses: Iterator[BatchResponse], workers: Sequence[int], left: int
    ) -> Iterator[Delivered]:
        """`left` batches, one of each worker in the order of `workers`; a response may hold several of one worker.

        Raises:
            InternalError: another worker responded than the one that is next, or one without a batch.
        """
        given: dict[int, Iterator[Delivered]] = {}
        for number in range(left):
            worker = workers[number % len(workers)]
            delivered = next(given.get(worker, iter(())), None)
            if delivered is None:
                given[worker] = self._next_of(worker, responses)
                delivered = next(given[worker], None)
            if delivered is None:
                raise InternalError(f"The response of worker {worker} has no batch. Please report this.")
            yield delivered
        next(responses, None)  # so that the responses end: this was the last batch

    def _next_of(self, worker: int, responses: Iterator[BatchResponse]) -> Iterator[Delivered]:
        response = next(responses, None)
        if response is None or response.worker != worker:
            raise InternalError(f"The next response should be worker {worker}'s; {response} came. Please report this.")
        return self._batches_of(response)

    def _batches_of(self, response: BatchResponse) -> Iterator[Delivered]:
        """The batches of a response, and then its error.

        No reference to a given batch stays here, so that its slab is free once the trainer drops it, or drops the last
        batch of its part.
        """
        worker, cursor, error = response.worker, response.cursor, response.error
        part_rows, rows_of_batches = response.part_rows, response.rows
        reader = self._readers[worker]
        batches = reader.open(response.batches)
        del response
        if part_rows:
            for batch_rows in part_rows:
                for rows, batch in zip(batch_rows, reader.cut(batches.popleft(), batch_rows), strict=True):
                    self._meter.received(rows)
                    yield worker, cursor, batch
        else:
            for rows in rows_of_batches:
                self._meter.received(rows)
                yield worker, cursor, reader.view(batches.popleft())
        if error is not None:
            try:
                raise error
            finally:
                del error  # a reference cycle through this frame, which would keep batches


# Bytes of a batch group. Sending one costs some 300 us whatever its size, and both sides wake up for it: groups of 16
# MiB are 1.2 times as fast as groups of 4 MiB.
_GROUP_BYTES = 16 << 20
# Batches of a batch group. Well-encoded text and lists are much larger in memory than in the file.
_MOST_BATCHES = 64
# Copying this many bytes takes as long as describing where 51 columns lie.
_ALONE_BYTES = 1 << 20


def as_it_is(batch: Any) -> Any:
    """The collate function of a loader whose batches are made where they are read."""
    return batch


class WorkerProcesses:
    """A DataLoader of worker processes, and what the trainer's side of each pass needs.

    options: those of DataLoader. With in_order=False, batches come as they are ready and not in the plan's order.
    """

    def __init__(self, pipeline: Pipeline, decode: DecodeOptions, num_workers: int, options: Mapping[str, Any]) -> None:
        self._pipeline = pipeline
        self._decode = decode
        self._options = options
        self._in_order = options.get("in_order", True)
        self._has_timeout = bool(options.get("timeout"))
        if pipeline.codec is not None or pipeline.functions:
            check_socket_names()  # tensors need them
        check_functions(pipeline.functions, options.get("multiprocessing_context"))
        self._num_workers = num_workers
        # Persistent workers keep their slabs, and the trainer may still hold batches of earlier passes.
        self._readers = self._new_readers() if options.get("persistent_workers") else None
        self._sampler = RequestSampler()
        self._notes = Notes(num_workers)
        self._worker = RequestWorker(pipeline, self._share(), self._notes)
        self._loader: DataLoader[BatchResponse] = DataLoader(
            self._worker,
            batch_size=None,
            sampler=self._sampler,
            num_workers=num_workers,
            collate_fn=as_it_is,
            **{name: value for name, value in options.items() if not name.startswith("pin_memory")},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has workers of its own, and no pass."""
        return WorkerProcesses, (self._pipeline, self._decode, self._num_workers, self._options)

    def reading(self, pipeline: Pipeline) -> "WorkerProcesses":
        """These processes if this is their pipeline, else new ones like them."""
        if pipeline is self._pipeline:
            return self
        return WorkerProcesses(pipeline, self._decode, self._num_workers, self._options)

    def decode_as(self, decode: DecodeOptions) -> None:
        """Set how far processes that start from now on decode ahead, all together."""
        self._decode = decode
        self._worker.options = self._share()

    def _share(self) -> DecodeOptions:
        """How far one process decodes ahead."""
        decode = self._decode
        return replace(decode, threads=decode.worker_threads, budget_bytes=decode.budget_bytes // self._num_workers)

    def deliver(
        self, works: Sequence[WorkerInput], first_worker: int, left: int | None, meter: LoaderMeter
    ) -> Generator[Delivered]:
        """The batches of one pass.

        works: the inputs of all workers. first_worker: whose batch comes first. left: how many there are; None if
        only reading can tell. meter: counts every batch, and the time until each response.
        """
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
            # Closed explicitly: an unpickled error that has its traceback (tblib) keeps these frames alive.
            with closing(responses_of(self._loader, self._notes, partial(self._prepare, meter))) as arriving:
                responses = meter.responses(self._of_pass(size, arriving))
                if counted is not None:
                    yield from receiver.in_plan_order(self._set_size(responses, size), workers, counted)
                else:
                    yield from receiver.as_they_come(_until_ended(responses, len(works), left))
        finally:
            self._sampler.forget(size)
            if self._readers is None:
                self._worker.counts = torch.empty(0)  # an open file

    def _new_readers(self) -> list[SlabReader]:
        """A reader of slabs for each process.

        With in_order=False they have no codec, and batches come through the queue: any process may get a request
        then, and the request would name slabs of another process.
        """
        codec = self._pipeline.codec if self._in_order else None
        return [SlabReader(codec) for _ in range(self._num_workers)]

    def _prepare(self, meter: LoaderMeter, are_new: bool) -> None:
        """Before a pass: say where processes that are new count; the memory of ended ones may say that they fetch."""
        if are_new:
            shape = (self._num_workers, *counts_shape(self._worker.options.threads))
            self._worker.counts = shared_bytes(math.prod(shape) * torch.int64.itemsize).view(torch.int64).view(shape)
            self._worker.directory = share_temporary_directory()
        meter.count_workers(self._worker.counts.numpy())

    def _of_pass(self, size: RequestSize, responses: Iterator[BatchResponse]) -> Iterator[BatchResponse]:
        """The responses of this pass; raises ConfigError once persistent workers work for a later pass."""
        while self._readers is None or self._sampler.is_latest(size):
            response = next(responses, None)
            if response is None:
                return
            yield response
        raise ConfigError(
            "Another iterator over this loader was made since, and persistent workers work for one at a time. Finish "
            "one before you make the next, build two loaders, or leave persistent_workers out."
        )

    def _set_size(self, responses: Iterator[BatchResponse], size: RequestSize) -> Iterator[BatchResponse]:
        """All responses; each one sets how many batches the next requests ask for.

        With DataLoader's `timeout` that stays one: the time limit is for a batch but measured for a response.
        """
        for response in responses:
            if not self._has_timeout:
                size.batches = response.next_batches
            yield response


def _until_ended(responses: Iterator[BatchResponse], num_workers: int, count: int | None) -> Iterator[BatchResponse]:
    """Responses until there were `count` batches, or until every worker has ended."""
    ended = set[int]()
    received = 0
    for response in responses:
        if response.ended:
            ended.add(response.worker)
        received += len(response.batches)
        yield response
        if received == count or len(ended) == num_workers:
            return


def group_length(works: Sequence[WorkerInput], pipeline: Pipeline) -> int | None:
    """How many batches travel as one batch group: some megabytes, but no more rows than a row group has.

    None: each batch is copied to a slab on its own, since user functions made it, it has no codec, or it is small and
    larger than a row group.
    """
    if pipeline.codec is None or pipeline.functions:
        return None
    batching = works[0].program.batching
    group_rows = np.concatenate([work.group_stop - work.group_start for work in works])
    num_bytes = sum(int(work.inventory.groups.projected_bytes.sum()) for work in works)
    batch_rows = rows_of_parts(batching.parts(0)) if batching.num_batches else 0
    if not batch_rows or not group_rows.any():
        return None
    # Projected bytes are too low where values repeat, so a row takes at least what its fixed-width columns take.
    whole, row_bytes = int(group_rows.max()), max(num_bytes / int(group_rows.sum()), pipeline.row_bytes)
    # Batch groups are equal parts of a row group, because a batch that spans two row groups has to be put together.
    parts = math.ceil(max(whole * row_bytes / _GROUP_BYTES, 1))
    length = min(max(1, whole // parts // batch_rows), _MOST_BATCHES)
    return None if length == 1 and batch_rows * row_bytes < _ALONE_BYTES else length
