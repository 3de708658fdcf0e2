"""Takes the place of the module `ray`: a cluster in a `World`, whose actors run the real `RayActor`.

What is simulated is what Ray does between processes: nodes, starts, queues of calls, objects on their way, and when it
reports that an actor is dead. Arguments and results are pickled, as Ray does.
"""

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.simulation.world import Process, World, WorldFuture


class RayActorError(Exception):
    """The actor is dead."""


class ObjectLostError(Exception):
    """The object of a result was lost with its node."""


class _Unused(Exception):  # noqa: N818
    pass


class Reference:
    """Reference to a result that may be on its way, or to an object that the trainer has put."""

    def __init__(self, future: WorldFuture) -> None:
        self._future = future

    def future(self) -> WorldFuture:
        """See ray.ObjectRef."""
        return self._future


class Handle:
    """Handle of an actor; its methods have `remote` and `options`."""

    def __init__(self, actor: "SimulatedActor") -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> Any:
        method = SimpleNamespace(remote=partial(self.actor.call, name, ""))
        method.options = lambda concurrency_group: SimpleNamespace(
            remote=partial(self.actor.call, name, concurrency_group)
        )
        return method


class SimulatedActor:
    """An actor: a process that makes an object of its class once it has room, and runs calls in order.

    under_way: futures of calls without a result at the trainer. has_answered: whether a result has come to the trainer.
    """

    def __init__(self, cluster: "Cluster", make: Callable[[], Any]) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.process = Process(node=-1)
        self.under_way: list[WorldFuture] = []
        self._make, self._object = make, None
        self._calls: dict[str, list[tuple[WorldFuture, str, bytes]]] = {"": [], "signs": []}
        self._last_due = 0.0
        self.is_known_dead = self.has_answered = False

    def start(self, node: int) -> None:
        """Begin on a node."""
        self.process.node = node
        self.world.after(1 + self.world.delay(), self.process, self._started)

    def call(self, name: str, group: str, *arguments: Any) -> Reference:
        """Send a call; calls of one group arrive in their order."""
        future = self.world.future()
        resolved = [each.future().result() if isinstance(each, Reference) else each for each in arguments]
        if self.is_known_dead:
            self.world.after(self.world.delay(), None, lambda: self._fail(future))
            return Reference(future)
        self.under_way.append(future)
        if self.process.is_alive:
            sent = pickle.dumps(resolved)
            self._last_due = max(self._last_due, self.world.clock + self.world.delay())
            arrives = lambda: self._arrived(group, future, name, sent)  # noqa: E731
            self.world.after(self._last_due - self.world.clock, None, arrives)
        return Reference(future)

    def _started(self) -> None:
        self._object = self._make()
        for group in self._calls:
            self._take_turn(group)

    def _arrived(self, group: str, future: WorldFuture, name: str, sent: bytes) -> None:
        self._calls[group].append((future, name, sent))
        if self._object is not None and len(self._calls[group]) == 1:
            self._take_turn(group)

    def _take_turn(self, group: str) -> None:
        if self._calls[group]:
            # A call may take minutes, for a slow store; signs of life come all the same.
            is_slow = group == "" and self.world.random.random() < 0.02
            seconds = self.world.random.uniform(0, 1000) if is_slow else self.world.delay()
            self.world.after(seconds, self.process, lambda: self._run(group))

    def _run(self, group: str) -> None:
        future, name, sent = self._calls[group].pop(0)
        arguments = pickle.loads(sent)
        try:
            result = pickle.dumps(getattr(self._object, name)(*arguments), protocol=5)
        except Exception as error:  # noqa: BLE001 - raised at the trainer
            self.world.after(self.world.delay(), None, lambda error=error: self._deliver(future, error, None))
        else:
            self.world.after(self.world.delay(), None, lambda: self._deliver(future, None, result))
        self._take_turn(group)

    def _deliver(self, future: WorldFuture, error: Exception | None, result: bytes | None) -> None:
        if future not in self.under_way:
            return
        if not self.process.is_alive and self.world.random.random() < 0.5:
            return  # lost with its process; `die` reports it
        self.under_way.remove(future)
        self.has_answered = True
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(pickle.loads(result))

    def die(self, error: type[Exception] = RayActorError) -> None:
        """End the process. Ray reports it some time later, call by call."""
        if not self.process.is_alive:
            return
        self.world.kill(self.process)
        reported = self.world.after(self.world.delay(), None, lambda: setattr(self, "is_known_dead", True))
        self.world.after(reported - self.world.clock, None, lambda: self._report(error))

    def _report(self, error: type[Exception]) -> None:
        for future in list(self.under_way):
            self.world.after(self.world.delay(), None, lambda future=future: self._fail(future, error))

    def _fail(self, future: WorldFuture, error: type[Exception] = RayActorError) -> None:
        if future in self.under_way:
            self.under_way.remove(future)
        if not future.done():
            future.set_exception(error("The actor is dead because the simulation killed it."))


