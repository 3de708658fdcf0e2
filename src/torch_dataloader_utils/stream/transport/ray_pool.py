"""Start the Ray actors of one loader when they are needed, and replace lost actors. An actor runs several workers."""

import logging
import sys
import weakref
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from torch_dataloader_utils._core.option_values import RayWorkers
from torch_dataloader_utils.errors import ConfigError, MissingDependencyError, WorkerDiedError
from torch_dataloader_utils.stream.transport.ray_actor import SIGNS, RayActor

_log = logging.getLogger(__name__)

_PATIENCE_SEC = 30.0

# A silence is so many waits in a row. A trainer that was stopped itself does not count its own stop as a silence.
_WAITS = 10

T = TypeVar("T")


class ActorSilentError(Exception):
    """The process of an actor gave no sign of life for too long. Counts as the loss of the actor."""


@dataclass(eq=False, slots=True)
class Actor:
    """Actor of Ray.

    handle: Ray's handle. placed: host and process of the actor, once it runs. streams: number of streams that it runs.
    answer: last sign of life. After the loss of another actor it is pending until this actor has answered again.
    failed_before: number of failed starts in a row before this start. Actors that a lost node takes along count once.
    """

    handle: Any
    placed: "Future[str]"
    answer: "Future[Any]"
    streams: int = 0
    failed_before: int = 0

    @property
    def is_ready(self) -> bool:
        """True if the actor has started."""
        return self.placed.done() and self.placed.exception() is None

    @property
    def place(self) -> str:
        """Host and process of the actor, for messages."""
        return self.placed.result() if self.is_ready else "a host that is not known"


class ActorPool:
    """Pool of actors in one session of Ray. A stream begins on the actor with the fewest streams."""

    def __init__(self, workers: RayWorkers) -> None:
        self.session = ray_session()
        self._workers = workers
        self._actors: list[Actor] = []
        self._failed_starts = 0
        weakref.finalize(self, _kill_all, self._actors, self.session)

    def start(self) -> None:
        """Start missing actors. Returns before the actors run."""
        ray = connected_ray()
        amounts = dict(self._workers.resources)
        own = {option: amounts.pop(name, None) for name, option in _RAY_OPTIONS.items()}
        options = {"num_cpus": 0} | {option: amount for option, amount in own.items() if amount is not None}
        made = ray.remote(concurrency_groups={SIGNS: 1})(RayActor).options(
            **options, resources=amounts or None, max_restarts=0, scheduling_strategy="SPREAD"
        )
        while len(self._actors) < self._workers.num_actors:
            handle = made.remote()
            placed = handle.place.remote().future()
            self._actors.append(Actor(handle, placed, placed, failed_before=self._failed_starts))

    def take(self) -> Actor:
        """Return the actor with the fewest streams, for one more stream.

        If a node is lost, Ray reports its actors one after the other. So after a loss, an actor is taken only after it
        has answered.

        Raises:
            WorkerDiedError: actors cannot be started.
        """
        while True:
            actor = min(self._ready(), key=_load)
            try:
                self.result(actor, actor.answer)
            except losses():
                self.lose(actor)
            else:
                actor.streams += 1
                return actor

    def result(self, actor: Actor, response: "Future[T]") -> T:
        """Return the result of a call of an actor. Waits as long as the actor's process gives signs of life.

        Raises:
            ActorSilentError: the process gave no sign of life for `silence_seconds`.
            Exception: the error of the call, see `losses`.
        """
        while not response.done():
            wait([response], self._workers.silence_seconds / _WAITS)
            if not response.done():
                self._await_sign(actor, response)
        return response.result()

    def has_better(self, actor: Actor) -> bool:
        """Return whether another actor has at least two streams less."""
        ready = [each for each in self._actors if each.is_ready]
        return bool(ready) and actor.streams - min(map(_load, ready)) > 1

    def leave(self, actor: Actor, stream: int) -> None:
        """End a stream of an actor."""
        actor.streams -= 1
        if ray_session() == self.session:
            actor.handle.end.remote(stream)

    def lose(self, actor: Actor) -> None:
        """Replace a lost actor by a new actor."""
        if actor in self._actors:
            self._actors.remove(actor)
            _kill_all([actor], self.session)
            for each in self._actors:
                if each.is_ready:
                    each.answer = _sign_of(each)
            self.start()

    def _await_sign(self, actor: Actor, response: "Future[T]") -> None:
        """Ask an actor for a sign of life, and wait until it comes, or the response."""
        sign, seconds = _sign_of(actor), self._workers.silence_seconds
        for _ in range(_WAITS):
            wait([response, sign], seconds / _WAITS, FIRST_COMPLETED)
            if response.done():
                return
            if sign.done():
                sign.result()  # raises if the actor is lost
                return
        raise ActorSilentError(
            f"Its process gave no sign of life for {seconds:g} s (RayWorkers.silence_seconds): it was stopped, or its "
            "node cannot be reached."
        )

    def _ready(self) -> list[Actor]:
        """Return the running actors. Waits until at least one runs."""
        has_warned = False
        while True:
            for actor in [each for each in self._actors if each.placed.done() and not each.is_ready]:
                self._start_failed(actor)
            ready = [each for each in self._actors if each.is_ready]
            if ready:
                self._failed_starts = 0
                for each in self._actors:
                    each.failed_before = 0
                return ready
            wait([each.placed for each in self._actors], _PATIENCE_SEC, FIRST_COMPLETED)
            if not has_warned and not any(each.placed.done() for each in self._actors):
                has_warned = True
                _log.warning(
                    "None of %d actors of RayWorkers has started in %.0f s: Ray has no room for %s, or starts a node. "
                    "`ray status` shows free resources; RayWorkers(resources=...) sets the resources of each actor.",
                    len(self._actors),
                    _PATIENCE_SEC,
                    dict(self._workers.resources),
                )

    def _start_failed(self, actor: Actor) -> None:
        error = actor.placed.exception()
        self._failed_starts = max(self._failed_starts, actor.failed_before + 1)
        if self._failed_starts > self._workers.max_restarts:
            raise WorkerDiedError(
                f"Actors of RayWorkers do not start ({_last_line(error)}). This package, in the version of the "
                "trainer, and the modules of your functions have to be importable on every node: install them "
                "there, or connect with ray.init(runtime_env=...)."
            ) from error
        self.lose(actor)


