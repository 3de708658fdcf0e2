"""Start, watch and end the worker processes of torch's DataLoader, where torch's own way is not enough.

This is the only module that touches private parts of torch's loader (`foreign_loaders` reads its frames). Torch's
behaviour, and the behaviour here:

- Torch's workers end when nothing refers to their iterator any more. `leave` ends workers with their pass.
- An iterator that a fork copied would use and end its parent's workers. In the child the iterator counts as ended.
- At the end torch waits five seconds for each busy worker; the worker may wait for a store. Here the wait is one second
  for all workers.
- When a worker dies, torch's SIGCHLD handler raises in any code of the trainer's thread, such as a forward pass. Here
  the handler knows of the workers only while the trainer waits for a response (then it is needed: the trainer would
  wait forever for a worker that dies in the middle of a message). It does not run while workers are started.
- An exception of a signal handler in the middle of a fork (Ctrl-C, an exception at SIGTERM) is lost, or leaves a worker
  behind. Here handlers wait until all workers are started.
- To read and to set the event that ends workers, torch takes a lock that workers take too, and waits forever if a dead
  worker held the lock. `_DoneEvent` replaces this event.
- An exception of a signal handler while a request is put into a queue may leave the queue locked. To end the workers,
  torch then waits forever for the lock. `_DoneEvent` frees the lock.
"""

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from weakref import WeakSet, ref

from torch._C import _remove_worker_pids, _set_worker_pids
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.signal_handling import _set_SIGCHLD_handler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from torch_dataloader_utils._runtime.processes import garbage_left_to_parent, held
from torch_dataloader_utils._runtime.system_limits import limit_error

Loading = _MultiProcessingDataLoaderIter
"""Iterator of torch's loader over one pass, with its worker processes."""

_NAMES = Path("/dev/shm")  # noqa: S108 - torch chooses this directory

# Time for an idle worker to end. After this time a busy worker is killed: its result is not needed.
_END_SEC = 1.0

_started: WeakSet[Loading] = WeakSet()


def persistent(loader: DataLoader[Any]) -> Loading | None:
    """Return the iterator of an earlier pass with persistent workers; None without an iterator, or if a worker died.

    Call `start` next: from here on the death of a worker is raised.
    """
    earlier = cast("Loading | None", loader._iterator)
    if earlier is None:
        return None
    if dead(earlier):
        end(earlier)
    if earlier._shutdown:
        loader._iterator = None
        return None
    _watch(earlier)
    return earlier


def start(loader: DataLoader[Any]) -> Loading:
    """Return an iterator over the loader: the iterator of `persistent` workers, reset to the new pass, or a new one."""
    loading: Loading | None = None
    try:
        with held(*_signals_to_hold(loader)) as deliver:
            with garbage_left_to_parent():
                loading = cast("Loading", iter(loader))
            if not isinstance(loading._workers_done_event, _DoneEvent):
                loading._workers_done_event = _DoneEvent(loading)  # type: ignore[assignment]  # in its place
            _forget(loading)
            _started.add(loading)
        deliver()
    except BaseException as error:
        if loading is not None:
            end(loading)  # the traceback would keep the iterator and its workers
        elif loader._iterator is None and limit_error(error, "") is not None:
            _end_half_started(error)
        raise
    return loading


def _end_half_started(error: BaseException) -> None:
    """End the workers of an iterator that could not be made (at a limit of open files, for example)."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        loading = frame.f_locals.get("self")
        if isinstance(loading, _MultiProcessingDataLoaderIter):
            loading._shutdown = True  # else its `__del__` would fail at missing attributes
            for worker in vars(loading).get("_workers", ()):  # missing before the first worker is begun
                worker.kill()
                worker.join()
            return


def end_if_a_response_is_lost() -> None:
    """Make this worker process end if a response cannot be sent, for lack of open files, for example.

    Otherwise the queue's thread would print the error and forget the response, the thread of shared memory would print
    the error again and again, and the trainer would wait forever.
    """
    Queue._on_queue_feeder_error = staticmethod(lambda error, _: _end(error))  # type: ignore[attr-defined]
    sys.excepthook = _end_at_a_limit


def _end_at_a_limit(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    if limit_error(error, "") is not None:
        os._exit(1)


def _end(error: BaseException) -> None:
    traceback.print_exception(error)
    os._exit(1)


def _signals_to_hold(loader: DataLoader[Any]) -> Iterable[int]:
    """Return the signals to hold back while this loader starts workers.

    SIGCHLD (the death of a worker): torch's handler would raise, because it knows the workers before the iterator is
    complete; `dead` finds the death later. With fork, all signals: Python drops exceptions raised in hooks of forks.
    Spawning takes seconds, and has no such hooks.
    """
    if loader._iterator is not None or not hasattr(signal, "SIGCHLD"):
        return []
    _set_SIGCHLD_handler()  # else torch would set its handler while signals are held, in place of ours
    context: Any = loader.multiprocessing_context or multiprocessing
    return signal.valid_signals() if context.get_start_method() == "fork" else [signal.SIGCHLD]


def pinned(batch: object) -> Any:
    """Copy all tensors of a batch to page-locked memory, as DataLoader's own pinning does."""
    return pin_memory(batch)  # type: ignore[no-untyped-call]


