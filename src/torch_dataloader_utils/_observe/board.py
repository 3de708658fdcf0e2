"""The progress of several ranks on one machine, in one small shared file, so that one of them can draw all bars.

Each rank owns one line of the file and writes nothing else; the rank that holds the file's lock reads all lines. Ranks
find each other by their common parent process (a launcher such as torchrun) and by what they read. The file is not
mapped: on a full disk, to write to a map ends the process.
"""

import fcntl
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
_LINE_BYTES = 4 * 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankBoard:
    """One pass of all ranks of this machine. draws: whether this rank draws."""

    path: Path
    descriptor: int
    rank: int
    num_ranks: int
    draws: bool

    @classmethod
    def open(cls, run: EpochRun) -> "RankBoard | None":
        """The board of this pass; None where there is no other rank to share it with, or no way to."""
        if run.num_ranks == 1:
            return None
        name = f"tdu-progress-{os.getuid()}-{os.getppid()}-{run.fingerprint[:12]}-{run.num_ranks}-{run.epoch}"
        path = Path(tempfile.gettempdir()) / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        return cls(path=path, descriptor=descriptor, rank=run.rank, num_ranks=run.num_ranks, draws=_lock(descriptor))

    def lines(self) -> Lines:
        """The lines of all ranks, int64 [num_ranks, 4]; zeros of those that have written none."""
        written = os.pread(self.descriptor, self.num_ranks * _LINE_BYTES, 0)
        return np.frombuffer(written.ljust(self.num_ranks * _LINE_BYTES, b"\0"), np.int64).reshape(self.num_ranks, -1)

    def write(self, rows: int, num_rows: int | None, decoded_bytes: int) -> None:
        """Write this rank's line; on a full disk the bar stands still."""
        line = np.array([rows, -1 if num_rows is None else num_rows, decoded_bytes, 1], dtype=np.int64)
        with suppress(OSError):
            os.pwrite(self.descriptor, line.tobytes(), self.rank * _LINE_BYTES)

    def close(self) -> None:
        """Leave the board; its file goes with the rank that draws."""
        if self.draws:
            with suppress(OSError):
                self.path.unlink()
        os.close(self.descriptor)


def _lock(descriptor: int) -> bool:
    """Whether this process is the first to lock the file; the lock ends with the process."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
