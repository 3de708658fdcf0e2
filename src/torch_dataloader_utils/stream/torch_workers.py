"""The worker processes of torch's DataLoader, where what it offers is not enough.

Private parts of torch's loader are touched here and nowhere else; what its frames tell is for `callers`. The workers of
its iterator end when that dies itself, which is when nobody refers to it any more: `leave` ends them with their pass.
An iterator that a fork copied would give them work and end them, as if they were the child's: there it counts as ended.
When they end, it waits five seconds for each that is busy, perhaps with a store that does not answer: here one for all.
An interrupt in the middle of a fork is lost, or leaves a worker that nobody knows of: it is held until all have begun.
And its way with a worker that dies has two faults:

- its handler of SIGCHLD raises in whatever the trainer's thread does at that moment, a forward pass or a checkpoint. So
  it knows of the workers only while an answer is waited for (then it must: a worker that dies in the middle of a
  message would be waited for without end), and does not run while they are started.
- to look at the event that ends the workers, and to set it, it takes a lock that they take too: it waits for ever if
  the dead one held it.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

from torch._C import _remove_worker_pids, _set_worker_pids
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.signal_handling import _set_SIGCHLD_handler

from torch_dataloader_utils._runtime.held_signals import held

_NAMES = Path("/dev/shm")  # noqa: S108 - not ours to choose

# For an idle worker to end; the result of a busy one is not wanted any more.
_END_SEC = 1.0

_started: WeakSet[Any] = WeakSet()


def persistent(loader: DataLoader[Any]) -> Any:
    """The iterator of an earlier pass, whose workers go on in the next one; None if there is none, or one of them died.

    The next thing to do is `start`: from here on the death of a worker is raised.
    """
    earlier: Any = loader._iterator
    if earlier is None:
        return None
    if dead(earlier):
        end(earlier)
    if earlier._shutdown:
        loader._iterator = None
        return None
    _watch(earlier)
    return earlier


def start(loader: DataLoader[Any]) -> Any:
    """An iterator over the loader: that of `persistent` workers, which are told of the new pass, or a new one."""
    with held(*_signals_to_hold(loader)) as deliver:
        loading: Any = iter(loader)
        if not isinstance(loading._workers_done_event, _DoneEvent):
            loading._workers_done_event = _DoneEvent(loading)
        _forget(loading)
        _started.add(loading)
    try:
        deliver()
    except BaseException:
        end(loading)  # which the traceback would keep
        raise
    return loading


def _signals_to_hold(loader: DataLoader[Any]) -> list[int]:
    """The signals whose handlers should not run while this loader starts workers.

    The death of a worker: torch's handler would raise, knowing of the workers before all is set up; `dead` tells of it.
    Ctrl-C while processes are forked: Python drops what is raised in hooks of forks. Spawning takes seconds, and has no
    such moment.
    """
    if loader._iterator is not None or not hasattr(signal, "SIGCHLD"):
        return []
    _set_SIGCHLD_handler()  # else torch would set it inside, in the place of ours
    context: Any = loader.multiprocessing_context or multiprocessing
    return [signal.SIGCHLD, signal.SIGINT] if context.get_start_method() == "fork" else [signal.SIGCHLD]


def pinned(batch: Any) -> Any:
    """The batch in page-locked memory, with all that is in it, as a loader's own thread for that pins it."""
    return pin_memory(batch)  # type: ignore[no-untyped-call]


@contextmanager
def watched(loading: Any) -> Iterator[None]:
    """Inside, the death of a worker is raised as torch's RuntimeError at once."""
    _watch(loading)
    try:
        yield
    finally:
        _forget(loading)


def dead(loading: Any, wait_sec: float = 0) -> list[BaseProcess]:
    """Workers that ended before the loading did; waits so long for the first one to end."""
    return [] if loading._shutdown else _ended(loading._workers, wait_sec)


def leave(loading: Any) -> None:
    """After a pass, however it went: workers that are not persistent end, whoever else refers to the iterator."""
    if not loading._persistent_workers:
        end(loading)


def end(loading: Any) -> None:
    """Ends all workers; at once, if one of them is dead. What torch had just named in /dev/shm then is removed."""
    _forget(loading)
    loading._shutdown_workers()
    for worker in loading._workers:
        if worker.exitcode == 0:
            continue
        for path in _NAMES.glob(f"torch_{worker.pid}_*"):
            path.unlink(missing_ok=True)


class _DoneEvent:
    """Tells workers to end. Only the trainer's process sets it, so nobody else need be asked whether it is set."""

    def __init__(self, loading: Any) -> None:
        self._loading = ref(loading)
        self._shared = loading._workers_done_event
        self._workers: Sequence[BaseProcess] = loading._workers
        self._index_queues = loading._index_queues
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Workers that do not end soon are killed; if one of them is dead, at once. That is no death to be told of."""
        self._is_set = True
        loading = self._loading()
        if loading is not None:
            _forget(loading)
        wait_sec = 0.0
        if not _ended(self._workers):
            self._shared.set()
            for queue in self._index_queues:
                queue.put(None)  # an idle worker looks at nothing else
            wait_sec = _END_SEC
        for worker in _living(self._workers, wait_sec):
            worker.kill()


def _ended(workers: Sequence[BaseProcess], wait_sec: float = 0) -> list[BaseProcess]:
    # Not is_alive(), which takes a process that somebody else has waited for (os.wait, psutil) to live for ever.
    ended = wait([worker.sentinel for worker in workers], timeout=wait_sec)
    return [worker for worker in workers if worker.sentinel in ended]


def _living(workers: Sequence[BaseProcess], wait_sec: float) -> list[BaseProcess]:
    """Those that have not ended after so long; waits no longer than it takes all of them to end."""
    deadline, living = time.monotonic() + wait_sec, list(workers)
    while living and (ended := _ended(living, max(0.0, deadline - time.monotonic()))):
        living = [worker for worker in living if worker not in ended]
    return living


def _watch(loading: Any) -> None:
    if not loading._worker_pids_set:
        _set_worker_pids(id(loading), tuple(worker.pid for worker in loading._workers))
        loading._worker_pids_set = True


def _forget(loading: Any) -> None:
    if loading._worker_pids_set:
        _remove_worker_pids(id(loading))
        loading._worker_pids_set = False


def _leave_to_parent() -> None:
    for loading in _started:
        loading._shutdown = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
