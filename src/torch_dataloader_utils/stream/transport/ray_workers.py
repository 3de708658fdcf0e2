"""The workers of one loader in actors of Ray, as the trainer sees them.

    trainer    asks each worker for its next batches, `prefetch` times ahead, round after round
    actor      responds with an object, which Ray brings to the trainer's host
    trainer    takes the responses in the order of the rounds, and asks for one more each time

A worker is lost with its actor. It begins again on another one, with the input that the plan gives for what is left
after its last received batch. So nothing needs to be kept for it, and it may move to another actor in the same way.
"""

import itertools
import logging
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_dataloader_utils._core.option_values import RayWorkers
from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import COUNTED, Int64s
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils._store.access import without_secrets
from torch_dataloader_utils.errors import ConfigError, LoaderError, WorkerDiedError
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.transport.flat_buffers import FlatMessage, FlatReader
from torch_dataloader_utils.stream.transport.ray_actor import ActorStart
from torch_dataloader_utils.stream.transport.ray_pool import (
    Actor,
    ActorPool,
    connected_ray,
    losses,
    object_store_bytes,
    ray_session,
)
from torch_dataloader_utils.stream.transport.receiver import Delivered, Receiver, RestOf, group_length, until_ended
from torch_dataloader_utils.stream.transport.requests import BatchResponse
from torch_dataloader_utils.stream.worker import Pipeline

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger(__name__)


