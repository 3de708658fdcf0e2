"""A training process for test_death: it reads with workers, says what it sees, and dies in the way it is told.

python -m tests.faults.doomed_job PATH START_METHOD HOW...      how: killed | exit | segfault | hangs | raises | waits
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

from psutil import Process
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
            case "exit":
                os._exit(3)
            case "segfault":
                ctypes.string_at(0)
            case "raises":
                raise ValueError("no good")
            case "hangs":
                signal.pause()
        return batch


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def run(path: str, method: str, how: str) -> None:
    """One pass, whose outcome is one line."""
    loader, _ = StructuredDataset.create_dataloader(
        path,
        batch_size=10,
        num_workers=2,
        transform=Doom(how),
        timeout=(3 if method == "fork" else 20) if how == "hangs" else 0,
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
                signal.pause()
    except LoaderError as error:
        told = {"how": how, "error": type(error).__name__, "text": str(error), "workers": workers}
        say(**told, rows=rows, state=loader.state_dict())


if __name__ == "__main__":
    for fate in sys.argv[3:]:
        run(sys.argv[1], sys.argv[2], fate)
