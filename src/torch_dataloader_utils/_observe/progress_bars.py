"""Progress bars on a terminal, one for each rank of this machine; needs rich."""

import fcntl
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from torch_dataloader_utils._observe.callbacks import EpochRun
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._observe.work_bar import seconds_left, time_left

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


class TerminalBars:
    """Draws on stderr at each `update`; runs no thread.

    Of several ranks with one parent process the first one draws the bars of all; the others only report their counts.
    """

    def __init__(self, run: EpochRun, console: Console | None = None) -> None:
        self._run = run
        self._board = RankBoard.open(run)
        draws = self._board is None or self._board.draws
        # Ranks that do not draw write their line more often than it is drawn, so that no bar is behind.
        self.interval_seconds = 0.2 if draws else 0.05
        self._bars: dict[int, TaskID] = {}
        self._progress: Progress | None = None
        if draws:
            self._progress = _progress(console or Console(stderr=True))
            self._progress.start()
        self.update(Metrics())

    def update(self, metrics: Metrics) -> None:
        """See ProgressDisplay."""
        if self._board is not None:
            self._board.write(metrics.rows, self._run.num_rows, metrics.decoded_bytes)
        if self._progress is None:
            return
        for rank, rows, num_rows, decoded_bytes in self._ranks(metrics):
            if rank not in self._bars:
                total = num_rows if num_rows >= 0 else None
                name = f"epoch {self._run.epoch} rank {rank}"
                self._bars[rank] = self._progress.add_task(name, total=total, rate="")
            rate = _rate(rows, num_rows, decoded_bytes, metrics.seconds)
            self._progress.update(self._bars[rank], completed=rows, rate=rate)
        self._progress.refresh()

    def close(self, metrics: Metrics, *, completed: bool) -> None:  # noqa: ARG002
        """See ProgressDisplay."""
        self.update(metrics)
        if self._progress is not None:
            self._progress.stop()
        if self._board is not None:
            self._board.close()

    def _ranks(self, metrics: Metrics) -> list[tuple[int, int, int, int]]:
        """(rank, rows, rows of the pass or -1, decoded bytes) of the ranks to draw."""
        run = self._run
        if self._board is None:
            return [(run.rank, metrics.rows, -1 if run.num_rows is None else run.num_rows, metrics.decoded_bytes)]
        lines = self._board.lines().tolist()
        return [(rank, *line[:3]) for rank, line in enumerate(lines) if line[3]]


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        TextColumn("{task.fields[rate]}"),
        console=console,
        auto_refresh=False,
    )


def _rate(rows: int, num_rows: int, decoded_bytes: int, seconds: float) -> str:
    if seconds <= 0:
        return f"{rows:,} rows"
    percent = f"{rows / num_rows:4.0%} " if num_rows > 0 else ""
    left = seconds_left(rows, num_rows if num_rows >= 0 else None, rows / seconds)
    ending = "" if left is None else f"  {time_left(left)}"
    return f"{percent}{rows:,} rows  {decoded_bytes / seconds / 1e6:.0f} MB/s{ending}"
