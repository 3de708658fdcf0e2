"""Make the response to each request of a pass, in a worker process or an actor."""

import itertools
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils._observe.counters import during
from torch_dataloader_utils.errors import LoaderError
from torch_dataloader_utils.stream.batch_groups import BatchGroup
from torch_dataloader_utils.stream.transport.buffers import BatchWriter
from torch_dataloader_utils.stream.transport.requests import BatchResponse, ResponseSize
from torch_dataloader_utils.stream.worker import WorkerStream

if TYPE_CHECKING:
    from collections.abc import Generator


class Responder:
    """Responder of one worker in one pass.

    group_length: number of batches that are sent as one `BatchGroup`; None: each batch is sent on its own.
    writer: writer of messages; None if batches are sent as they are.
    """

    def __init__(self, worker: int, stream: WorkerStream, group_length: int | None, writer: BatchWriter | None) -> None:
        self._worker = worker
        self._stream = stream
        self._writer = writer
        self._is_grouped = group_length is not None
        self._size = ResponseSize()
        self._batches: Generator[Any] = iter(stream) if group_length is None else stream.batch_groups(group_length)

    def respond(self, most: int) -> BatchResponse:
        """Return the next `most` batches (or batch groups); fewer if the pass ends or an error occurs before."""
        with during(self._stream.counters.main, "make_ns"):
            return self._respond(most)

    def close(self) -> None:
        """End the pass and its decoding."""
        self._batches.close()

    def _respond(self, most: int) -> BatchResponse:
        begin, stream = perf_counter_ns(), self._stream
        if self._writer is not None:
            self._writer.begin()
        batches: list[object] = []
        part_rows: list[tuple[int, ...]] = []
        rows: list[int] = []
        error, before, are_copied = None, stream.counters.rows, True
        try:
            for batch in itertools.islice(self._batches, most):
                if isinstance(batch, BatchGroup):
                    batches += [self._referred(part.batch) for part in batch.parts]
                    part_rows += [part.rows for part in batch.parts]
                else:
                    batches.append(self._copied(batch, most - len(batches)))
                    are_copied = are_copied and batches[-1] is not batch
                rows.append(stream.counters.rows - before)
                before = stream.counters.rows
        except LoaderError as raised:
            error = raised
        if self._writer is not None and not self._is_grouped and batches:
            copied_bytes = self._writer.copied_bytes if are_copied else 0
            self._size.learn(len(batches), copied_bytes, perf_counter_ns() - begin)
        return BatchResponse(
            worker=self._worker,
            batches=tuple(batches),
            part_rows=tuple(part_rows),
            cursor=stream.cursor,
            rows=tuple(rows),
            ended=error is None and len(rows) < most,
            error=error,
            next_batches=self._size.batches,
            origin=None if stream.origins is None else stream.origins.take(),
        )

    def _copied(self, batch: object, batches_left: int) -> object:
        """Return a batch for sending. Copies it before the next batch is made: a transform may reuse its buffer."""
        return batch if self._writer is None else self._writer.copy(batch, batches_left)

    def _referred(self, batch: object) -> object:
        """Return a part of a batch group for sending."""
        return batch if self._writer is None else self._writer.refer(batch)
