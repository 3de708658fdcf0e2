"""Worker processes that die: which one, what it was doing, and what it leaves behind.

A dead worker cannot say. So each notes what it reads in shared memory, where the trainer's process finds it.
"""

import os
import shutil
import signal
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import util
from multiprocessing.process import BaseProcess, current_process
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from torch_dataloader_utils._core.block import RowGroupReader, RowsTogether
from torch_dataloader_utils._core.inventory import RowGroupTask
from torch_dataloader_utils.errors import TransformError, WorkerDiedError
from torch_dataloader_utils.stream import torch_workers
from torch_dataloader_utils.stream.shared_memory import shared_bytes

T = TypeVar("T")

_NOTE_BYTES = 1024
_READING, _BATCH = 0, 1
_END: Any = object()
# Held by one thread of a worker while it notes. Not in the notes themselves, since those are pickled.
_noted = threading.Lock()
# Process id and multiprocessing's directory for sockets, of the process that made it.
_own_directory: tuple[int, str] | None = None
# So long after a broken connection a worker is found dead, if that is why.
_DEATH_SEC = 2.0


class Notes:
    """For each worker its process id and two notes, in shared memory."""

    def __init__(self, num_workers: int) -> None:
        self._pids = shared_bytes(num_workers * torch.int64.itemsize).view(torch.int64)
        self._text = shared_bytes(num_workers * 2 * _NOTE_BYTES).view(num_workers, 2, _NOTE_BYTES)
        # In a worker, what its threads are at, for either note.
        self._places: tuple[list[str], list[str]] = [], []

    def reading(self, worker: int, where: str) -> AbstractContextManager[None]:
        """Notes, in the worker, that it reads `where`; of threads that read, the last one to begin is noted."""
        return self._noting(worker, _READING, where)

    def calling(self, worker: int, where: str) -> AbstractContextManager[None]:
        """Notes, in the worker, that it runs the user's functions on a batch that ends in `where`."""
        return self._noting(worker, _BATCH, where)

    @contextmanager
    def _noting(self, worker: int, kind: int, where: str) -> Iterator[None]:
        places = self._places[kind]
        with _noted:
            places.append(where)
            self._write(worker, kind, where)
        is_ending = False
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            is_ending = True
            raise
        finally:
            # Of a worker that these end, the note is what is known; one that goes on after an error has another place.
            if not is_ending:
                with _noted:
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

    def read_columns(self, task: RowGroupTask, stop_row: int | None = None) -> Generator[Any]:
        """See RowGroupReader."""
        with self.notes.reading(self.worker, task.where):
            yield from self.reader.read_columns(task, stop_row)

    def read_together(self, tasks: Sequence[RowGroupTask]) -> RowsTogether | None:
        """See RowGroupReader."""
        more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
        with self.notes.reading(self.worker, f"{tasks[0].where}{more}"):
            return self.reader.read_together(tasks)


def answers_of(loader: DataLoader[T], notes: Notes) -> Generator[T]:
    """One pass over a loader; a dead or silent worker is an error that says which one it is and what it was doing.

    After a death the other workers are ended too, and the next pass has new ones; likewise after what a signal handler
    of the trainer raised meanwhile (KeyboardInterrupt, say). Once this is closed, workers that are not persistent have
    ended.

    Raises:
        WorkerDiedError: from torch's own RuntimeError, or from what breaks when a worker ends in the middle of a batch.
        TransformError: what a worker sent cannot be unpickled.
    """
    loading = _started(loader, notes)
    try:
        while True:
            if gone := torch_workers.dead(loading):
                torch_workers.end(loading)
                raise _death(gone, f"it ended with exit code {gone[0].exitcode}", notes)
            answer = _next_answer(loading, notes)
            if answer is _END:
                return
            yield answer
    finally:
        torch_workers.leave(loading)


