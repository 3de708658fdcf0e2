"""`show_progress=True`: a bar in a notebook or on a terminal, log lines elsewhere."""

import logging
import sys
from collections.abc import Callable
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any

from torch_dataloader_utils._observe.callbacks import EpochRun, LoaderCallback
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._observe.work_bar import REDRAW_SECONDS, TerminalBar, time_left

logger = logging.getLogger("torch_dataloader_utils.progress")

Sink = Callable[[EpochRun, Metrics, str], None]
"""Shows the state of a pass. The text is "" in a running pass, and "done" or "stopped" at the end."""


class ProgressReporter(LoaderCallback):
    """Callback for `show_progress`: chooses a sink at the start of a pass, and calls it at intervals."""

    def __init__(self, interval_seconds: float) -> None:
        """interval_seconds: time between two log lines; bars are redrawn more often."""
        self._log_seconds = self._pause_seconds = interval_seconds
        self._sink: Sink | None = None
        self._due = 0.0

    def on_epoch_start(self, run: EpochRun) -> None:
        """See LoaderCallback."""
        self._sink = choose_sink(run)
        self._pause_seconds = self._log_seconds if self._sink is log_progress else REDRAW_SECONDS
        self._due = monotonic() + self._pause_seconds

    def on_batch(self, run: EpochRun, batch: object) -> None:  # noqa: ARG002
        """See LoaderCallback. Only reads the clock unless the sink is due."""
        now = monotonic()
        if now >= self._due and self._sink is not None:
            self._due = now + self._pause_seconds
            self._sink(run, run.metrics(), "")

    def on_epoch_end(self, run: EpochRun, *, completed: bool) -> None:
        """See LoaderCallback."""
        if self._sink is not None:
            self._sink(run, run.metrics(), "done" if completed else "stopped")
            self._sink = None


def choose_sink(run: EpochRun) -> Sink:
    """Return a notebook bar in a notebook, the terminal bar for rank 0 on a terminal, else log lines.

    The ranks of a host share one terminal, so the other ranks only log, and only if logging is configured. Without a
    terminal, log lines go to stderr if logging is not configured.
    """
    display = _notebook_display()
    if display is not None:
        return notebook_bar(run, display)
    if sys.stderr.isatty():
        return terminal_bar(run) if run.rank == 0 else log_progress
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    return log_progress


def _notebook_display() -> Any:
    """Return the module IPython.display if this process is the kernel of a notebook, else None."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return import_module("IPython.display") if getattr(shell, "kernel", None) is not None else None


def log_progress(run: EpochRun, metrics: Metrics, ending: str) -> None:
    """Log one line at level INFO, with the figures as extras for structured handlers."""
    event = {"": "progress", "done": "epoch_end", "stopped": "epoch_stopped"}[ending]
    extra = {"event": event, "epoch": run.epoch, "rank": run.rank, "metrics": metrics.to_dict()}
    logger.info(_describe(run, metrics, ending), extra=extra)


def terminal_bar(run: EpochRun) -> Sink:
    """Return a sink that draws one line on stderr. It runs no thread."""
    bar = TerminalBar(f"epoch {run.epoch} rank {run.rank}", sys.stderr)

    def show(run: EpochRun, metrics: Metrics, ending: str) -> None:
        detail = f" rows, {metrics.decoded_bytes_per_second / 1e6:,.0f} MB/s"
        bar.draw(metrics.rows, run.num_rows, metrics.seconds, detail=detail, ending=ending)

    show(run, Metrics(), "")
    return show


def notebook_bar(run: EpochRun, display: Any) -> Sink:
    """Return a sink that rewrites one output of the cell. display: the module IPython.display."""

    def html(metrics: Metrics, ending: str) -> Any:
        # Without a value the browser draws a moving bar: the number of rows is not known.
        place = f'max="{run.num_rows}" value="{metrics.rows}"' if run.num_rows else ""
        text = escape(_describe(run, metrics, ending))
        return display.HTML(f'<progress style="width:20em" {place}></progress> {text}')

    output = display.display(html(Metrics(), ""), display_id=True)
    return lambda _, metrics, ending: output.update(html(metrics, ending))


def _describe(run: EpochRun, metrics: Metrics, ending: str) -> str:
    rows = f"{metrics.rows:,} rows"
    if run.num_rows:
        rows = f"{metrics.rows:,} of {run.num_rows:,} rows ({metrics.rows / run.num_rows:.0%})"
    return (
        f"epoch {run.epoch} rank {run.rank} of {run.num_ranks}: {rows}, {metrics.rows_per_second:,.0f} rows/s, "
        f"{metrics.decoded_bytes_per_second / 1e6:.0f} MB/s, waited {100 * metrics.wait_fraction:.0f} %, "
        f"{ending or time_left(metrics.rows, run.num_rows, metrics.seconds) or 'time left unknown'}"
    )
