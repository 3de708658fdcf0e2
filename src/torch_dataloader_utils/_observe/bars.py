"""Progress bars on a terminal, one for each rank of this machine; needs rich."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from torch_dataloader_utils._observe.board import RankBoard
from torch_dataloader_utils._observe.callbacks import EpochRun
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._observe.time_left import seconds_left, time_left


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
                self._bars[rank] = self._progress.add_task(name, total=total, pace="")
            pace = _pace(rows, num_rows, decoded_bytes, metrics.seconds)
            self._progress.update(self._bars[rank], completed=rows, pace=pace)
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
        TextColumn("{task.fields[pace]}"),
        console=console,
        auto_refresh=False,
    )


def _pace(rows: int, num_rows: int, decoded_bytes: int, seconds: float) -> str:
    if seconds <= 0:
        return f"{rows:,} rows"
    share = f"{rows / num_rows:4.0%} " if num_rows > 0 else ""
    left = seconds_left(rows, num_rows if num_rows >= 0 else None, rows / seconds)
    ending = "" if left is None else f"  {time_left(left)}"
    return f"{share}{rows:,} rows  {decoded_bytes / seconds / 1e6:.0f} MB/s{ending}"
