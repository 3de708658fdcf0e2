"""Tickets: the trainer's process sends one to a worker process, which answers with its next batches.

Tickets go through a map-style DataLoader, so that worker errors, time-outs and persistent workers behave as usual. The
first ticket of a pass carries the worker's own part of the plan; no other channel is needed for epochs, resumed
positions or slabs that are free again. DataLoader deals tickets in turn: process p answers tickets p, p + W, ...
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any, NamedTuple

from torch.utils.data import Dataset, Sampler

from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import Tally
from torch_dataloader_utils._runtime.parent import end_with_parent
from torch_dataloader_utils.errors import InternalError, LoaderError
from torch_dataloader_utils.stream.batch_runs import LEAST_PIECE_BYTES, Run
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.pace import BatchPace
from torch_dataloader_utils.stream.sendable import with_sendable_results
from torch_dataloader_utils.stream.slab_memory import Held, SlabMemory, SlabShare
from torch_dataloader_utils.stream.slabs import SlabMessage, SlabReader, SlabWriter
from torch_dataloader_utils.stream.socket_directory import sweep_if_orphaned
from torch_dataloader_utils.stream.worker import Pipeline, WorkerStream
from torch_dataloader_utils.stream.worker_notes import Notes, NotingReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin a pass as worker number `worker` of the plan.

    held: what the trainer has of the worker's slabs; None: batches are sent through the queue.
    run_length: batches that are sent as one, see `Run`; None: each batch on its own.
    """

    worker: int
    work: WorkerInput
    held: Held | None
    run_length: int | None


class Ticket(NamedTuple):
    """Ask a worker process for its next `batches` (or runs); `returned`: shares of slabs that came back."""

    batches: int
    start: Start | None = None
    returned: tuple[SlabShare, ...] = ()


class Answer(NamedTuple):
    """What a worker sends back: batches (or their messages, or the pieces of one run), and its place after them.

    piece_rows: for a run, the rows of each batch of each piece.
    tallies: the worker's counts of this pass after each of `batches`, or after the run.
    ended: there are fewer batches than were asked for, and no more will come.
    error: raised in place of the next batch.
    pace: how many batches the worker would send at once from now on.

    A tuple, as everything that is sent with each batch: it pickles much faster than a dataclass.
    """

    worker: int
    batches: tuple[Any, ...] = ()
    piece_rows: tuple[tuple[int, ...], ...] = ()
    cursor: Cursor = (0, 0)
    tallies: tuple[Tally, ...] = ()
    ended: bool = False
    error: LoaderError | None = None
    pace: int = 1


class TicketWorker(Dataset[Answer]):
    """The data set of a worker process: it has nothing to read until the first ticket comes.

    Set before workers start: directory (see share_temporary_directory); options, how far each decodes ahead.
    """

    directory: str

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

    def __getitem__(self, ticket: Ticket) -> Answer:
        begin = perf_counter_ns()
        if ticket.start is not None:
            self._begin(ticket.start)
        if self._start is None or self._stream is None:
            raise InternalError("A worker process was asked before it was told what to read. Please report this.")
        if self._memory is not None and self._slabs is not None:
            self._memory.take_back(ticket.returned)
            self._slabs.begin()
        batches: list[Any] = []
        piece_rows: list[tuple[int, ...]] = []
        tallies: list[Tally] = []
        error = None
        try:
            for batch in itertools.islice(self._batches, ticket.batches):
                if isinstance(batch, Run):
                    batches += [self._referred(piece.batch) for piece in batch.pieces]
                    piece_rows += [piece.rows for piece in batch.pieces]
                else:
                    batches.append(self._copied(batch, ticket.batches - len(batches)))
                tallies.append(self._stream.counters.tally())
        except LoaderError as raised:
            error = raised
        self._learn(batches, perf_counter_ns() - begin)
        return Answer(
            worker=self._start.worker,
            batches=tuple(batches),
            piece_rows=tuple(piece_rows),
            cursor=self._stream.cursor,
            tallies=tuple(tallies),
            ended=error is None and len(tallies) < ticket.batches,
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
        self._start = start
        reader = NotingReader(reader=self._pipeline.reader, notes=self._notes, worker=start.worker)
        functions = with_sendable_results(self._pipeline.functions)
        self._slabs = self._slab_writer(start.held)
        shaper = self._pipeline.shaper
        if self._memory is not None and start.run_length is not None:
            shaper.use_memory(self._memory.recycled)
            # Windows and joins are made in slabs: copying their columns first would be one copy too many.
            if start.work.program.delivers_row_groups:
                shaper = shaper.with_copied_columns(LEAST_PIECE_BYTES)
        self._stream = WorkerStream(
            start.work,
            replace(self._pipeline, reader=reader, shaper=shaper, functions=functions),
            self.options,
            watch=lambda where: self._notes.calling(start.worker, where),
        )
        self._batches = iter(self._stream) if start.run_length is None else self._stream.runs(start.run_length)
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


@dataclass(slots=True)
class Demand:
    """How many batches (or runs) each ticket of one pass asks for; may change during the pass."""

    batches: int = 1


class TicketSampler(Sampler[Ticket]):
    """The tickets of the next pass, which `start` prepares before the loader is iterated."""

    def __init__(self) -> None:
        self._demand = Demand()
        self._starts: list[Start] = []
        self._count: int | None = 0
        self._readers: Sequence[SlabReader] = ()

    def start(
        self,
        works: Sequence[WorkerInput],
        workers: Sequence[int],
        count: int | None,
        run_length: int | None,
        readers: Sequence[SlabReader],
    ) -> Demand:
        """Prepare a pass of `count` batches (None: until the pass is closed); returns its Demand, which may be changed.

        works: the inputs of all workers. workers: the worker that each process is; the first batch is process 0's.
        run_length: batches that are sent as one run, or None. readers: of the slabs of each process.
        """
        self._starts = [
            Start(worker=worker, work=works[worker], held=reader.describe_held(), run_length=run_length)
            for worker, reader in zip(workers, readers, strict=True)
        ]
        self._demand = Demand()
        self._count = count
        self._readers = readers
        return self._demand

    def is_latest(self, demand: Demand) -> bool:
        """Whether no other pass was prepared since."""
        return self._demand is demand

    def forget(self, demand: Demand) -> None:
        """Drops inputs and slabs of a pass that is over, unless the next pass was prepared."""
        if self.is_latest(demand):
            self._starts, self._readers = [], ()

    def __iter__(self) -> Iterator[Ticket]:
        """Round after round, a ticket for each worker, all of a round for the same count."""
        starts, readers, demand = self._starts, self._readers, self._demand
        left = [self._answers_of(process) for process in range(len(starts))]
        for number in itertools.count():
            asked = demand.batches
            for process, start in enumerate(starts):
                count = min(asked, left[process])
                if count == 0:
                    return
                left[process] -= count
                yield Ticket(count, returned=readers[process].take_returned()) if number else Ticket(count, start)

    def _answers_of(self, process: int) -> int:
        """How many batches (or runs) one process gives in all; a later process gives as many or one less."""
        if self._count is None:
            return sys.maxsize
        batches = len(range(process, self._count, len(self._starts)))
        return -(-batches // (self._starts[process].run_length or 1))
