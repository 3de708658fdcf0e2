"""The progress of several ranks on one machine, in one small shared file, so that one of them can draw all bars.

Each rank owns one line of the file and writes nothing else; the rank that holds the file's lock reads all lines. Ranks
find each other by their common parent process (a launcher such as torchrun) and by what they read.
"""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._observe.callbacks import EpochRun

Lines = npt.NDArray[np.int64]

# rows received, rows of the pass (-1: not known), bytes decoded, 1 while it is shown
_FIELDS = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankBoard:
    """One pass of all ranks of this machine. lines: int64 [num_ranks, 4]. draws: whether this rank draws."""

    path: Path
    descriptor: int
    lines: Lines
    rank: int
    draws: bool

    @classmethod
    def open(cls, run: EpochRun) -> "RankBoard | None":
        """The board of this pass; None where there is no other rank to share it with, or no way to."""
        if run.num_ranks == 1 or not hasattr(os, "getuid"):
            return None
        name = f"tdu-progress-{os.getuid()}-{os.getppid()}-{run.fingerprint[:12]}-{run.num_ranks}-{run.epoch}"
        path = Path(tempfile.gettempdir()) / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        os.ftruncate(descriptor, run.num_ranks * _FIELDS * 8)
        with os.fdopen(os.dup(descriptor), "r+b") as file:
            lines = np.memmap(file, dtype=np.int64, mode="r+", shape=(run.num_ranks, _FIELDS))
        return cls(path=path, descriptor=descriptor, lines=lines, rank=run.rank, draws=_lock(descriptor))

    def write(self, rows: int, num_rows: int | None, decoded_bytes: int) -> None:
        """Write this rank's line."""
        self.lines[self.rank] = (rows, -1 if num_rows is None else num_rows, decoded_bytes, 1)

    def close(self) -> None:
        """Leave the board; its file goes with the rank that draws."""
        if self.draws:
            with suppress(OSError):
                self.path.unlink()
        os.close(self.descriptor)


def _lock(descriptor: int) -> bool:
    """Whether this process is the first to lock the file; the lock ends with the process."""
    import fcntl  # not on every system

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
