"""Worker processes on strings: the trainer's process sends tickets, a worker answers each with its next batch.

The tickets go through a map-style DataLoader, so worker errors, time-outs and persistent workers are the ones people
know. The first ticket of a pass carries the worker's own lanes and nothing else; epochs, resumed positions and slabs
that are free again need no other channel. DataLoader hands tickets out in turn: process p answers tickets p, p + W, ...
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch.utils.data import Dataset, Sampler

from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import NO_TALLY, Tally
from torch_dataloader_utils.errors import LoaderError
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.sendable import returns_sendable
from torch_dataloader_utils.stream.slabs import SlabMessage, SlabWriter
from torch_dataloader_utils.stream.worker import Pipeline, Run, WorkerStream
from torch_dataloader_utils.stream.worker_death import (
    Notes,
    NotingReader,
    end_with_trainer,
    share_temporary_directory,
    sweep_if_orphaned,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin a pass as worker number `worker` of the plan; with slabs, or with batches sent through the queue.

    run_length: batches that one answer carries as one, see `Run`; 1: each answer carries a batch.
    """

    worker: int
    work: WorkerInput
    uses_slabs: bool
    run_length: int


class Ticket(NamedTuple):
    """Ask a worker process for its next batch; `freed` are its slabs that the trainer has let go of."""

    start: Start | None = None
    freed: tuple[int, ...] = ()


class Answer(NamedTuple):
    """A batch (or the message that stands for it) and how far the worker came with it; or an error; or the end.

    run_rows: rows of each batch, if it is a run of them. tally: what the worker has counted in this pass so far.
    A tuple, as all that travels with every batch: it pickles in a fraction of the time of a dataclass.
    """

    worker: int
    batch: Any = None
    slab: SlabMessage | None = None
    run_rows: tuple[int, ...] = ()
    cursor: Cursor = (0, 0)
    tally: Tally = NO_TALLY
    ended: bool = False
    error: LoaderError | None = None


class TicketWorker(Dataset[Answer]):
    """The data set that a worker process holds: empty until its first ticket comes."""

    def __init__(self, pipeline: Pipeline, options: DecodeOptions, notes: Notes) -> None:
        self._pipeline = pipeline
        self._notes = notes
        self._directory = share_temporary_directory()
        self._options = options
        self._slabs = SlabWriter(pipeline.codec) if pipeline.codec is not None else None
        self._stream: WorkerStream | None = None
        self._batches: Iterator[Any] = iter(())
        self._start: Start | None = None

    def __getitem__(self, ticket: Ticket) -> Answer:
        if ticket.start is not None:
            self._begin(ticket.start)
        worker = self._start.worker if self._start is not None else 0
        if self._slabs is not None:
            self._slabs.reclaim(ticket.freed)
        try:
            for batch in self._batches:
                return self._answer(worker, batch)
        except LoaderError as error:
            return Answer(worker=worker, error=error)
        return Answer(worker=worker, ended=True)

    def _begin(self, start: Start) -> None:
        close: Callable[[], None] | None = getattr(self._batches, "close", None)
        if close is not None:
            close()
        if self._start is None:
            sweep_if_orphaned(self._directory)
            end_with_trainer(self._directory)
        self._start = start
        reader = NotingReader(reader=self._pipeline.reader, notes=self._notes, worker=start.worker)
        functions = tuple(map(returns_sendable, self._pipeline.functions))
        self._stream = WorkerStream(
            start.work,
            replace(self._pipeline, reader=reader, functions=functions),
            self._options,
            watch=lambda where: self._notes.calling(start.worker, where),
        )
        self._batches = iter(self._stream) if start.run_length == 1 else self._stream.runs(start.run_length)
        if self._slabs is not None:
            self._slabs.reset()

    def _answer(self, worker: int, batch: Any) -> Answer:
        answer = Answer(worker=worker)
        if isinstance(batch, Run):
            answer, batch = answer._replace(run_rows=batch.rows), batch.batch
        if self._stream is not None:
            answer = answer._replace(cursor=self._stream.cursor, tally=self._stream.counters.tally())
        if self._slabs is not None and self._start is not None and self._start.uses_slabs:
            message = self._slabs.write(batch)
            if message is not None:
                return answer._replace(slab=message)
        return answer._replace(batch=batch)


class TicketSampler(Sampler[Ticket]):
    """The tickets of the next pass; `start` says which, before the loader is iterated."""

    def __init__(self) -> None:
        self._starts: list[Start] = []
        self.count: int | None = 0
        self._freed: Callable[[int], tuple[int, ...]] = _nothing

    def start(
        self,
        works: Sequence[WorkerInput],
        first_worker: int,
        count: int | None,
        run_length: int,
        freed: Callable[[int], tuple[int, ...]] | None,
    ) -> None:
        """Prepare a pass of `count` batches (None: until the pass is closed).

        works: the inputs of all workers. first_worker: whose batch comes first; process 0 plays that worker.
        run_length: batches asked for with one ticket.
        freed: gives the slabs of a worker that are free again; None for a pass without slabs.
        """
        workers = [(first_worker + process) % len(works) for process in range(len(works))]
        uses_slabs = freed is not None
        self._starts = [
            Start(worker=worker, work=works[worker], uses_slabs=uses_slabs, run_length=run_length) for worker in workers
        ]
        self.count = None if count is None else count_tickets(count, len(works), run_length)
        self._freed = freed or _nothing

    def __iter__(self) -> Iterator[Ticket]:
        starts, freed = self._starts, self._freed
        numbers = itertools.count() if self.count is None else range(self.count)
        for number in numbers:
            if number < len(starts):
                yield Ticket(start=starts[number])
            else:
                yield Ticket(freed=freed(starts[number % len(starts)].worker))


def count_tickets(batches: int, workers: int, run_length: int) -> int:
    """Tickets for so many batches, dealt to the workers in turn and asked for in runs.

    9 batches, 2 workers, runs of 2: 5 and 4 batches, 3 and 2 tickets. No worker then has more than one ticket more
    than a later one, so that tickets dealt in turn reach the right ones.
    """
    counts = [(batches - worker + workers - 1) // workers for worker in range(workers)]
    return sum(-(-count // run_length) for count in counts)


def _nothing(worker: int) -> tuple[int, ...]:  # noqa: ARG001
    return ()
