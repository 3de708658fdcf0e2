"""Raise the error for a worker process that died: it names the worker and its last work, noted in shared memory."""

import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from torch_dataloader_utils._core.block import JoinedRows, ReadPart, RowGroupReader
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._runtime.shared_memory import shared_bytes
from torch_dataloader_utils._runtime.system_limits import limit_error, limits_named
from torch_dataloader_utils.errors import LoaderError, TransformError, WorkerDiedError, in_words
from torch_dataloader_utils.stream.transport import torch_workers

_NOTE_BYTES = 1024
_READING, _BATCH = 0, 1
# Held while a thread of a worker writes a note. Not an attribute of `Notes`, because notes are pickled.
_lock = threading.Lock()


class Notes:
    """Notes of each worker: its process id, the row group that it reads, and the batch in the user's functions."""

    def __init__(self, num_workers: int) -> None:
        self._pids = shared_bytes(num_workers * torch.int64.itemsize).view(torch.int64)
        self._text = shared_bytes(num_workers * 2 * _NOTE_BYTES).view(num_workers, 2, _NOTE_BYTES)
        # In a worker, for each kind of note: the place of each thread. The place of the last thread is noted.
        self._places: tuple[list[str], list[str]] = [], []

    def reading(self, worker: int, where: str) -> AbstractContextManager[None]:
        """Note, inside the context, that this worker reads `where`. Of several threads, the last to begin is noted."""
        return self._noting(worker, _READING, where)

    def calling(self, worker: int, where: str) -> AbstractContextManager[None]:
        """Note, inside the context, that functions of this worker have the batch that ends in `where`."""
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
            # An interrupt ends the worker, and the note stays. After other errors the worker goes on with other work.
            if not is_ending:
                with _lock:
                    places.remove(where)
                    self._write(worker, kind, places[-1] if places else "")

    def has_begun(self, pid: int) -> bool:
        """Return whether the worker with this process id has begun to read."""
        return bool((self._pids == pid).any())

    def of_pid(self, pid: int) -> str:
        """Describe the worker with this process id and its work."""
        if not self.has_begun(pid):
            return f"A worker process (pid {pid}), before its first read"
        return self.of_worker(int((self._pids == pid).nonzero()[0]))

    def of_worker(self, worker: int) -> str:
        """Describe a worker and its work."""
        reading, batch = self._read(worker, _READING), self._read(worker, _BATCH)
        doing = [f"in a function on the batch that ends in {batch}"] if batch else []
        doing += [f"reading {reading}"] if reading else []
        what = " and ".join(doing) or "between two row groups"
        return f"Worker process {worker} (pid {int(self._pids[worker])}), {what}"

    def all(self) -> str:
        """Describe every worker and its work."""
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
    """Reader that notes the row group that it reads."""

    reader: RowGroupReader
    notes: Notes
    worker: int

    def read_columns(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Generator[ReadPart]:
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
# Time to wait, after a connection broke, for the end of a worker that may be the cause.
_DEATH_SEC = 2.0


def responses_of(loader: DataLoader[T], notes: Notes, prepare: Callable[[bool], None]) -> Generator[T]:
    """Yield the responses of one pass over a loader.

    After any of the errors below, all workers have ended, and the next pass starts new workers. The same holds after an
    exception that a signal handler raised in the trainer while it waited (KeyboardInterrupt, for example). Workers that
    are not persistent have ended when this generator is closed.

    prepare: function that is called before the pass begins; its argument is true if new workers will be started then.

    Raises:
        WorkerDiedError: a worker died, or no worker responded within DataLoader's `timeout`. The message describes the
            work of the workers.
        TransformError: a batch from a worker cannot be unpickled.
        StoreError: a limit of the system (ulimit -n, -f) allows no more workers, or no more batches of workers.
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


def _started(loader: DataLoader[T], notes: Notes, prepare: Callable[[bool], None]) -> torch_workers.Loading:
    earlier = torch_workers.persistent(loader)
    if earlier is None:
        with limits_named("Worker processes could not be started"):
            prepare(True)
            return torch_workers.start(loader)
    # If this is interrupted, workers end: they may have requests, and the responses would come in the next pass.
    with _failures_named(earlier, notes):
        prepare(False)
        return torch_workers.start(loader)


def _next_response(loading: torch_workers.Loading, notes: Notes) -> Any:
    with _failures_named(loading, notes), torch_workers.watched(loading):
        return next(loading, _END)


@contextmanager
def _failures_named(loading: torch_workers.Loading, notes: Notes) -> Iterator[None]:
    """End all workers after an error inside the context, and raise it as `responses_of` says.

    An error that a worker raised is raised as it is, and the workers go on.
    """
    try:
        yield
    except BaseException as error:
        if _was_raised_in_worker(error):
            raise
        named = _named(error, loading, notes)
        # A message may have been read in part, or lost: the next messages would be wrong.
        torch_workers.end(loading)
        if named is None:
            raise
        raise named from error


def _named(error: BaseException, loading: torch_workers.Loading, notes: Notes) -> LoaderError | None:
    """Return the error to raise in place of `error`; None if `error` is not about workers."""
    text = str(error).strip().rstrip(". ")
    if "DataLoader timed out" in text:
        return WorkerDiedError(
            f"No worker process answered in time ({text}). {notes.all()}. Raise timeout=, or find out what the workers "
            "wait for."
        )
    if isinstance(error, RuntimeError | OSError) and (limit := limit_error(error, "No batch of a worker process came")):
        return limit
    if isinstance(error, RuntimeError | EOFError | OSError):
        # A connection breaks a moment before its process counts as ended.
        gone = torch_workers.dead(loading, wait_sec=_DEATH_SEC)
        return _death(gone, text, notes) if gone else None
    if not isinstance(error, Exception) or _was_raised_by_signal(error):
        return None
    return TransformError(  # unpickling runs code of the user: any error
        f"A worker process sent a batch that cannot be unpickled here: {in_words(error)} A "
        "transform or collate_fn returned an object that its class cannot restore (__setstate__, __reduce__): "
        "correct the class, or read with num_workers=0."
    )


def _was_raised_in_worker(error: BaseException) -> bool:
    """Return whether a worker raised this error and torch sent it here; then the worker goes on."""
    return " in DataLoader worker process " in str(error)


def _was_raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler of this process raised this error. A handler may run at any time."""
    handlers = {getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _death(workers: Sequence[BaseProcess], text: str, notes: Notes) -> WorkerDiedError:
    who = "; ".join(notes.of_pid(worker.pid or 0) for worker in workers)
    if workers[0].exitcode == 0:
        # An interrupted worker of torch exits with code 0 and no message: usually the trainer is interrupted too.
        return WorkerDiedError(
            f"{who}: it was interrupted (SIGINT, as Ctrl-C sends it to all processes, a KeyboardInterrupt or "
            "sys.exit()). Restart from the last state. If the trainer is to go on after Ctrl-C, let workers ignore "
            "SIGINT: worker_init_fn=..., with signal.signal(signal.SIGINT, signal.SIG_IGN) in it."
        )
    if workers[0].exitcode == 1 and not notes.has_begun(workers[0].pid or 0):
        return WorkerDiedError(
            f"{who}: {text}. Its own error is on stderr. Workers that are spawned or come from a forkserver import "
            'your program: put all code that runs into `if __name__ == "__main__":`.'
        )
    return WorkerDiedError(
        f"{who}: {text}. Restart from the last state. If the kernel killed it for its memory, lower num_workers or "
        "ahead_bytes of decoding=; if it crashed, read that row group in a separate process."
    )
