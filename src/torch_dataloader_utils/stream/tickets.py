"""Worker processes on strings: the trainer's process sends tickets, a worker answers each with its next batch.

The tickets go through a map-style DataLoader, so worker errors, time-outs, pinning and persistent workers are the
ones people know. The first ticket of a pass carries the worker's own lanes and nothing else; epochs and resumed
positions need no other channel. DataLoader hands tickets out in turn, so that worker p answers tickets p, p + W, ...
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Dataset, Sampler
from torch.utils.data._utils.pin_memory import pin_memory

from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils.errors import LoaderError
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.worker import Pipeline, WorkerStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Ask a worker process for its next batch; `work` begins a new pass, as worker number `worker` of the plan."""

    work: WorkerInput | None = None
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A batch and how far the worker came with it; or the error that stopped it, or that it has `ended`."""

    worker: int
    batch: Any = None
    cursor: Cursor = (0, 0)
    ended: bool = False
    error: LoaderError | None = None

    def pin_memory(self) -> "Answer":
        """Called by DataLoader's pinning thread."""
        return replace(self, batch=pin_memory(self.batch))  # type: ignore[no-untyped-call]


class TicketWorker(Dataset[Answer]):
    """The data set that a worker process holds: empty until its first ticket comes."""

    def __init__(self, pipeline: Pipeline, options: DecodeOptions) -> None:
        self._pipeline = pipeline
        self._options = options
        self._stream: WorkerStream | None = None
        self._batches: Iterator[Any] = iter(())
        self._worker = 0

    def __getitem__(self, ticket: Ticket) -> Answer:
        if ticket.work is not None:
            self._close()
            self._stream = WorkerStream(ticket.work, self._pipeline, self._options)
            self._batches = iter(self._stream)
            self._worker = ticket.worker
        try:
            for batch in self._batches:
                cursor = self._stream.cursor if self._stream is not None else (0, 0)
                return Answer(worker=self._worker, batch=batch, cursor=cursor)
        except LoaderError as error:
            return Answer(worker=self._worker, error=error)
        return Answer(worker=self._worker, ended=True)

    def _close(self) -> None:
        close: Callable[[], None] | None = getattr(self._batches, "close", None)
        if close is not None:
            close()


class TicketSampler(Sampler[Ticket]):
    """The tickets of the next pass; `start` says which before the loader is iterated."""

    def __init__(self) -> None:
        self._first: list[Ticket] = []
        self._count: int | None = 0

    def start(self, works: Sequence[WorkerInput], first_worker: int, count: int | None) -> None:
        """Prepare a pass of `count` tickets (None: until the pass is closed).

        works: the inputs of all workers. first_worker: whose batch comes first; process 0 plays that worker.
        """
        workers = [(first_worker + process) % len(works) for process in range(len(works))]
        self._first = [Ticket(work=works[worker], worker=worker) for worker in workers]
        self._count = count

    def __iter__(self) -> Iterator[Ticket]:
        first, count = self._first, self._count
        yield from first[:count]
        following = itertools.count() if count is None else range(len(first), count)
        for _ in following:
            yield Ticket()