class Cluster(ModuleType):
    """Takes the place of the module `ray`.

    nodes_alive: numbers of living nodes. num_started: number of actors that were ever started.
    """

    def __init__(self, world: World, nodes: int) -> None:
        super().__init__("ray")
        self.world = world
        self.nodes_alive = list(range(nodes))
        self.actors: list[SimulatedActor] = []
        self.num_started = 0
        self._next_node = nodes
        self.exceptions = SimpleNamespace(
            RayActorError=RayActorError,
            ObjectLostError=ObjectLostError,
            NodeDiedError=_Unused,
            WorkerCrashedError=_Unused,
            OutOfMemoryError=_Unused,
        )
        self.cloudpickle = ModuleType("ray.cloudpickle")
        self.cloudpickle.dumps, self.cloudpickle.CloudPickler = pickle.dumps, pickle.Pickler  # type: ignore[attr-defined]

    def is_initialized(self) -> bool:
        """See ray."""
        return True

    def get_runtime_context(self) -> SimpleNamespace:
        """See ray."""
        return SimpleNamespace(get_node_id=lambda: "node 0", get_job_id=lambda: "job")

    def nodes(self) -> list[dict[str, Any]]:
        """See ray."""
        return [{"NodeID": "node 0", "Resources": {"object_store_memory": 1 << 40}}]

    def remote(self, **_: Any) -> Callable[[Callable[[], Any]], SimpleNamespace]:
        """See ray."""
        return lambda make: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: self._new(make)))

    def _new(self, make: Callable[[], Any]) -> Handle:
        actor = SimulatedActor(self, make)
        self.actors.append(actor)
        self.num_started += 1
        actor.start(self.world.random.choice(self.nodes_alive))
        return Handle(actor)

    def put(self, value: object) -> Reference:
        """See ray."""
        future = self.world.future()
        future.set_result(value)
        return Reference(future)

    def kill(self, handle: Handle) -> None:
        """See ray; a stopped process too."""
        handle.actor.die()

    @property
    def living(self) -> list[SimulatedActor]:
        """Actors whose processes live."""
        self.actors = [actor for actor in self.actors if actor.process.is_alive]
        return self.actors

    def lose_node(self, node: int) -> None:
        """Lose a node with its actors, which Ray reports one after the other; another node joins."""
        self.nodes_alive.remove(node)
        self.nodes_alive.append(self._next_node)
        self._next_node += 1
        for actor in self.living:
            if actor.process.node == node:
                actor.die(self.world.random.choice([RayActorError, ObjectLostError]))


@contextmanager
def in_place_of_ray(cluster: Cluster) -> Iterator[None]:
    """Let `import ray` give the cluster inside."""
    names = ("ray", "ray.cloudpickle")
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.modules |= {"ray": cluster, "ray.cloudpickle": cluster.cloudpickle}
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
            if before[name] is not None:
                sys.modules[name] = before[name]
