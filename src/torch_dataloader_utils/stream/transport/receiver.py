"""Receive the responses of workers (processes or actors) in the trainer's process, and give their batches in order."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat

import numpy as np

from torch_dataloader_utils._core.program import WorkerInput, rows_of_parts
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.origins import cut_origin
from torch_dataloader_utils.stream.transport.buffers import BatchReader
from torch_dataloader_utils.stream.transport.requests import BatchResponse
from torch_dataloader_utils.stream.transport.worker_transport import Delivered
from torch_dataloader_utils.stream.worker import Pipeline


class Receiver:
    """Receiver of the responses of one pass. `meter` counts each batch when it is taken."""

    def __init__(self, readers: Mapping[int, BatchReader], meter: LoaderMeter) -> None:
        """readers: reader of each worker's messages, by worker number."""
        self._readers = readers
        self._meter = meter

    def as_they_come(self, responses: Iterator[BatchResponse]) -> Iterator[Delivered]:
        """Yield the batches of all responses, one response after the other."""
        yield from chain.from_iterable(map(self._batches_of, responses))

    def in_plan_order(
        self, responses: Iterator[BatchResponse], workers: Sequence[int], left: int
    ) -> Iterator[Delivered]:
        """Yield `left` batches, one of each worker in the order of `workers`. A response may hold several batches.

        Raises:
            InternalError: the next response is not from the next worker, or has no batch.
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
        next(responses, None)  # let the generator of responses end: this was the last batch

    def _next_of(self, worker: int, responses: Iterator[BatchResponse]) -> Iterator[Delivered]:
        response = next(responses, None)
        if response is None or response.worker != worker:
            raise InternalError(f"The next response should be worker {worker}'s; {response} came. Please report this.")
        return self._batches_of(response)

    def _batches_of(self, response: BatchResponse) -> Iterator[Delivered]:
        """Yield the batches of a response, and then raise its error.

        No reference to a given batch stays here, so that its region is free once the trainer drops the batch, or drops
        the last batch of its part.
        """
        worker, cursor, error = response.worker, response.cursor, response.error
        part_rows, rows_of_batches = response.part_rows, response.rows
        reader = self._readers[worker]
        rows_of_all = chain.from_iterable(part_rows) if part_rows else rows_of_batches
        origins = repeat(None) if response.origin is None else cut_origin(response.origin, rows_of_all)
        batches = reader.open(response.batches)
        del response
        if part_rows:
            for batch_rows in part_rows:
                for rows, batch in zip(batch_rows, reader.cut(batches.popleft(), batch_rows), strict=True):
                    self._meter.received(rows)
                    yield worker, cursor, next(origins), batch
        else:
            for rows in rows_of_batches:
                self._meter.received(rows)
                yield worker, cursor, next(origins), reader.view(batches.popleft())
        if error is not None:
            try:
                raise error
            finally:
                del error  # else a reference cycle through this frame would keep batches


# Bytes of a batch group. Sending a group costs about 300 us for any size, and both sides wake up for it: groups of
# 16 MiB are 1.2 times as fast as groups of 4 MiB.
_GROUP_BYTES = 16 << 20
# Batches of a batch group. Well-encoded text and lists are much larger in memory than in the file.
_MOST_BATCHES = 64
# Copying this many bytes takes as long as describing the places of 51 columns.
_ALONE_BYTES = 1 << 20


def until_ended(responses: Iterator[BatchResponse], num_workers: int, count: int | None) -> Iterator[BatchResponse]:
    """Yield responses until `count` batches were received, or until every worker has ended."""
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
    """Return how many batches travel as one batch group: some megabytes, but no more rows than a row group has.

    None: each batch is copied to a slab on its own, because user functions make the batches, batches have no codec, or
    batches are small and fewer than two fit into a row group.
    """
    if pipeline.codec is None or pipeline.functions:
        return None
    batching = works[0].program.batching
    group_rows = np.concatenate([work.group_stop - work.group_start for work in works])
    num_bytes = sum(int(work.inventory.groups.projected_bytes.sum()) for work in works)
    batch_rows = rows_of_parts(batching.parts(0)) if batching.num_batches else 0
    if not batch_rows or not group_rows.any():
        return None
    # Projected bytes are too low if values repeat, so a row takes at least the bytes of its fixed-width columns.
    whole, row_bytes = int(group_rows.max()), max(num_bytes / int(group_rows.sum()), pipeline.row_bytes)
    # Batch groups are equal parts of a row group, because a batch that spans two row groups has to be put together.
    parts = math.ceil(max(whole * row_bytes / _GROUP_BYTES, 1))
    length = min(max(1, whole // parts // batch_rows), _MOST_BATCHES)
    return None if length == 1 and batch_rows * row_bytes < _ALONE_BYTES else length
