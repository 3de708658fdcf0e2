"""A line on a terminal for long work before the first batch (footers, counts, checks), and the time that is left."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO

from torch_dataloader_utils._runtime.parallel import OnProgress

# Shorter work needs no bar.
_PATIENCE_SECONDS = 2.0
_INTERVAL_SECONDS = 0.2
_BAR_COLUMNS = 32


def seconds_left(rows: int, num_rows: int | None, rows_per_second: float) -> float | None:
    """Seconds until all rows are delivered at this rate; None if that is not known."""
    if num_rows is None or rows_per_second <= 0:
        return None
    return max(0, num_rows - rows) / rows_per_second


def time_left(seconds: float) -> str:
    """The time left, in words for people.

    52.2   "0:52 left"      3700   "1:01:40 left"
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"


class WorkBar:
    """Draws one line over and over on `terminal`, from `patience_seconds` after it was made; runs no thread.

    footers ━━━━━━━━━━━━                      38% 38,000 of 100,000, 0:52 left
    """

    def __init__(
        self,
        label: str,
        terminal: TextIO,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._label = label
        self._terminal = terminal
        self._clock = clock
        self._begin = clock()
        self._due = self._begin + patience_seconds
        self._drawn_columns = 0

    def update(self, done: int, total: int) -> None:
        """Report that `done` of `total` are done. Only reads the clock unless the line is due."""
        now = self._clock()
        if now >= self._due and total:
            self._due = now + _INTERVAL_SECONDS
            self._draw(done, total, now - self._begin)

    def close(self) -> None:
        """Wipes the line, if there is one."""
        if self._drawn_columns:
            self._terminal.write("\r" + " " * self._drawn_columns + "\r")
            self._terminal.flush()
            self._drawn_columns = 0

    def _draw(self, done: int, total: int, seconds: float) -> None:
        bar = "━" * (_BAR_COLUMNS * done // total)
        left = time_left(seconds * (total - done) / max(done, 1))
        text = f"{self._label} {bar:<{_BAR_COLUMNS}} {done / total:4.0%} {done:,} of {total:,}, {left}"
        self._terminal.write("\r" + text.ljust(self._drawn_columns))
        self._terminal.flush()
        self._drawn_columns = len(text)


@contextmanager
def work_bar(label: str, *, is_wanted: bool = True) -> Iterator[OnProgress | None]:
    """A function to call with (done, total); None if it is not wanted or stderr is no terminal."""
    if not is_wanted or not sys.stderr.isatty():
        yield None
        return
    bar = WorkBar(label, sys.stderr)
    try:
        yield bar.update
    finally:
        bar.close()
