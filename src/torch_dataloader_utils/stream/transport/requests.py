"""Requests and responses: the trainer's process asks a worker process for its next batches.

Requests go through a map-style DataLoader, so that worker errors, time-outs and persistent workers behave as usual. The
first request of a pass carries the worker's own part of the plan; no other channel is needed for epochs, resumed
positions or slab regions that are free again. DataLoader sends requests to its processes one after the other: process p
gets the requests p, p + W, ...
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
from torch_dataloader_utils.stream.transport.slabs import Held, SlabReader, SlabRegion


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Begin a pass as worker number `worker` of the plan.

    held: what the trainer has of the worker's slabs; None: batches are sent through the queue.
    group_length: batches that are sent as one `BatchGroup`; None: each batch on its own.
    """

    worker: int
    work: WorkerInput
    held: Held | None
    group_length: int | None


class BatchRequest(NamedTuple):
    """Asks a worker process for its next `batches` (or batch groups). freed: regions that the trainer uses no more."""

    batches: int
    start: Start | None = None
    freed: tuple[SlabRegion, ...] = ()


class BatchResponse(NamedTuple):
    """The batches that a worker sends (or their messages, or those of the parts of one batch group).

    cursor: the worker's place after them.
    part_rows: for a batch group, the rows of each batch of each part.
    rows: of each of `batches`, or of the batch group.
    ended: there are fewer batches than were asked for, and no more will come.
    error: raised in place of the next batch.
    next_batches: how many batches the next requests should ask for.

    A tuple, as everything that is sent with each batch: it pickles much faster than a dataclass.
    """

    worker: int
    batches: tuple[Any, ...] = ()
    part_rows: tuple[tuple[int, ...], ...] = ()
    cursor: Cursor = (0, 0)
    rows: tuple[int, ...] = ()
    ended: bool = False
    error: LoaderError | None = None
    next_batches: int = 1


@dataclass(slots=True)
class RequestSize:
    """How many batches (or batch groups) each request of one pass asks for; may change during the pass."""

    batches: int = 1


class RequestSampler(Sampler[BatchRequest]):
    """The requests of the next pass, which `start` prepares before the loader is iterated."""

    def __init__(self) -> None:
        self._size = RequestSize()
        self._starts: list[Start] = []
        self._count: int | None = 0
        self._readers: Sequence[SlabReader] = ()

    def start(
        self,
        works: Sequence[WorkerInput],
        workers: Sequence[int],
        count: int | None,
        group_length: int | None,
        readers: Sequence[SlabReader],
    ) -> RequestSize:
        """Prepare a pass of `count` batches (None: until it is closed); returns its request size, to be changed.

        works: the inputs of all workers. workers: the worker that each process is; the first batch is process 0's.
        group_length: batches that are sent as one batch group, or None. readers: of the slabs of each process.
        """
        self._starts = [
            Start(worker=worker, work=works[worker], held=reader.describe_held(), group_length=group_length)
            for worker, reader in zip(workers, readers, strict=True)
        ]
        self._size = RequestSize()
        self._count = count
        self._readers = readers
        return self._size

    def is_latest(self, size: RequestSize) -> bool:
        """Whether no other pass was prepared since the one of this request size."""
        return self._size is size

    def forget(self, size: RequestSize) -> None:
        """Drop inputs and slabs of a pass that is over, unless the next pass was prepared."""
        if self.is_latest(size):
            self._starts, self._readers = [], ()

    def __iter__(self) -> Iterator[BatchRequest]:
        """Round after round, a request for each worker, all of a round for the same number of batches."""
        starts, readers, size = self._starts, self._readers, self._size
        left = [self._batches_of(process) for process in range(len(starts))]
        for number in itertools.count():
            most = size.batches
            for process, start in enumerate(starts):
                batches = min(most, left[process])
                if batches == 0:
                    return
                left[process] -= batches
                if number == 0:
                    yield BatchRequest(batches, start)
                else:
                    yield BatchRequest(batches, freed=readers[process].take_freed())

    def _batches_of(self, process: int) -> int:
        """How many batches (or batch groups) one process gives in all; a later process gives as many or one less."""
        if self._count is None:
            return sys.maxsize
        batches = len(range(process, self._count, len(self._starts)))
        return -(-batches // (self._starts[process].group_length or 1))


# A response that was made in less time may carry twice as many batches; one that took longer, half as many.
_FAST_NS = 10_000_000
_SLOW_NS = 40_000_000
MOST_BYTES = 4 << 20
# If a transform becomes slow, one response takes at most so many times as long.
_MOST_BATCHES = 16


@dataclass(slots=True)
class ResponseSize:
    """Learns from the responses of one pass how many batches the next ones should carry; the first carry one."""

    batches: int = 1

    def learn(self, batches: int, num_bytes: int, took_ns: int) -> None:
        """Take one response into account: its batches, their bytes in slabs, and the time that the worker took for it.

        num_bytes: 0 if a batch cannot be put into a slab; its size is not known then.
        """
        if num_bytes == 0:
            self.batches = 1
        elif took_ns > _SLOW_NS or num_bytes > MOST_BYTES:
            self.batches = max(1, batches // 2)
        elif took_ns < _FAST_NS and 2 * num_bytes <= MOST_BYTES:
            self.batches = min(2 * batches, _MOST_BATCHES)
        else:
            self.batches = batches
