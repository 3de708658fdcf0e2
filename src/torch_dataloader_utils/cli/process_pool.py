"""Worker processes of a command. They end with it, whether it succeeds, fails, is interrupted or killed."""

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from torch_dataloader_utils._runtime.parent import end_with_parent

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


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


class _SpawnedPool(ProcessPoolExecutor):
    """Spawned, because Arrow's threads do not survive a fork."""

    def __init__(self, workers: int, directory: str) -> None:
        context = multiprocessing.get_context("spawn")
        super().__init__(workers, mp_context=context, initializer=_begin, initargs=(directory,))

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