def _started(loader: DataLoader[T], notes: Notes) -> Any:
    earlier = torch_workers.persistent(loader)
    if earlier is None:
        return torch_workers.start(loader)
    # Interrupted while they are told of the new pass, they end: their answers would come in the middle of the next.
    with _failures_named(earlier, notes):
        return torch_workers.start(loader)


def _next_answer(loading: Any, notes: Notes) -> Any:
    with _failures_named(loading, notes), torch_workers.watched(loading):
        return next(loading, _END)


@contextmanager
def _failures_named(loading: Any, notes: Notes) -> Iterator[None]:
    """Inside, what a worker did not raise itself ends all of them, and is told as `answers_of` says."""
    try:
        yield
    except BaseException as error:
        if _was_raised_in_worker(error):
            raise
        named = _named(error, loading, notes)
        # A message may have been read in part, or been lost.
        torch_workers.end(loading)
        if named is None:
            raise
        raise named from error


def _named(error: BaseException, loading: Any, notes: Notes) -> WorkerDiedError | TransformError | None:
    text = str(error).strip().rstrip(". ")
    if "DataLoader timed out" in text:
        return WorkerDiedError(
            f"No worker process answered in time ({text}). {notes.all()}. Raise timeout=, or find out what it waits on."
        )
    if isinstance(error, RuntimeError | EOFError | OSError):
        # A batch that breaks off says so before the kernel says who is gone.
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
    """Whether torch says that a worker, which lives, raised this and sent it here."""
    return " in DataLoader worker process " in str(error)


def _was_raised_by_signal(error: BaseException) -> bool:
    """Whether a signal handler of this process raised this, in whatever was being done."""
    handlers = {getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _death(workers: Sequence[BaseProcess], text: str, notes: Notes) -> WorkerDiedError:
    told = "; ".join(notes.of_pid(worker.pid or 0) for worker in workers)
    if workers[0].exitcode == 0:
        # torch's worker loop ends so, without a word, since the same Ctrl-C interrupts the trainer as a rule.
        return WorkerDiedError(
            f"{told}: it was interrupted (SIGINT, as Ctrl-C sends it to all processes, a KeyboardInterrupt or "
            "sys.exit()). Restart from the last state. If the trainer is to go on after Ctrl-C, let workers ignore it: "
            "worker_init_fn=..., with signal.signal(signal.SIGINT, signal.SIG_IGN) in it."
        )
    if workers[0].exitcode == 1 and not notes.has_begun(workers[0].pid or 0):
        return WorkerDiedError(
            f"{told}: {text}. Its own error is on stderr. Where workers are spawned or come from a forkserver, each "
            'imports your program: all that it does belongs under `if __name__ == "__main__":`.'
        )
    return WorkerDiedError(
        f"{told}: {text}. Restart from the last state. If the kernel killed it for its memory, lower num_workers or "
        "decode_ahead_bytes; if it crashed, read that row group in a process of its own."
    )


def share_temporary_directory() -> str:
    """Makes multiprocessing's directory for sockets here, in the trainer, so that a killed worker leaves none.

    Each worker would make its own otherwise, when it first shares a tensor, and remove it at its own exit. It is this
    process's alone: what a child inherits is its parent's, and must not go with the child. Another one is made if it is
    not there any more, as where /tmp is cleaned from time to time.
    """
    global _own_directory
    config = cast("Any", current_process())._config
    present = config.get("tempdir")
    if _own_directory != (os.getpid(), present) or not Path(present).is_dir():
        config["tempdir"] = None
        _own_directory = os.getpid(), util.get_temp_dir()
    return _own_directory[1]


def sweep_if_orphaned(directory: str) -> None:
    """In a worker, early: if its parent is gone by the time it ends, it removes the trainer's directory.

    The parent is the trainer or, under forkserver, a server that ends with the trainer. A killed trainer may still be
    there as a zombie, so its own process id would say nothing.
    """
    parent = os.getppid()

    def sweep() -> None:
        if os.getppid() != parent:
            shutil.rmtree(directory, ignore_errors=True)

    util.Finalize(None, sweep, exitpriority=-200)
