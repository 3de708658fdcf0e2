"""Worker processes of a command, which end when the command does, however it ends."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """An executor of spawned processes.

    An error of the caller waits for the tasks that run, whose work is then not lost; KeyboardInterrupt ends them at
    once. Where this process is killed, they end by themselves.
    """
    # The second one is for whoever presses Ctrl-C while the pool waits for its tasks.
    with _ended_on_interrupt(), _SpawnedPool(workers) as pool, _ended_on_interrupt():
        yield pool


class _SpawnedPool(ProcessPoolExecutor):
    """Spawned, because Arrow's threads do not survive a fork."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_follow_parent)

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """See Executor. Processes are started here: they inherit that SIGINT is blocked, from their first instruction.

        A terminal sends Ctrl-C to all of them; the parent ends them, and a traceback of each would say nothing.
        """
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def _ended_on_interrupt() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.kill()
        raise


def _follow_parent() -> None:
    """In a worker, first: a thread that waits for the end of the parent, and then ends this process at once.

    An idle worker waits for tasks on a pipe that its siblings hold open too, so it would not see that end.
    """
    parent: Any = multiprocessing.parent_process()

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="tdu-parent-watch", daemon=True).start()
