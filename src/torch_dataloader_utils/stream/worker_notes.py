"""What each worker process is doing, noted in shared memory: the trainer reads it there when a worker has died."""

import os
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_dataloader_utils._core.block import RowGroupReader, RowsTogether
from torch_dataloader_utils._core.inventory import RowGroupTask
from torch_dataloader_utils.stream.shared_memory import shared_bytes

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
            # These end the worker, and the note is what tells where. After other errors it goes on with something else.
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

    def read_columns(self, task: RowGroupTask, stop_row: int | None = None) -> Generator[Any]:
        """See RowGroupReader."""
        with self.notes.reading(self.worker, task.where):
            yield from self.reader.read_columns(task, stop_row)

    def read_together(self, tasks: Sequence[RowGroupTask]) -> RowsTogether | None:
        """See RowGroupReader."""
        more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
        with self.notes.reading(self.worker, f"{tasks[0].where}{more}"):
            return self.reader.read_together(tasks)