@contextmanager
def watched(loading: Loading) -> Iterator[None]:
    """Raise the death of a worker inside the context at once, as torch's RuntimeError."""
    _watch(loading)
    try:
        yield
    finally:
        _forget(loading)


def dead(loading: Loading, wait_sec: float = 0) -> list[BaseProcess]:
    """Return the workers that ended before the pass. Waits up to `wait_sec` for the first such worker."""
    return [] if loading._shutdown else _ended(loading._workers, wait_sec)


def leave(loading: Loading) -> None:
    """End the workers after a pass or a failed pass, unless they are persistent."""
    if not loading._persistent_workers:
        end(loading)


def end(loading: Loading) -> None:
    """End all workers, at once if a worker is dead. Removes the files of killed or dead workers in /dev/shm."""
    _forget(loading)
    loading._shutdown_workers()
    for worker in loading._workers:
        if worker.exitcode == 0:
            continue
        for path in _NAMES.glob(f"torch_{worker.pid}_*"):
            path.unlink(missing_ok=True)


class _DoneEvent:
    """Event at which workers end. Only this process sets it, so `is_set` needs no lock that workers share."""

    def __init__(self, loading: Loading) -> None:
        self._loading = ref(loading)
        self._shared = loading._workers_done_event
        self._workers: Sequence[BaseProcess] = loading._workers
        self._index_queues = loading._index_queues
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """End workers: kill workers that do not end soon, or all at once if a worker is dead. Ends are not reported."""
        self._is_set = True
        loading = self._loading()
        if loading is not None:
            _forget(loading)
        wait_sec = 0.0
        for queue in self._index_queues:
            _unlock(queue)
        if not _ended(self._workers):
            self._shared.set()
            for queue in self._index_queues:
                queue.put(None)  # an idle worker waits for its queue only
            wait_sec = _END_SEC
        for worker in _living(self._workers, wait_sec):
            worker.kill()


def _unlock(queue: Any) -> None:
    """Free the lock of a queue: an exception of a signal handler inside `put` of this thread may have left it taken.

    The queue's own thread takes the lock too, but never for long.
    """
    queue._notempty.acquire(timeout=_END_SEC)
    queue._notempty.release()


def _ended(workers: Sequence[BaseProcess], wait_sec: float = 0) -> list[BaseProcess]:
    # Not is_alive(): if other code has waited for the process (os.wait, psutil), is_alive() returns True forever.
    ended = wait([worker.sentinel for worker in workers], timeout=wait_sec)
    return [worker for worker in workers if worker.sentinel in ended]


def _living(workers: Sequence[BaseProcess], wait_sec: float) -> list[BaseProcess]:
    """Return the workers that have not ended after `wait_sec`. Returns earlier if all workers have ended."""
    deadline, living = time.monotonic() + wait_sec, list(workers)
    while living and (ended := _ended(living, max(0.0, deadline - time.monotonic()))):
        living = [worker for worker in living if worker not in ended]
    return living


def _watch(loading: Loading) -> None:
    if not loading._worker_pids_set:
        _set_worker_pids(id(loading), tuple(worker.pid or 0 for worker in loading._workers))
        loading._worker_pids_set = True


def _forget(loading: Loading) -> None:
    if loading._worker_pids_set:
        _remove_worker_pids(id(loading))
        loading._worker_pids_set = False


def _leave_to_parent() -> None:
    for loading in _started:
        loading._shutdown = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