def _last_line(error: BaseException | None) -> str:
    """Return Ray's reason, the last line below the tracebacks of the actor."""
    return str(error).rstrip().rpartition("\n")[2].strip()


# Resources that Ray takes as separate options.
_RAY_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def connected_ray() -> Any:
    """Return the module `ray`, connected to a cluster.

    Raises:
        MissingDependencyError: Ray is not installed. ConfigError: no cluster was found.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingDependencyError("workers=RayWorkers(...) needs Ray. Run: pip install 'ray>=2.40'") from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise ConfigError(
                "workers=RayWorkers(...): this process is not connected to a Ray cluster, and no cluster runs on this "
                "host. Run `ray start` on the host (with --address= of the head node), or call ray.init() first."
            ) from error
    return ray


def object_store_bytes() -> int:
    """Return the size of this host's object store."""
    ray = connected_ray()
    here = ray.get_runtime_context().get_node_id()
    node: Any = next(each for each in ray.nodes() if each["NodeID"] == here)
    return int(node["Resources"].get("object_store_memory", 0))


def ray_session() -> tuple[str, str] | None:
    """Return an id of Ray's session; None without a connection. Actors and objects last until ray.shutdown()."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def losses() -> tuple[type[BaseException], ...]:
    """Return the errors that say that an actor, or an object of an actor, does not exist any more or is silent."""
    from ray import exceptions

    return (
        ActorSilentError,
        exceptions.RayActorError,
        exceptions.ObjectLostError,
        exceptions.NodeDiedError,
        exceptions.WorkerCrashedError,
        exceptions.OutOfMemoryError,
    )


def _sign_of(actor: Actor) -> "Future[Any]":
    """Ask an actor for a sign of life."""
    return actor.handle.give_sign.options(concurrency_group=SIGNS).remote().future()  # type: ignore[no-any-return]


def _load(actor: Actor) -> int:
    return actor.streams


def _kill_all(actors: list[Actor], session: tuple[str, str] | None) -> None:
    """End these actors if their session lasts."""
    if ray_session() == session:
        for actor in actors:
            sys.modules["ray"].kill(actor.handle)
    actors.clear()