class RayWorkerActors:
    """The actors of a loader, and what the trainer's side of each pass needs."""

    def __init__(self, pipeline: Pipeline, decode: DecodeOptions, workers: RayWorkers) -> None:
        self._pipeline = pipeline
        self._decode = decode
        self._workers = workers
        self._pool: ActorPool | None = None
        self._sent: tuple[Pipeline, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has actors of its own."""
        return RayWorkerActors, (self._pipeline, self._decode, self._workers)

    def reading(self, pipeline: Pipeline) -> "RayWorkerActors":
        """These actors, which read with this pipeline from the next pass on."""
        self._pipeline = pipeline
        return self

    def decode_as(self, decode: DecodeOptions) -> None:
        """Set how far each actor decodes ahead from the next pass on."""
        self._decode = decode

    def deliver(
        self,
        works: Sequence[WorkerInput],
        first_worker: int,
        left: int | None,
        meter: LoaderMeter,
        rest_of: RestOf,
    ) -> Generator[Delivered]:
        """The batches of one pass; see WorkerProcesses.deliver.

        Raises:
            WorkerDiedError: a worker was lost too often, or no actor starts.
            MissingDependencyError: Ray is not installed.
            ConfigError: no cluster, or something that cannot be sent to one.
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
        """The actors of this session of Ray."""
        connected_ray()
        if self._pool is None or self._pool.session != ray_session():
            self._pool, self._sent = ActorPool(self._workers), None
        self._pool.start()
        return self._pool

    def _share(self, num_workers: int) -> DecodeOptions:
        """How far one worker decodes ahead, if all workers of an actor together are to keep the limit."""
        decode, each = self._decode, -(-num_workers // self._workers.num_actors)
        return replace(decode, threads=decode.worker_threads, budget_bytes=decode.budget_bytes // each)

    def _in_store(self) -> Any:
        """A reference to the pickled pipeline in Ray's object store."""
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
                    "out what does not pickle (locks, open files, connections): make it at the first call."
                ) from error
            self._sent = self._pipeline, ray.put(pickled)
        return self._sent[1]


def _units(left: int | None, place: int, num_workers: int, length: int | None) -> int:
    """How many batches (or batch groups) one worker gives; `place`: when its first batch comes."""
    return sys.maxsize if left is None else -(-len(range(place, left, num_workers)) // (length or 1))


class _Asked(NamedTuple):
    """A response on its way. number: of the request in the pass. units: batches (or batch groups) asked for."""

    number: int
    units: int
    actor: Actor
    response: "Future[tuple[BatchResponse, Int64s]]"


@dataclass(eq=False, slots=True, kw_only=True)
class _Worker:
    """One worker in one pass.

    input: what it begins with next; None once it was sent. units_left: batches (or batch groups) to ask for.
    actor, stream: where it runs, and its number there; None while it does not. asked: its responses on their way.
    received: how many responses came. batches, cursor: how far it came.
    base, begin: what it had counted, and its cursor, at its last start. lost: how often in a row.
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
        """The row group in which the next batch begins, if the worker begins again there and has one."""
        if self.input is None or not len(self.input.group_start):
            return ""
        return f", which begins in {self.input.first_task.where},"


@dataclass(eq=False, slots=True, kw_only=True)
class _Sender:
    """Asks the workers of one pass.

    limits: the user's. pipeline: a reference to it in the object store. counts: of each worker, int64 [W, COUNTED].
    workers: by number, in the order of their first batches. rounds: how many units each worker was asked for in each
    round. size: units of the next round; always 1 where row counts are not known (is_counted).
    """

    pool: ActorPool
    limits: RayWorkers
    rest_of: RestOf
    group_length: int | None
    options: DecodeOptions
    pipeline: Any
    counts: Int64s
    workers: dict[int, _Worker]
    is_counted: bool
    requests: Iterator[int] = field(default_factory=itertools.count)
    rounds: list[int] = field(default_factory=list)
    size: int = 1
    largest_bytes: int = 0

    def responses(self) -> Iterator[BatchResponse]:
        """Round after round, the response of each worker; all of a round were asked for the same number of batches."""
        self._ask_all()
        while True:
            for worker in self.workers.values():
                if worker.units_left == 0 and not worker.asked:
                    return
                yield self._response_of(worker)

    def _response_of(self, worker: _Worker) -> BatchResponse:
        while True:
            self._ask(worker)  # it may have come to a stop in order to move
            try:
                response, counts = worker.asked[0].response.result()
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
        """Ask a worker until `most` of its responses are on their way; None: as many as the user allows."""
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
        """Forget what is on its way, and begin with what comes after the last received batch."""
        self.leave(worker)
        worker.units_left += sum(asked.units for asked in worker.asked)
        worker.asked.clear()
        worker.base, worker.begin = self.counts[worker.number].copy(), worker.cursor
        worker.input = self.rest_of(worker.number, worker.batches, worker.cursor)

    def leave(self, worker: _Worker) -> None:
        """The worker has no actor from now on."""
        if worker.actor is not None:
            self.pool.leave(worker.actor, worker.stream)
            worker.actor = None

    def _lost(self, actor: Actor, error: BaseException) -> None:
        """Begin the workers of an actor again.

        The loss counts against the one whose request was the first that the actor had not done.
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
                "ahead_bytes of decoding=; if it crashes, read that row group in a process of its own."
            ) from error
        self._ask_all()

    def _check_room(self, num_bytes: int) -> None:
        """Warn if this host's object store is too small for all responses on their way, so that Ray would spill."""
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


# Numbers for streams, so that no two of them are the same to an actor.
_streams = itertools.count()


def _first_undone(worker: _Worker) -> int:
    """The number of the worker's first request that was not responded to."""
    undone = (asked.number for asked in worker.asked if not asked.response.done() or asked.response.exception())
    return next(undone, sys.maxsize)


# The share of its object store from which Ray spills.
_SPILLS_AT = 0.8


def _buffers(batch: Any) -> Sequence[Any]:
    return batch.buffers if isinstance(batch, FlatMessage) else ()


def _text(error: BaseException) -> str:
    """Why Ray says that something was lost, without its advice."""
    text = " ".join(str(error).split())
    reason = text[max(text.find("The actor is dead because"), 0) :].partition(" Some common causes")[0]
    return f"Ray says: {reason[:500].rstrip('. ')}."
