"""A loader over a transport of a `World`, with the faults that a seed decides on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.simulated_processes import SimulatedContext
from tests.simulation.simulated_ray import Cluster, in_place_of_ray
from tests.simulation.world import DecodingThreads, Process, World
from torch_dataloader_utils import RayWorkers
from torch_dataloader_utils.stream import decode, decode_jobs
from torch_dataloader_utils.stream.transport import ray_actor, ray_pool, responder, torch_workers, worker_process

THREADS, PROCESSES, RAY = "threads", "processes", "Ray"


@dataclass(eq=False)
class Transport:
    """One transport in its world.

    At each step with a chance of `rate`, a process or actor is killed or stopped, or a node is lost; `faults` counts
    them. Stopped processes may go on later. Some stops are waited for without end, so here they always go on: a process
    of a loader without `timeout`, and an actor that has not answered yet, which looks as if the cluster had no room.
    """

    kind: str
    world: World
    num_workers: int
    rate: float

    def __post_init__(self) -> None:
        chance = self.world.random
        self.faults = 0
        self.cluster = Cluster(self.world, chance.randint(1, 3))
        self.context = SimulatedContext(self.world)
        self.max_restarts = chance.randint(0, 3)
        self.timeout = chance.choice([0, 30])
        self.is_persistent = chance.random() < 0.5
        self.prefetch = chance.randint(1, 3)
        self.actors = chance.randint(1, self.num_workers)
        self.world.chaos = self._do_harm

    def options(self) -> dict[str, Any]:
        """Options of the loader."""
        if self.kind == RAY:
            workers = RayWorkers(
                self.num_workers,
                actors=self.actors,
                prefetch=self.prefetch,
                max_restarts=self.max_restarts,
                silence_seconds=60,
            )
            return {"workers": workers}
        if self.kind == THREADS:
            return {"num_workers": 0}
        return {
            "num_workers": self.num_workers,
            "multiprocessing_context": self.context,
            "persistent_workers": self.is_persistent,
            "prefetch_factor": self.prefetch,
            "timeout": self.timeout,
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let all code inside wait in the world."""
        world, context = self.world, self.context
        with pytest.MonkeyPatch.context() as patch, in_place_of_ray(self.cluster):
            patch.setattr(decode, "ThreadPool", lambda count, _: DecodingThreads(world, count))
            patch.setattr(decode_jobs, "Future", world.future)
            patch.setattr(responder, "perf_counter_ns", world.now_ns)
            patch.setattr(ray_pool, "wait", world.wait_for)
            patch.setattr(ray_actor, "pickle_as_processes_do", lambda: None)
            patch.setattr(torch_workers, "wait", context.wait_for_sentinels)
            patch.setattr(torch_workers, "time", SimpleNamespace(monotonic=lambda: world.clock))
            patch.setattr(torch_workers, "_set_worker_pids", context.watch)
            patch.setattr(torch_workers, "_remove_worker_pids", context.forget)
            patch.setattr(worker_process, "end_if_a_response_is_lost", lambda: None)
            patch.setattr(worker_process, "sweep_if_orphaned", lambda _: None)
            try:
                yield
            finally:
                self.rate = 0
                for loading in list(torch_workers._started):  # persistent workers
                    torch_workers.end(loading)
                # The pool's finalizer knows the actors, and through the world's events all frames of the pass.
                world.end()

    def _do_harm(self) -> None:
        chance = self.world.random
        if chance.random() >= self.rate:
            return
        if self.kind == PROCESSES and self.context.living:
            process = chance.choice(self.context.living)
            if chance.random() < 0.5:
                self._stop(process.process, not self.timeout or chance.random() < 0.5)
            else:
                process.end(chance.choice([-9, -11, 1]))
            self.faults += 1
        elif self.kind == RAY and self.cluster.living:
            actor, fault = chance.choice(self.cluster.living), chance.random()
            if fault < 0.4:
                self._stop(actor.process, not actor.has_answered or chance.random() < 0.5)
            elif fault < 0.8:
                actor.die()
            else:
                self.cluster.lose_node(chance.choice(self.cluster.nodes_alive))
            self.faults += 1

    def _stop(self, process: Process, continues: bool) -> None:
        process.is_stopped = True
        if continues:
            self.world.after(self.world.random.uniform(0, 200), None, partial(setattr, process, "is_stopped", False))
