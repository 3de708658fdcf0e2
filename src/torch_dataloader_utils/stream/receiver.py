"""Receives the answers of worker processes in the trainer's process, and gives their batches in the plan's order."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.slabs import SlabReader
from torch_dataloader_utils.stream.tickets import Answer

Delivered = tuple[int, Cursor, Any]
"""Worker, its cursor, batch."""


class Receiver:
    """Reads the answers of one pass, from slabs where batches lie in them; `meter` counts each batch as it is taken."""

    def __init__(self, readers: Mapping[int, SlabReader], meter: LoaderMeter) -> None:
        """readers: the reader of each worker's slabs."""
        self._readers = readers
        self._meter = meter

    def as_they_come(self, answers: Iterator[Answer]) -> Iterator[Delivered]:
        """The batches of all answers, one answer after the other."""
        yield from chain.from_iterable(map(self._batches_of, answers))

    def in_turn(self, answers: Iterator[Answer], turns: Sequence[int], left: int) -> Iterator[Delivered]:
        """`left` batches, one of each worker in the order of `turns`; an answer may hold several of one worker.

        Raises:
            InternalError: a worker answered that was not asked.
        """
        given: dict[int, Iterator[Delivered]] = {}
        for number in range(left):
            worker = turns[number % len(turns)]
            delivered = next(given.get(worker, iter(())), None)
            if delivered is None:
                given[worker] = self._next_of(worker, answers)
                delivered = next(given[worker], None)
            if delivered is None:
                raise InternalError(f"Worker {worker} answered with no batch. Please report this.")
            yield delivered
        next(answers, None)  # so that the answers end: this was the last batch

    def _next_of(self, worker: int, answers: Iterator[Answer]) -> Iterator[Delivered]:
        answer = next(answers, None)
        if answer is None or answer.worker != worker:
            raise InternalError(f"Worker {worker} was to answer with batches; {answer} came. Please report this.")
        return self._batches_of(answer)

    def _batches_of(self, answer: Answer) -> Iterator[Delivered]:
        """The batches of an answer, and then its error.

        No reference to a given batch stays here, so that its slab is free once the trainer drops it, or drops the last
        batch of its piece.
        """
        worker, cursor, error = answer.worker, answer.cursor, answer.error
        piece_rows, rows_of_batches = answer.piece_rows, answer.rows
        reader = self._readers[worker]
        batches = reader.open(answer.batches)
        del answer
        if piece_rows:
            for batch_rows in piece_rows:
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
