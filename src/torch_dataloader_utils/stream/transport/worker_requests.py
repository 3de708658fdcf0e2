"""Requests: the trainer's process sends one to a worker process, which responds with its next batches.

Tickets go through a map-style DataLoader, so that worker errors, time-outs and persistent workers behave as usual. The
first ticket of a pass carries the worker's own part of the plan; no other channel is needed for epochs, resumed
positions or slabs that are free again. DataLoader deals tickets in turn: process p answers tickets p, p + W, ...
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import Sampler

from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils.errors import LoaderError
from torch_dataloader_utils.stream.transport.slabs import Held, SlabReader, SlabShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin a pass as worker number `worker` of the plan.

    held: what the trainer has of the worker's slabs; None: batches are sent through the queue.
    run_length: batches that are sent as one, see `batch_runs.BatchGroup`; None: each batch on its own.
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
    rows: of each of `batches`, or of the run.
    ended: there are fewer batches than were asked for, and no more will come.
    error: raised in place of the next batch.
    pace: how many batches the worker would send at once from now on.

    A tuple, as everything that is sent with each batch: it pickles much faster than a dataclass.
    """

    worker: int
    batches: tuple[Any, ...] = ()
    piece_rows: tuple[tuple[int, ...], ...] = ()
    cursor: Cursor = (0, 0)
    rows: tuple[int, ...] = ()
    ended: bool = False
    error: LoaderError | None = None
    pace: int = 1


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


# An answer that was made in less time may carry twice as many batches; one that took longer, half as many.
_FAST_NS = 10_000_000
_SLOW_NS = 40_000_000
MOST_BYTES = 4 << 20
# If a transform becomes slow, one answer takes at most so many times as long.
_MOST_BATCHES = 16


@dataclass(slots=True)
class BatchPace:
    """Learns from the answers of one pass how many batches the next ones should carry; the first carry one."""

    length: int = 1

    def learn(self, batches: int, num_bytes: int, took_ns: int) -> None:
        """Take one answer into account: its batches, their bytes in slabs, and the time that the worker took for it.

        num_bytes: 0 if a batch cannot be put into a slab; its size is not known then.
        """
        if num_bytes == 0:
            self.length = 1
        elif took_ns > _SLOW_NS or num_bytes > MOST_BYTES:
            self.length = max(1, batches // 2)
        elif took_ns < _FAST_NS and 2 * num_bytes <= MOST_BYTES:
            self.length = min(2 * batches, _MOST_BATCHES)
        else:
            self.length = batches
