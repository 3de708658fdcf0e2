"""`process_pool`: worker processes that end with their command; `continued_later`: advice of commands that continue."""

import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import ParamSpec, TypeVar

from torch_dataloader_utils._runtime.processes import end_with_parent, held
from torch_dataloader_utils.cli.app import DATA_PROBLEM, Failure, disk_is_full, of_interrupt, of_os_error

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# A terminal sends SIGINT to the whole group of processes, supervisors (systemd, timeout) send SIGTERM. The parent ends
# its workers; tracebacks of workers, and of a pool that loses its workers first, would say nothing.
_SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give an executor of spawned processes.

    After an error of the caller, running tasks finish, so that no work is lost; KeyboardInterrupt ends the processes at
    once. If this process is killed, the processes end by themselves. Temporary files end with the processes.
    """
    with tempfile.TemporaryDirectory(prefix="tdu-workers-", ignore_cleanup_errors=True) as directory:
        pool = _SpawnedPool(workers, directory)
        # Twice, for a Ctrl-C while the pool waits for its tasks.
        with _ended_on_interrupt(pool), pool, _ended_on_interrupt(pool):
            yield pool


class _Worker(SpawnProcess):
    def terminate(self) -> None:
        """Kill the process. The pool calls this when another worker has died; SIGTERM is blocked in workers."""
        self.kill()


class _WorkerContext(SpawnContext):
    Process = _Worker


class _SpawnedPool(ProcessPoolExecutor):
    """Pool of spawned processes: Arrow's threads do not survive a fork."""

    def __init__(self, workers: int, directory: str) -> None:
        super().__init__(workers, mp_context=_WorkerContext(), initializer=_begin, initargs=(directory,))

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """See Executor. Starts processes with blocked signals, from their first instruction.

        Signals to this process are delivered after the start: an interrupted start ends in a traceback.
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
    """Start a worker process. directory: place of its temporary files."""
    tempfile.tempdir = directory
    end_with_parent(directory)


@contextmanager
def _ended_on_interrupt(pool: ProcessPoolExecutor) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        # First, so that the pool forgets cancelled tasks: its thread would fail with a traceback over dead workers.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()  # files written until then would stay in the directory
        raise


@contextmanager
def continued_later(advice: str) -> Iterator[None]:
    """Add advice to interrupts, dead workers and full disks: the same command continues."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise of_interrupt(interrupt, advice) from interrupt
    except BrokenProcessPool as error:
        died = "A worker process died. If the kernel killed it for its memory, lower --workers."
        raise Failure(f"{died} {advice}", DATA_PROBLEM) from error
    except OSError as error:
        if not disk_is_full(error):
            raise
        raise of_os_error(error, advice) from error
