"""Make requests and responses: the trainer's process asks a worker process for its next batches.

Requests go through a map-style DataLoader, so that worker errors, time-outs and persistent workers behave as usual. The
first request of a pass carries the worker's part of the plan. Epochs, resumed positions and free slab regions need no
other channel. DataLoader sends requests to its processes one after the other: process p gets the requests p, p + W, ...
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch.utils.data import Sampler

from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.audit_file import BatchOrigin
from torch_dataloader_utils.errors import LoaderError
from torch_dataloader_utils.stream.transport.slabs import Held, SlabReader, SlabRegion


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start of a pass, as worker number `worker` of the plan.

    held: slabs and regions of the worker that the trainer has; None: batches are sent through the queue.
    group_length: number of batches that are sent as one `BatchGroup`; None: each batch is sent on its own.
    """

    worker: int
    work: WorkerInput
    held: Held | None
    group_length: int | None


class BatchRequest(NamedTuple):
    """Request for a worker's next `batches` (or batch groups). freed: regions that the trainer has stopped using."""

    batches: int
    start: Start | None = None
    freed: tuple[SlabRegion, ...] = ()


class BatchResponse(NamedTuple):
    """Response of a worker: batches, or their messages, or the messages of the parts of batch groups.

    cursor: the worker's place after the batches.
    part_rows: for batch groups, the rows of each batch of each part.
    rows: number of rows of each of `batches`, or of each batch group.
    ended: true if the response has fewer batches than requested, and no more batches will come.
    error: error in place of the next batch.
    next_batches: number of batches that the next requests should ask for.
    origin: origin of the rows of all batches, if the pipeline notes origins.

    A tuple, like all values that are sent with each batch: a tuple pickles much faster than a dataclass.
    """

    worker: int
    batches: tuple[object, ...] = ()
    part_rows: tuple[tuple[int, ...], ...] = ()
    cursor: Cursor = (0, 0)
    rows: tuple[int, ...] = ()
    ended: bool = False
    error: LoaderError | None = None
    next_batches: int = 1
    origin: BatchOrigin | None = None


@dataclass(slots=True)
class RequestSize:
    """Number of batches (or batch groups) that each request of one pass asks for; may change during the pass."""

    batches: int = 1


class RequestSampler(Sampler[BatchRequest]):
    """Sampler that gives the requests of the next pass; `start` prepares the pass before the loader is iterated."""

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
        """Prepare a pass of `count` batches (None: until it is closed). Return its request size, which may be changed.

        works: inputs of all workers. workers: worker number of each process; process 0 gives the first batch.
        group_length: number of batches that are sent as one batch group, or None. readers: slab reader of each process.
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
        """Return whether no other pass was prepared since the pass of this request size."""
        return self._size is size

    def forget(self, size: RequestSize) -> None:
        """Drop inputs and slabs of a finished pass, unless the next pass was prepared."""
        if self.is_latest(size):
            self._starts, self._readers = [], ()

    def __iter__(self) -> Iterator[BatchRequest]:
        """Yield a request for each worker, round after round. All requests of a round ask for the same number."""
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
        """Return how many batches (or batch groups) one process gives. A later process gives as many or one less."""
        if self._count is None:
            return sys.maxsize
        batches = len(range(process, self._count, len(self._starts)))
        return -(-batches // (self._starts[process].group_length or 1))


# After a response that took less than _FAST_NS, the next response may carry twice as many batches. After a response
# that took more than _SLOW_NS, the next response carries half as many.
_FAST_NS = 10_000_000
_SLOW_NS = 40_000_000
MOST_BYTES = 4 << 20
# If a transform becomes slow, a response takes at most so many times as long.
_MOST_BATCHES = 16


@dataclass(slots=True)
class ResponseSize:
    """Number of batches that the next responses of a pass should carry, learned from its responses; 1 at first."""

    batches: int = 1

    def learn(self, batches: int, num_bytes: int, took_ns: int) -> None:
        """Learn from one response: its batches, their bytes in slabs, and the time that the worker took.

        num_bytes: 0 if a batch cannot be put into a slab; then its size is not known.
        """
        if num_bytes == 0:
            self.batches = 1
        elif took_ns > _SLOW_NS or num_bytes > MOST_BYTES:
            self.batches = max(1, batches // 2)
        elif took_ns < _FAST_NS and 2 * num_bytes <= MOST_BYTES:
            self.batches = min(2 * batches, _MOST_BATCHES)
        else:
            self.batches = batches
