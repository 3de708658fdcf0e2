"""Run the workers of one loader in actors of Ray, from the trainer's process.

    trainer    asks each worker for its next batches, `prefetch` times ahead, round after round
    actor      responds with an object, which Ray brings to the trainer's host
    trainer    takes the responses in the order of the rounds, and asks for another response each time

A worker is lost with its actor. The worker begins again on another actor, with the plan's input for the rest after its
last received batch. So no batches are kept for a worker, and a worker may move to another actor in the same way.
"""

import itertools
import logging
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_dataloader_utils._core.option_values import RayWorkers
from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import COUNTED, Int64s
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils._runtime.reused_memory import Bytes
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils._store.access import without_secrets
from torch_dataloader_utils.errors import ConfigError, LoaderError, WorkerDiedError
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.transport.flat_buffers import FlatMessage, FlatReader
from torch_dataloader_utils.stream.transport.ray_actor import ActorStart
from torch_dataloader_utils.stream.transport.ray_pool import (
    Actor,
    ActorPool,
    ActorSilentError,
    connected_ray,
    losses,
    object_store_bytes,
    ray_session,
)
from torch_dataloader_utils.stream.transport.receiver import Receiver, group_length, until_ended
from torch_dataloader_utils.stream.transport.requests import BatchResponse
from torch_dataloader_utils.stream.transport.worker_transport import Delivered, RestOf
from torch_dataloader_utils.stream.worker import Pipeline

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger(__name__)


