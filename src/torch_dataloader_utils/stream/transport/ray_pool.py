"""The actors of one loader, each with its workers: started when they are needed, replaced when they are lost."""

import logging
import sys
import weakref
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from torch_dataloader_utils._core.option_values import RayWorkers
from torch_dataloader_utils.errors import ConfigError, MissingDependencyError, WorkerDiedError
from torch_dataloader_utils.stream.transport.ray_actor import RayActor

_log = logging.getLogger(__name__)

_PATIENCE_SEC = 30.0


@dataclass(eq=False, slots=True)
class Actor:
    """An actor of Ray. handle: Ray's. placed: says where it runs once it does. workers: those that it runs."""

    handle: Any
    placed: "Future[str]"
    workers: set[int] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether it has started."""
        return self.placed.done() and self.placed.exception() is None

    @property
    def place(self) -> str:
        """Where it runs, for messages."""
        return self.placed.result() if self.is_ready else "a host that is not known"


class ActorPool:
    """Actors, as many as asked for; a worker is on the one that had the fewest workers when it began there."""

    def __init__(self, workers: RayWorkers) -> None:
        self._workers = workers
        self._actors: list[Actor] = []
        self._failed_starts = 0
        self._of_worker: dict[int, Actor] = {}
        weakref.finalize(self, _kill_all, self._actors)

    def start(self) -> None:
        """Start actors, as many as are missing; returns before they run.

        Raises:
            MissingDependencyError: Ray is not installed. ConfigError: there is no cluster.
        """
        ray = connected_ray()
        amounts = dict(self._workers.resources)
        own = {option: amounts.pop(name, None) for name, option in _RAY_OPTIONS.items()}
        options = {"num_cpus": 0} | {option: amount for option, amount in own.items() if amount is not None}
        made = ray.remote(RayActor).options(
            **options, resources=amounts or None, max_restarts=0, scheduling_strategy="SPREAD"
        )
        while len(self._actors) < self._workers.num_actors:
            handle = made.remote()
            self._actors.append(Actor(handle, handle.place.remote().future()))

    def actor_of(self, worker: int) -> Actor:
        """The actor of a worker; a worker without one gets the actor with the fewest workers, which runs by then.

        Raises:
            WorkerDiedError: actors cannot be started.
        """
        actor = self._of_worker.get(worker)
        if actor is None:
            actor = min(self._ready(), key=_load)
            actor.workers.add(worker)
            self._of_worker[worker] = actor
        return actor

    def has_better(self, worker: int) -> bool:
        """Whether another actor has at least two workers less than the worker's own."""
        ready = [each for each in self._actors if each.is_ready]
        return bool(ready) and _load(self._of_worker[worker]) - min(map(_load, ready)) > 1

    def leave(self, worker: int) -> None:
        """The worker has no actor from now on; the one that it had forgets it."""
        actor = self._of_worker.pop(worker, None)
        if actor is not None:
            actor.workers.discard(worker)
            actor.handle.end.remote(worker)

    def lose(self, actor: Actor) -> None:
        """Another actor takes the place of this one, whose workers have none from now on."""
        for worker in actor.workers:
            del self._of_worker[worker]
        actor.workers.clear()
        if actor in self._actors:
            self._actors.remove(actor)
            _kill_all([actor])
        self.start()

    def _ready(self) -> list[Actor]:
        """The actors that run, at least one: waits for it."""
        has_warned = False
        while True:
            for actor in [each for each in self._actors if each.placed.done() and not each.is_ready]:
                self._start_failed(actor)
            ready = [each for each in self._actors if each.is_ready]
            if ready:
                self._failed_starts = 0
                return ready
            wait([each.placed for each in self._actors], _PATIENCE_SEC, FIRST_COMPLETED)
            if not has_warned and not any(each.placed.done() for each in self._actors):
                has_warned = True
                _log.warning(
                    "None of %d actors of RayWorkers has started in %.0f s: Ray has no room for %s, or starts a node. "
                    "`ray status` shows what is free; RayWorkers(resources=...) says what each asks for.",
                    len(self._actors),
                    _PATIENCE_SEC,
                    dict(self._workers.resources),
                )

    def _start_failed(self, actor: Actor) -> None:
        error = actor.placed.exception()
        self._failed_starts += 1
        if self._failed_starts > self._workers.max_restarts:
            raise WorkerDiedError(
                f"Actors of RayWorkers do not start ({type(error).__name__}: {error}). This package, in the version of "
                "the trainer, and the modules of your functions have to be importable on every node: install them "
                "there, or connect with ray.init(runtime_env=...)."
            ) from error
        self.lose(actor)


# Names of resources for which Ray has options of their own.
_RAY_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def connected_ray() -> Any:
    """The module `ray`, connected to a cluster.

    Raises:
        MissingDependencyError: it is not installed. ConfigError: there is no cluster.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "workers=RayWorkers(...) needs Ray. Run: pip install 'torch-dataloader-utils[ray]'"
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise ConfigError(
                "workers=RayWorkers(...): this process is connected to no Ray cluster, and on this host runs none. Run "
                "`ray start` on it (with --address= of the head node), or call ray.init() first."
            ) from error
    return ray


def object_store_bytes() -> int:
    """The room of the object store of this host."""
    ray = connected_ray()
    here = ray.get_runtime_context().get_node_id()
    node: Any = next(each for each in ray.nodes() if each["NodeID"] == here)
    return int(node["Resources"].get("object_store_memory", 0))


def _load(actor: Actor) -> int:
    return len(actor.workers)


def _kill_all(actors: list[Actor]) -> None:
    """End these actors, if there is still a cluster."""
    ray = sys.modules.get("ray")
    for actor in actors:
        if ray is not None and ray.is_initialized():
            ray.kill(actor.handle)
    actors.clear()
