"""Takes the place of multiprocessing's context: worker processes in a `World`, which run the real `RequestWorker`.

torch's own iterator, and all code of the trainer above it, run as they are. What is simulated is queues, processes,
sentinels and events, and torch's handler of SIGCHLD: it raises while the trainer waits for a response and the iterator
has named its workers. Messages are not pickled: batches in slabs are shared memory anyway.
"""

import copy
import itertools
import pickle
import queue
from collections import deque
from collections.abc import Iterable
from itertools import chain
from multiprocessing.context import BaseContext
from typing import Any

from torch._C import _remove_worker_pids, _set_worker_pids
from torch._utils import ExceptionWrapper

from tests.simulation.world import Process, World
from torch_dataloader_utils.stream.transport.worker_process import RequestWorker

# Above the largest process id of the system, so that a signal that names one reaches nobody.
_pids = itertools.count(1 << 23)


class Sentinel:
    """What `multiprocessing.connection.wait` waits for: the end of a process."""

    def __init__(self, process: "SimulatedProcess") -> None:
        self.process = process


class SimulatedProcess:
    """A worker process: takes requests from its queue one by one, and puts responses into the common queue."""

    def __init__(self, context: "SimulatedContext", target: object, args: tuple[Any, ...]) -> None:
        del target
        self.context, self.world = context, context.world
        self.process = Process()
        self.daemon = False
        self.exitcode: int | None = None
        self.pid = next(_pids)
        self.sentinel = Sentinel(self)
        self._data, self._requests, self._responses, self._done = args[1:5]
        self._turn_is_due = False
        self._last_due = 0.0

    def start(self) -> None:
        """Begin; with a copy of the data set as a new process has one."""
        self._worker = _copied(self._data)
        self._requests.reader = self
        self.context.processes.append(self)
        self.has_arrived()

    def has_arrived(self) -> None:
        """Take a turn if there is a request."""
        if self._requests.items and not self._turn_is_due and self.process.is_alive:
            self._turn_is_due = True
            self.world.after(self.world.delay(), self.process, self._take_turn)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        item = self._requests.items.popleft()
        if item is None or self._done.is_set():
            self.end(0)
            return
        if not isinstance(item, tuple):  # the begin of a pass, for persistent workers
            self._send((item, None))
        else:
            number, request = item
            try:
                self._send((number, self._worker[request]))
            except Exception:  # noqa: BLE001 - raised in the trainer
                self._send((number, ExceptionWrapper(where="in DataLoader worker process")))
        self.has_arrived()

    def _send(self, item: object) -> None:
        # Responses of one process stay in their order.
        self._last_due = max(self._last_due, self.world.clock + self.world.delay())
        self.world.after(self._last_due - self.world.clock, self.process, lambda: self._responses.arrive(item))

    def end(self, exitcode: int) -> None:
        """End the process. Responses that have not left it are lost."""
        if self.process.is_alive:
            self.exitcode = exitcode
            self.world.kill(self.process)
            self.context.has_signal = self.context.has_signal or self.pid in chain(*self.context.watched.values())

    def kill(self) -> None:
        """See multiprocessing; a stopped process too."""
        self.end(-9)

    terminate = kill

    def is_alive(self) -> bool:
        """See multiprocessing."""
        return self.process.is_alive

    def join(self, timeout: float | None = None) -> None:
        """See multiprocessing."""
        self.world.wait(lambda: not self.process.is_alive, timeout)


def _copied(worker: RequestWorker) -> RequestWorker:
    made = copy.copy(worker)
    made._pipeline = pickle.loads(pickle.dumps(worker._pipeline))
    return made


class SimulatedQueue:
    """A queue of requests to one process, or of the responses of all."""

    def __init__(self, context: "SimulatedContext") -> None:
        self._context = context
        self.items: deque[Any] = deque()
        self.reader: SimulatedProcess | None = None

    def put(self, item: object) -> None:
        """Send an item to the reader."""
        self.items.append(item)
        if self.reader is not None:
            self.reader.has_arrived()

    def arrive(self, item: object) -> None:
        """Let an item arrive at the trainer."""
        self.items.append(item)

    def get(self, timeout: float | None = None) -> Any:
        """See Queue. Raises as torch's handler of SIGCHLD does."""
        context = self._context
        context.world.wait(lambda: bool(self.items) or context.death_is_signalled(), timeout)
        if context.death_is_signalled():
            context.has_signal = False
            raise RuntimeError("DataLoader worker is killed by signal: Killed.")
        if not self.items:
            raise queue.Empty
        return self.items.popleft()

    def cancel_join_thread(self) -> None:
        """See Queue."""

    close = cancel_join_thread

    class _Lock:
        def acquire(self, timeout: float = -1) -> None:
            """See Lock."""

        def release(self) -> None:
            """See Lock."""

    _notempty = _Lock()


class SimulatedEvent:
    """An event that all processes see."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """See Event."""
        return self._is_set

    def set(self) -> None:
        """See Event."""
        self._is_set = True


class SimulatedContext(BaseContext):
    """Takes the place of a start method.

    processes: all processes that were started. watched: process ids for torch's handler of SIGCHLD, by iterator.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.processes: list[SimulatedProcess] = []
        self.watched: dict[int, tuple[int, ...]] = {}
        self.has_signal = False

    def Queue(self, maxsize: int = 0) -> SimulatedQueue:  # type: ignore[override]  # noqa: N802
        """See multiprocessing."""
        return SimulatedQueue(self)

    def Event(self) -> SimulatedEvent:  # type: ignore[override]  # noqa: N802
        """See multiprocessing."""
        return SimulatedEvent()

    def Process(self, target: object, args: tuple[Any, ...]) -> SimulatedProcess:  # noqa: N802
        """See multiprocessing."""
        return SimulatedProcess(self, target, args)

    def get_start_method(self, allow_none: bool = False) -> str:
        """See multiprocessing."""
        return "spawn"

    def death_is_signalled(self) -> bool:
        """Return whether torch's handler of SIGCHLD would raise now."""
        return self.has_signal and bool(self.watched)

    def watch(self, iterator: int, pids: tuple[int, ...]) -> None:
        """Take the place of `_set_worker_pids`."""
        self.watched[iterator] = pids
        _set_worker_pids(iterator, pids)

    def forget(self, iterator: int) -> None:
        """Take the place of `_remove_worker_pids`."""
        self.watched.pop(iterator, None)
        self.has_signal = False
        _remove_worker_pids(iterator)

    @property
    def living(self) -> list[SimulatedProcess]:
        """Processes that live."""
        return [each for each in self.processes if each.process.is_alive]

    def wait_for_sentinels(self, sentinels: Iterable[Sentinel], timeout: float | None = None) -> list[Sentinel]:
        """Take the place of `multiprocessing.connection.wait`."""
        sentinels = list(sentinels)
        ended = lambda: [each for each in sentinels if not each.process.process.is_alive]  # noqa: E731
        if timeout != 0:
            self.world.wait(lambda: bool(ended()), timeout)
        return ended()