class RayWorkerActors:
    """Ray actors of a loader, with the trainer's side of each pass."""

    def __init__(self, pipeline: Pipeline, decode: DecodeOptions, workers: RayWorkers) -> None:
        self._pipeline = pipeline
        self._decode = decode
        self._workers = workers
        self._pool: ActorPool | None = None
        self._sent: tuple[Pipeline, object] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Make copies without actors: a copy starts its own actors."""
        return RayWorkerActors, (self._pipeline, self._decode, self._workers)

    def reading(self, pipeline: Pipeline) -> "RayWorkerActors":
        """Return these actors, which use this pipeline from the next pass on."""
        self._pipeline = pipeline
        return self

    def decode_as(self, decode: DecodeOptions) -> None:
        """Set the limits of decoding ahead of each actor from the next pass on."""
        self._decode = decode

    def deliver(
        self,
        works: Sequence[WorkerInput],
        first_worker: int,
        left: int | None,
        meter: LoaderMeter,
        rest_of: RestOf,
    ) -> Generator[Delivered]:
        """Yield the batches of one pass. See WorkerTransport.deliver.

        Raises:
            WorkerDiedError: a worker was lost too often, or no actor starts.
            MissingDependencyError: Ray is not installed.
            ConfigError: no cluster was found, or a function cannot be sent to the cluster.
        """
        if left == 0:
            return
        pool = self._started()
        counts = np.zeros((len(works), len(COUNTED)), dtype=np.int64)
        meter.count_workers(counts)
        workers = [(first_worker + place) % len(works) for place in range(len(works))]
        length = None if left is None else group_length(works, self._pipeline)
        sender = _Sender(
            pool=pool,
            limits=self._workers,
            rest_of=rest_of,
            group_length=length,
            options=self._share(len(works)),
            pipeline=self._in_store(),
            counts=counts,
            is_counted=left is not None,
            workers={
                worker: _Worker(number=worker, input=works[worker], units_left=_units(left, place, len(works), length))
                for place, worker in enumerate(workers)
            },
        )
        receiver = Receiver({worker: FlatReader(self._pipeline.codec) for worker in workers}, meter)
        try:
            responses = meter.responses(sender.responses())
            if left is None:
                yield from receiver.as_they_come(until_ended(responses, len(works), left))
            else:
                yield from receiver.in_plan_order(responses, workers, left)
        finally:
            for each in sender.workers.values():
                sender.leave(each)

    def _started(self) -> ActorPool:
        """Return the actors of this session of Ray, after starting missing actors."""
        connected_ray()
        if self._pool is None or self._pool.session != ray_session():
            self._pool, self._sent = ActorPool(self._workers), None
        self._pool.start()
        return self._pool

    def _share(self, num_workers: int) -> DecodeOptions:
        """Return the limits of decoding ahead of one worker; all workers of an actor together keep the user's limit."""
        decode, each = self._decode, -(-num_workers // self._workers.num_actors)
        return replace(decode, threads=decode.worker_threads, budget_bytes=decode.budget_bytes // each)

    def _in_store(self) -> object:
        """Return a reference to the pickled pipeline in Ray's object store."""
        if self._sent is None or self._sent[0] is not self._pipeline:
            ray = connected_ray()
            try:
                with without_secrets("Ray's object store"):
                    pickled = ray.cloudpickle.dumps(self._pipeline)
            except LoaderError:
                raise
            except Exception as error:  # pickling runs the objects' own code: any error
                raise ConfigError(
                    f"A transform, collate_fn or credentials function cannot be sent to Ray's actors ({error}). Leave "
                    "out objects that do not pickle (locks, open files, connections): make them at the first call."
                ) from error
            self._sent = self._pipeline, ray.put(pickled)
        return self._sent[1]


def _units(left: int | None, place: int, num_workers: int, length: int | None) -> int:
    """Return how many batches (or batch groups) one worker gives. place: number of its first batch in the pass."""
    return sys.maxsize if left is None else -(-len(range(place, left, num_workers)) // (length or 1))


class _Asked(NamedTuple):
    """Response on its way. number: number of the request in the pass. units: requested batches (or batch groups)."""

    number: int
    units: int
    actor: Actor
    response: "Future[tuple[BatchResponse, Int64s]]"


@dataclass(eq=False, slots=True, kw_only=True)
class _Worker:
    """Worker in one pass.

    input: input of its next start; None once it was sent. units_left: batches (or batch groups) still to request.
    actor, stream: actor that runs the worker (None while it does not run), and its stream number there.
    asked: responses on their way. received: number of received responses. batches, cursor: progress of the worker.
    base, begin: its counts and its cursor at its last start. lost: number of losses in a row.
    """

    number: int
    input: WorkerInput | None
    units_left: int
    actor: Actor | None = None
    stream: int = 0
    asked: deque[_Asked] = field(default_factory=deque)
    received: int = 0
    batches: int = 0
    cursor: Cursor = (0, 0)
    base: Int64s | int = 0
    begin: Cursor = (0, 0)
    lost: int = 0

    @property
    def next_place(self) -> str:
        """Text with the row group of the next batch after a restart of the worker; "" if none is known."""
        if self.input is None or not len(self.input.group_start):
            return ""
        return f", which begins in {self.input.first_task.where},"


@dataclass(eq=False, slots=True, kw_only=True)
class _Sender:
    """Sender of the requests of one pass.

    limits: options of the user. pipeline: reference to the pipeline in the object store.
    counts: counts of each worker, int64 [W, COUNTED].
    workers: workers by number, in the order of their first batches. rounds: units that each round asks a worker for.
    size: units of the next round; always 1 if row counts are not known (is_counted).
    """

    pool: ActorPool
    limits: RayWorkers
    rest_of: RestOf
    group_length: int | None
    options: DecodeOptions
    pipeline: object
    counts: Int64s
    workers: dict[int, _Worker]
    is_counted: bool
    requests: Iterator[int] = field(default_factory=itertools.count)
    rounds: list[int] = field(default_factory=list)
    size: int = 1
    largest_bytes: int = 0

    def responses(self) -> Iterator[BatchResponse]:
        """Yield the response of each worker, round after round. All requests of a round ask for the same number."""
        self._ask_all()
        while True:
            for worker in self.workers.values():
                if worker.units_left == 0 and not worker.asked:
                    return
                yield self._response_of(worker)

    def _response_of(self, worker: _Worker) -> BatchResponse:
        while True:
            self._ask(worker)  # a worker that is to move to another actor has no requests
            try:
                response, counts = self.pool.result(worker.asked[0].actor, worker.asked[0].response)
            except losses() as error:
                self._lost(worker.asked[0].actor, error)
                continue
            worker.asked.popleft()
            self._take_note(worker, response, counts)
            self._ask(worker)
            return response._replace(cursor=worker.cursor)

    def _take_note(self, worker: _Worker, response: BatchResponse, counts: Int64s) -> None:
        worker.received += 1
        worker.batches += sum(map(len, response.part_rows)) or len(response.batches)
        (units, rows), (more_units, more_rows) = worker.begin, response.cursor
        worker.cursor = units + more_units, more_rows if more_units else rows + more_rows
        worker.lost = 0
        self.counts[worker.number] = worker.base + counts
        if self.is_counted:
            self.size = response.next_batches
        self._check_room(sum(each.nbytes for part in response.batches for each in _buffers(part)))

    def _ask_all(self) -> None:
        for _ in range(self.limits.prefetch):
            for worker in self.workers.values():
                self._ask(worker, len(worker.asked) + 1)

    def _ask(self, worker: _Worker, most: int | None = None) -> None:
        """Send requests to a worker until `most` responses are on their way. None: as many as the user allows."""
        most = min(most or self.limits.prefetch, self.limits.prefetch)
        while len(worker.asked) < most and worker.units_left:
            if worker.actor is not None and self.pool.has_better(worker.actor):
                if worker.asked:
                    return
                self._begin_again(worker)
            self._send(worker)

    def _send(self, worker: _Worker) -> None:
        number = worker.received + len(worker.asked)
        if number == len(self.rounds):
            self.rounds.append(self.size)
        units = min(self.rounds[number], worker.units_left)
        if worker.actor is None:
            worker.actor, worker.stream = self.pool.take(), next(_streams)
        respond = worker.actor.handle.respond
        if worker.input is None:
            sent = respond.remote(worker.stream, units)
        else:
            start = ActorStart(worker.number, worker.input, self.group_length, self.options)
            sent = respond.remote(worker.stream, units, start, self.pipeline)
            worker.input = None
        worker.units_left -= units
        # As a future, so that Ray brings the object to this host before it is needed.
        worker.asked.append(_Asked(next(self.requests), units, worker.actor, sent.future()))

    def _begin_again(self, worker: _Worker) -> None:
        """Drop responses on their way, and let the worker begin again after its last received batch."""
        self.leave(worker)
        worker.units_left += sum(asked.units for asked in worker.asked)
        worker.asked.clear()
        worker.base, worker.begin = self.counts[worker.number].copy(), worker.cursor
        worker.input = self.rest_of(worker.number, worker.batches, worker.cursor)

    def leave(self, worker: _Worker) -> None:
        """End the worker's stream on its actor."""
        if worker.actor is not None:
            self.pool.leave(worker.actor, worker.stream)
            worker.actor = None

    def _lost(self, actor: Actor, error: BaseException) -> None:
        """Begin the workers of a lost actor again.

        The loss counts against one worker: the worker with the first request that the actor had not finished.
        """
        lost = [each for each in self.workers.values() if each.actor is actor]
        place, first = actor.place, min(lost, key=_first_undone)
        _log.warning("Workers %s of RayWorkers begin again: %s was lost.", [each.number for each in lost], place)
        self.pool.lose(actor)
        for worker in lost:
            self._begin_again(worker)
        first.lost += 1
        if first.lost > self.limits.max_restarts:
            raise WorkerDiedError(
                f"Worker {first.number} of RayWorkers was lost {first.lost} times in a row, last on {place}. Its "
                f"next batch{first.next_place} was not received. {_text(error)} Restart from the last state. If "
                'it is out of memory, give each actor more (resources={"CPU": 1, "memory": ...}) or lower '
                "ahead_bytes of decoding=; if it crashes, read that row group in a separate process."
            ) from error
        self._ask_all()

    def _check_room(self, num_bytes: int) -> None:
        """Warn if this host's object store is too small for all responses on their way: Ray would spill to disk."""
        if num_bytes <= 1.5 * self.largest_bytes:
            return
        self.largest_bytes = num_bytes
        needed, room = num_bytes * self.limits.prefetch * len(self.workers), object_store_bytes()
        if needed > _SPILLS_AT * room:
            warn_user(
                f"RayWorkers: {len(self.workers)} workers × {self.limits.prefetch} responses of {num_bytes >> 20} MiB "
                f"need {needed >> 20:,} MiB of this host's object store, which has {room >> 20:,}: Ray spills the rest "
                "to disk. Lower prefetch= or num=, or start Ray here with a larger --object-store-memory."
            )


# Numbers of streams: an actor never gets the same number twice.
_streams = itertools.count()


def _first_undone(worker: _Worker) -> int:
    """Return the number of the worker's first request without a response."""
    undone = (asked.number for asked in worker.asked if not asked.response.done() or asked.response.exception())
    return next(undone, sys.maxsize)


# Ray spills from this fraction of its object store on.
_SPILLS_AT = 0.8


def _buffers(batch: object) -> Sequence[Bytes]:
    return batch.buffers if isinstance(batch, FlatMessage) else ()


def _text(error: BaseException) -> str:
    """Return the reason for a loss: ours, or Ray's without Ray's advice."""
    if isinstance(error, ActorSilentError):
        return str(error)
    text = " ".join(str(error).split())
    reason = text[max(text.find("The actor is dead because"), 0) :].partition(" Some common causes")[0]
    return f"Ray says: {reason[:500].rstrip('. ')}."
