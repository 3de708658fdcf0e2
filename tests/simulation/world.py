"""A world of processes with a clock of its own: one scheduler, whose seed decides all that chance decides elsewhere.

    world.after(seconds, process, action)     something that will happen in (or to) a process
    world.wait(is_done, within)               let things happen, one after the other, until it is so

The trainer's code runs as it is. Where it would wait for another thread, process or host, it calls `wait`. A process
that waits itself, for its own decoding, runs nothing but its own events; so a call of a process is done at once as seen
from outside, and between two calls it may be killed or stopped.
"""

import random
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future
from dataclasses import dataclass, field
from typing import Any, NoReturn


class HangError(BaseException):
    """Something waits for what will never happen. No Exception, so that no code under test handles it."""


@dataclass(eq=False, slots=True)
class Process:
    """A process of the world. While it is stopped, nothing of it happens."""

    node: int = 0
    is_alive: bool = True
    is_stopped: bool = False

    @property
    def runs(self) -> bool:
        """Whether it can do anything now."""
        return self.is_alive and not self.is_stopped


@dataclass(eq=False, slots=True)
class _Event:
    due: float
    process: Process | None
    action: Callable[[], object]


@dataclass(eq=False)
class World:
    """The scheduler. Faults come from `chaos`, a function that is called before events, between calls of processes."""

    seed: int
    most_steps: int = 20_000
    clock: float = 0.0
    steps: int = 0
    chaos: Callable[[], object] = lambda: None
    _events: list[_Event] = field(default_factory=list)
    _inside: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def after(self, seconds: float, process: Process | None, action: Callable[[], object]) -> float:
        """Let something happen after some seconds, in a process unless it is stopped or dead by then. Return when."""
        due = self.clock + seconds
        self._events.append(_Event(due, process, action))
        return due

    def delay(self) -> float:
        """Return a random time in seconds: a short one, or one time in ten a longer one."""
        return self.random.random() * (1.0 if self.random.random() < 0.1 else 0.01)

    def now_ns(self) -> int:
        """Take the place of a clock of the system; now and then work has taken long."""
        self.clock += self.random.choice([0, 0, 0.02, 0.1])
        return int(self.clock * 1e9)

    def wait(self, is_done: Callable[[], bool], within: float | None = None) -> bool:
        """Let things happen until it is done, or so many seconds have passed. Return whether it is done."""
        end = None if within is None else self.clock + within
        while not is_done():
            event = self._next(end)
            self._count_step()
            if event is None:
                if end is None:
                    self._hangs("nothing is left that could happen")
                self.clock = max(self.clock, end)
                return False
            if not self._inside:
                self.chaos()
                if event not in self._events or not (event.process is None or event.process.runs):
                    continue
            self._events.remove(event)
            self.clock = max(self.clock, event.due)
            self._run(event)
        return True

    def _run(self, event: _Event) -> None:
        if event.process is not None:
            self._inside.append(event.process)
        try:
            event.action()
        finally:
            if event.process is not None:
                self._inside.pop()

    @property
    def inside(self) -> Process | None:
        """The process whose code runs now; None for the trainer."""
        return self._inside[-1] if self._inside else None

    def kill(self, process: Process) -> None:
        """End a process: nothing of it happens any more."""
        process.is_alive = False
        self._events = [event for event in self._events if event.process is not process]

    def end(self) -> None:
        """Forget what was still to happen."""
        self._events.clear()

    def _next(self, end: float | None) -> _Event | None:
        inside = self.inside
        events = [
            event
            for event in self._events
            if (event.process is inside if inside is not None else event.process is None or event.process.runs)
        ]
        event = min(events, key=lambda event: event.due, default=None)
        return None if event is None or (end is not None and event.due > end) else event

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > self.most_steps:
            self._hangs(f"{self.steps} steps")

    def _hangs(self, why: str) -> NoReturn:
        raise HangError(f"seed {self.seed}: {why}")

    def future(self) -> "WorldFuture":
        """Return a future whose result is waited for in this world."""
        return WorldFuture(self)

    def wait_for(self, futures: Iterable[Future[Any]], timeout: float | None = None, return_when: str = "") -> None:
        """Take the place of `concurrent.futures.wait`, whose result is not used."""
        futures, enough = list(futures), any if return_when == FIRST_COMPLETED else all
        self.wait(lambda: enough(future.done() for future in futures), timeout)


class WorldFuture(Future[Any]):
    """A future that lets the world go on where others wait."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def result(self, timeout: float | None = None) -> Any:
        """See Future."""
        self._world.wait(self.done, timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See Future."""
        self._world.wait(self.done, timeout)
        return super().exception(0)


class DecodingThreads:
    """Takes the place of `ThreadPool`: jobs end in any order, in the process that submitted them."""

    def __init__(self, world: World, count: int) -> None:
        self._world, self._count, self._process = world, count, world.inside
        self._waiting: list[tuple[WorldFuture, Callable[..., Any], tuple[Any, ...]]] = []
        self._running = 0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> WorldFuture:
        """See Executor."""
        future = self._world.future()
        self._waiting.append((future, function, arguments))
        self._begin()
        return future

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        """See ThreadPool."""
        del wait
        if cancel_futures:
            for future, _, _ in self._waiting:
                future.cancel()
            self._waiting.clear()

    def _begin(self) -> None:
        while self._waiting and self._running < self._count:
            self._running += 1
            work = self._waiting.pop(0)
            self._world.after(self._world.delay(), self._process, lambda work=work: self._end(*work))

    def _end(self, future: WorldFuture, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._running -= 1
        if future.set_running_or_notify_cancel():
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised where the result is taken, as executors do
                future.set_exception(error)
            else:
                future.set_result(result)
        self._begin()
