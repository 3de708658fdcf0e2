"""Worker processes of a command. They end with it, whether it succeeds, fails, is interrupted or killed."""

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import ParamSpec, TypeVar

from torch_dataloader_utils._runtime.processes import end_with_parent, held

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# A terminal sends the one to the whole group of processes, and supervisors (systemd, timeout) the other. The parent
# ends its workers; a traceback of each would say nothing, and a pool whose workers die first adds one of its own.
_SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """An executor of spawned processes.

    An error of the caller waits for the tasks that run, whose work is then not lost; KeyboardInterrupt ends them at
    once. Where this process is killed, they end by themselves. Their temporary files go with them.
    """
    with tempfile.TemporaryDirectory(prefix="tdu-workers-", ignore_cleanup_errors=True) as directory:
        pool = _SpawnedPool(workers, directory)
        # Twice, for whoever presses Ctrl-C while the pool waits for its tasks.
        with _ended_on_interrupt(pool), pool, _ended_on_interrupt(pool):
            yield pool


class _Worker(SpawnProcess):
    def terminate(self) -> None:
        """So the pool ends the others when one has died; by SIGKILL, as SIGTERM is blocked in them."""
        self.kill()


class _WorkerContext(SpawnContext):
    Process = _Worker


class _SpawnedPool(ProcessPoolExecutor):
    """Spawned, because Arrow's threads do not survive a fork."""

    def __init__(self, workers: int, directory: str) -> None:
        super().__init__(workers, mp_context=_WorkerContext(), initializer=_begin, initargs=(directory,))

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """See Executor. Processes are started here: they inherit what is blocked, from their first instruction.

        This process is interrupted only when they have been told what to do: one that has not fails with a traceback.
        """
        with held(*_SENT_TO_ALL) as deliver:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_ALL)
            try:
                future = super().submit(fn, *args, **kwargs)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        deliver()
        return future


def _begin(directory: str) -> None:
    """directory: for temporary files."""
    tempfile.tempdir = directory
    end_with_parent(directory)


@contextmanager
def _ended_on_interrupt(pool: ProcessPoolExecutor) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        # First, so that the pool forgets what the caller has cancelled: its thread would fail where workers have died,
        # with a traceback.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()  # what it writes until then would stay in the directory
        raise
