"""A training process for test_death: it reads with workers, says what it sees, and dies in the way it is told.

python -m tests.faults.doomed_job PATH START_METHOD HOW...

how, of a worker in a transform: killed | locked | exit | segfault | interrupted | hangs | raises
how, of all workers at once: shot (by the trainer) | shot-after (after a whole pass of persistent ones)
how, of nobody: waits
"""

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

from psutil import Process, pid_exists, wait_procs
from torch.utils.data import get_worker_info

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import LoaderError


class Doom:
    """A transform that ends its process at row 150."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, batch: Any) -> Any:
        if 150 not in batch["row"].tolist() or get_worker_info() is None:
            return batch
        match self.how:
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "locked":
                frame: Any = sys._getframe()
                while "done_event" not in frame.f_locals:
                    frame = frame.f_back
                # What torch's worker loop does for a moment at every batch, to see whether it is to end.
                frame.f_locals["done_event"]._cond.acquire()
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "interrupted":
                signal.raise_signal(signal.SIGINT)
            case "raises":
                raise ValueError("no good")
            case "hangs":
                signal.pause()
        return batch


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def run(path: str, method: str, how: str, timeout: int = 3) -> None:
    """One pass, whose outcome is one line."""
    loader, _ = StructuredDataset.create_dataloader(
        path,
        batch_size=10,
        num_workers=2,
        transform=None if how.startswith("shot") else Doom(how),
        persistent_workers=how == "shot-after",
        timeout=timeout if how == "hangs" else 0,
        multiprocessing_context=method,
    )
    rows: list[int] = []
    workers: list[int] = []
    try:
        for batch in loader:
            workers = workers or [child.pid for child in Process().children(recursive=True)]
            rows += batch["row"].tolist()
            if how == "waits" and len(rows) == 50:
                say(pid=os.getpid(), children=workers)
                # A signal that comes just before one waits is heard after the wait.
                while True:
                    time.sleep(0.1)
            if how == "shot" and len(rows) == 30:
                shoot(workers)
        if how == "shot-after":
            shoot(workers)
            rows = [row for batch in loader for row in batch["row"].tolist()]
            say(how=how, pid=os.getpid(), rows=rows, workers=workers)
    except LoaderError as error:
        if how == "hangs" and "1.parquet row group 1" not in str(error) and timeout < 600:
            # On a busy machine it was too slow before it came to row 150.
            return run(path, method, how, 4 * timeout)
        told = {"how": how, "error": type(error).__name__, "text": str(error), "workers": workers}
        say(**told, pid=os.getpid(), rows=rows, state=loader.state_dict())


def shoot(workers: list[int]) -> None:
    """Kills them, and sees them end."""
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    wait_procs([Process(worker) for worker in workers if pid_exists(worker)], timeout=20)


if __name__ == "__main__":
    for fate in sys.argv[3:]:
        run(sys.argv[1], sys.argv[2], fate)
