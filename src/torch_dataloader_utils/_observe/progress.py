"""`show_progress=True`: bars on a terminal and in a notebook, log lines elsewhere."""

import logging
import sys
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any, Protocol

from torch_dataloader_utils._observe.callbacks import EpochRun, LoaderCallback
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._observe.work_bar import seconds_left, time_left

logger = logging.getLogger("torch_dataloader_utils.progress")


class ProgressDisplay(Protocol):
    """Shows one pass. interval_seconds: how often it wants updates."""

    interval_seconds: float

    def update(self, metrics: Metrics) -> None:
        """Show where the pass stands."""

    def close(self, metrics: Metrics, *, completed: bool) -> None:
        """Show where the pass ended, for the last time."""


class ProgressReporter(LoaderCallback):
    """The callback for `show_progress`: chooses a display at the start of a pass, and updates it at intervals."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._display: ProgressDisplay | None = None
        self._due = 0.0

    def on_epoch_start(self, run: EpochRun) -> None:
        """See LoaderCallback."""
        self._display = choose_display(run, self._interval_seconds)
        self._due = monotonic() + self._display.interval_seconds

    def on_batch(self, run: EpochRun, batch: Any) -> None:  # noqa: ARG002
        """See LoaderCallback. Only reads the clock unless the display is due."""
        now = monotonic()
        if now >= self._due and self._display is not None:
            self._due = now + self._display.interval_seconds
            self._display.update(run.metrics())

    def on_epoch_end(self, run: EpochRun, *, completed: bool) -> None:
        """See LoaderCallback."""
        if self._display is not None:
            self._display.close(run.metrics(), completed=completed)
            self._display = None


def choose_display(run: EpochRun, interval_seconds: float) -> ProgressDisplay:
    """A bar in a notebook; bars where stderr is a terminal and rich is installed; else log lines."""
    display = _notebook_display()
    if display is not None:
        return NotebookBar(run, display)
    if sys.stderr.isatty():
        try:
            from torch_dataloader_utils._observe.progress_bars import TerminalBars
        except ImportError:
            logger.info("Bars need rich: pip install rich. Log lines instead.")
        else:
            return TerminalBars(run)
    return LogLines(run, interval_seconds)


def _notebook_display() -> Any:
    """IPython's module for output where this process is the kernel of a notebook; else None."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return import_module("IPython.display") if getattr(shell, "kernel", None) is not None else None


class NotebookBar:
    """One output of the cell, written anew at each `update`. display: the module IPython.display."""

    interval_seconds = 0.2

    def __init__(self, run: EpochRun, display: Any) -> None:
        self._run = run
        self._html = display.HTML
        self._output = display.display(self._html(self._bar(Metrics(), "")), display_id=True)

    def update(self, metrics: Metrics) -> None:
        """See ProgressDisplay."""
        self._output.update(self._html(self._bar(metrics, _time_left(self._run, metrics))))

    def close(self, metrics: Metrics, *, completed: bool) -> None:
        """See ProgressDisplay."""
        self._output.update(self._html(self._bar(metrics, "done" if completed else "stopped")))

    def _bar(self, metrics: Metrics, ending: str) -> str:
        run = self._run
        # Without a value the browser draws a bar that moves: nobody knows how many rows there are.
        place = f'max="{run.num_rows}" value="{metrics.rows}"' if run.num_rows else ""
        rate = f"{metrics.rows_per_second:,.0f} rows/s, {metrics.decoded_bytes_per_second / 1e6:.0f} MB/s"
        text = f"epoch {run.epoch} rank {run.rank}: {_rows(metrics.rows, run.num_rows)}, {rate}, {ending}"
        return f'<progress style="width:20em" {place}></progress> {escape(text)}'


class LogLines:
    """A line every interval and one at the end, at level INFO, with the figures as extras for structured handlers.

    The lines go to stderr if logging is not configured.
    """

    def __init__(self, run: EpochRun, interval_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self._run = run
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)

    def update(self, metrics: Metrics) -> None:
        """See ProgressDisplay."""
        self._log(metrics, "progress", _time_left(self._run, metrics))

    def close(self, metrics: Metrics, *, completed: bool) -> None:
        """See ProgressDisplay."""
        self._log(metrics, "epoch_end" if completed else "epoch_stopped", "done" if completed else "stopped")

    def _log(self, metrics: Metrics, event: str, ending: str) -> None:
        run = self._run
        logger.info(
            "epoch %d rank %d of %d: %s, %s rows/s, %.0f MB/s, waited %.0f %%, %s",
            run.epoch,
            run.rank,
            run.num_ranks,
            _rows(metrics.rows, run.num_rows),
            f"{metrics.rows_per_second:,.0f}",
            metrics.decoded_bytes_per_second / 1e6,
            100 * metrics.wait_fraction,
            ending,
            extra={"event": event, "epoch": run.epoch, "rank": run.rank, "metrics": metrics.to_dict()},
        )


def _rows(rows: int, num_rows: int | None) -> str:
    return f"{rows:,} rows" if not num_rows else f"{rows:,} of {num_rows:,} rows ({rows / num_rows:.0%})"


def _time_left(run: EpochRun, metrics: Metrics) -> str:
    left = seconds_left(metrics.rows, run.num_rows, metrics.rows_per_second)
    return "time left unknown" if left is None else time_left(left)
