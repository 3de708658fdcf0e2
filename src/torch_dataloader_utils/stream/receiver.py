"""The trainer's end of the worker processes: what they answer, singly or in runs, as batches in the plan's order."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch_dataloader_utils._core.block import SlabCodec
from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.slabs import SlabReader
from torch_dataloader_utils.stream.tickets import Answer

Delivered = tuple[int, Cursor, Any]
"""Worker, how far it had come, batch."""


class Receiver:
    """Reads the answers of one pass, out of slabs where there are some; `meter` hears of every batch as it is taken."""

    def __init__(self, codec: SlabCodec | None, num_workers: int, meter: LoaderMeter) -> None:
        self._readers = [] if codec is None else [SlabReader(codec) for _ in range(num_workers)]
        self._meter = meter

    def take_freed(self, worker: int) -> tuple[int, ...]:
        """The slabs of a worker that died since the last call."""
        return self._readers[worker].take_freed()

    def one_by_one(self, answers: Iterator[Answer]) -> Iterator[Delivered]:
        """Answers that carry one batch each, as they come."""
        for answer in answers:
            self._meter.received(answer.worker, answer.tally)
            yield answer.worker, answer.cursor, self._read(answer)

    def in_turn(
        self, answers: Iterator[Answer], turns: Sequence[int], left: int, codec: SlabCodec
    ) -> Iterator[Delivered]:
        """Answers that carry runs, cut by `codec`: `left` batches, one of each worker in the order of `turns`.

        Raises:
            InternalError: a worker answered that was not asked.
        """
        runs: dict[int, Iterator[Delivered]] = {}
        for number in range(left):
            worker = turns[number % len(turns)]
            delivered = next(runs.get(worker, iter(())), None)
            if delivered is None:
                answer = next(answers, None)
                if answer is None or answer.worker != worker:
                    raise InternalError(
                        f"Worker {worker} was to answer with batches; {answer} came. Please report this."
                    )
                runs[worker] = self._batches_of(answer, codec)
                delivered = next(runs[worker])
            yield delivered
        next(answers, None)  # lets them end: the last one is out

    def _batches_of(self, answer: Answer, codec: SlabCodec) -> Iterator[Delivered]:
        rows_before = answer.tally[0] - sum(answer.run_rows)
        for rows, batch in zip(answer.run_rows, codec.cut(self._read(answer), answer.run_rows), strict=True):
            rows_before += rows
            self._meter.received(answer.worker, (rows_before, *answer.tally[1:]))
            yield answer.worker, answer.cursor, batch

    def _read(self, answer: Answer) -> Any:
        return answer.batch if answer.slab is None else self._readers[answer.worker].read(answer.slab)
