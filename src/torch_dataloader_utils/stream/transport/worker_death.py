"""The error for a worker process that died: which one, and what it was doing, as it noted in shared memory."""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from torch_dataloader_utils._core.block import JoinedRows, RowGroupReader
from torch_dataloader_utils._core.inventory import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._runtime.shared_memory import shared_bytes
from torch_dataloader_utils._runtime.system_limits import limit_error, limits_named
from torch_dataloader_utils.errors import LoaderError, TransformError, WorkerDiedError
from torch_dataloader_utils.stream.transport import torch_workers

if TYPE_CHECKING:
    import pyarrow as pa

_NOTE_BYTES = 1024
_READING, _BATCH = 0, 1
# Held while a thread of a worker notes. Not an attribute of the notes, which are pickled.
_lock = threading.Lock()


class Notes:
    """For each worker its process id, the row group that it reads and the batch that its functions have."""

    def __init__(self, num_workers: int) -> None:
        self._pids = shared_bytes(num_workers * torch.int64.itemsize).view(torch.int64)
        self._text = shared_bytes(num_workers * 2 * _NOTE_BYTES).view(num_workers, 2, _NOTE_BYTES)
        # In a worker, for either note: what each of its threads is doing. The last one is noted.
        self._places: tuple[list[str], list[str]] = [], []

    def reading(self, worker: int, where: str) -> AbstractContextManager[None]:
        """For the worker itself: inside, its note says that it reads `where`, of several threads the last to begin."""
        return self._noting(worker, _READING, where)

    def calling(self, worker: int, where: str) -> AbstractContextManager[None]:
        """For the worker itself: inside, its note says that functions have the batch that ends in `where`."""
        return self._noting(worker, _BATCH, where)

    @contextmanager
    def _noting(self, worker: int, kind: int, where: str) -> Iterator[None]:
        places = self._places[kind]
        with _lock:
            places.append(where)
            self._write(worker, kind, where)
        is_ending = False
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            is_ending = True
            raise
        finally:
            # These end the worker, and the note says where. After other errors it goes on with something else.
            if not is_ending:
                with _lock:
                    places.remove(where)
                    self._write(worker, kind, places[-1] if places else "")

    def has_begun(self, pid: int) -> bool:
        """Whether the worker with this process id has begun to read."""
        return bool((self._pids == pid).any())

    def of_pid(self, pid: int) -> str:
        """Worker and what it was doing, for the process with this id."""
        if not self.has_begun(pid):
            return f"A worker process (pid {pid}), before its first read"
        return self.of_worker(int((self._pids == pid).nonzero()[0]))

    def of_worker(self, worker: int) -> str:
        """Worker and what it was doing."""
        reading, batch = self._read(worker, _READING), self._read(worker, _BATCH)
        doing = [f"in a function on the batch that ends in {batch}"] if batch else []
        doing += [f"reading {reading}"] if reading else []
        what = " and ".join(doing) or "between two row groups"
        return f"Worker process {worker} (pid {int(self._pids[worker])}), {what}"

    def all(self) -> str:
        """Every worker and what it was doing."""
        return "; ".join(map(self.of_worker, range(len(self._pids))))

    def _write(self, worker: int, kind: int, where: str) -> None:
        data = where.encode()[-_NOTE_BYTES:].ljust(_NOTE_BYTES, b"\0")
        self._text.numpy()[worker, kind] = np.frombuffer(data, dtype=np.uint8)
        self._pids[worker] = os.getpid()

    def _read(self, worker: int, kind: int) -> str:
        data: bytes = self._text.numpy()[worker, kind].tobytes()
        return data.rstrip(b"\0").decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotingReader:
    """A reader that notes which row group it reads."""

    reader: RowGroupReader
    notes: Notes
    worker: int

    def read_columns(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Generator["pa.RecordBatch"]:
        """See RowGroupReader."""
        with self.notes.reading(self.worker, task.where):
            yield from self.reader.read_columns(task, rows)

    def read_together(self, tasks: Sequence[RowGroupTask]) -> JoinedRows:
        """See RowGroupReader."""
        more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
        with self.notes.reading(self.worker, f"{tasks[0].where}{more}"):
            return self.reader.read_together(tasks)


T = TypeVar("T")

_END: Any = object()
# After a connection broke: how long to wait for a worker to have ended, if that is why.
_DEATH_SEC = 2.0


def responses_of(loader: DataLoader[T], notes: Notes, prepare: Callable[[bool], None]) -> Generator[T]:
    """The responses of one pass over a loader.

    After any of the errors below all workers have ended, and the next pass starts new ones; also after an exception
    that a signal handler raised in the trainer while it waited (KeyboardInterrupt, for example). Workers that are not
    persistent have ended whenever this is closed.

    prepare: called before the pass begins, with whether workers are new, which are started after that.

    Raises:
        WorkerDiedError: a worker died, or none responded within DataLoader's `timeout`; it says what they were doing.
        TransformError: what a worker sent cannot be unpickled.
        StoreError: a limit of the system (ulimit -n, -f) allows no more workers, or batches of them.
    """
    loading = _started(loader, notes, prepare)
    try:
        while True:
            if gone := torch_workers.dead(loading):
                torch_workers.end(loading)
                raise _death(gone, f"it ended with exit code {gone[0].exitcode}", notes)
            response = _next_response(loading, notes)
            if response is _END:
                return
            yield response
    finally:
        torch_workers.leave(loading)


def _started(loader: DataLoader[T], notes: Notes, prepare: Callable[[bool], None]) -> Any:
    earlier = torch_workers.persistent(loader)
    if earlier is None:
        with limits_named("Worker processes could not be started"):
            prepare(True)
            return torch_workers.start(loader)
    # If this is interrupted they end, because they may have requests, whose responses would come in the next pass.
    with _failures_named(earlier, notes):
        prepare(False)
        return torch_workers.start(loader)


def _next_response(loading: Any, notes: Notes) -> Any:
    with _failures_named(loading, notes), torch_workers.watched(loading):
        return next(loading, _END)


@contextmanager
def _failures_named(loading: Any, notes: Notes) -> Iterator[None]:
    """Inside, an error ends all workers and is raised as `responses_of` says, but not one that a worker raised."""
    try:
        yield
    except BaseException as error:
        if _was_raised_in_worker(error):
            raise
        named = _named(error, loading, notes)
        # A message may have been read in part, or lost: what comes next would be wrong.
        torch_workers.end(loading)
        if named is None:
            raise
        raise named from error


def _named(error: BaseException, loading: Any, notes: Notes) -> LoaderError | None:
    """The error to raise in the place of this one; None for one that is not about workers."""
    text = str(error).strip().rstrip(". ")
    if "DataLoader timed out" in text:
        return WorkerDiedError(
            f"No worker process answered in time ({text}). {notes.all()}. Raise timeout=, or find out what it waits on."
        )
    if isinstance(error, RuntimeError | OSError) and (limit := limit_error(error, "No batch of a worker process came")):
        return limit
    if isinstance(error, RuntimeError | EOFError | OSError):
        # A connection breaks a moment before its process counts as ended.
        gone = torch_workers.dead(loading, wait_sec=_DEATH_SEC)
        return _death(gone, text, notes) if gone else None
    if not isinstance(error, Exception) or _was_raised_by_signal(error):
        return None
    return TransformError(  # what is unpickled here runs code of the user: any error
        f"A worker process sent a batch that cannot be unpickled here: {type(error).__name__}: {error}. A "
        "transform or collate_fn returned an object whose class does not restore it (__setstate__, __reduce__): "
        "correct that, or read with num_workers=0."
    )


def _was_raised_in_worker(error: BaseException) -> bool:
    """Whether a worker, which goes on, raised this, and torch sent it here."""
    return " in DataLoader worker process " in str(error)


def _was_raised_by_signal(error: BaseException) -> bool:
    """Whether a signal handler of this process raised this: it may run in the middle of anything."""
    handlers = {getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _death(workers: Sequence[BaseProcess], text: str, notes: Notes) -> WorkerDiedError:
    who = "; ".join(notes.of_pid(worker.pid or 0) for worker in workers)
    if workers[0].exitcode == 0:
        # An interrupted worker of torch exits so and says nothing, for most often the trainer is interrupted too.
        return WorkerDiedError(
            f"{who}: it was interrupted (SIGINT, as Ctrl-C sends it to all processes, a KeyboardInterrupt or "
            "sys.exit()). Restart from the last state. If the trainer is to go on after Ctrl-C, let workers ignore it: "
            "worker_init_fn=..., with signal.signal(signal.SIGINT, signal.SIG_IGN) in it."
        )
    if workers[0].exitcode == 1 and not notes.has_begun(workers[0].pid or 0):
        return WorkerDiedError(
            f"{who}: {text}. Its own error is on stderr. Where workers are spawned or come from a forkserver, each "
            'imports your program: all that it does belongs under `if __name__ == "__main__":`.'
        )
    return WorkerDiedError(
        f"{who}: {text}. Restart from the last state. If the kernel killed it for its memory, lower num_workers or "
        "ahead_bytes of decoding=; if it crashed, read that row group in a process of its own."
    )
