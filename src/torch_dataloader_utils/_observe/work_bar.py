"""`TerminalBar`, one line on a terminal, and `work_bar`, which draws it for long work before the first batch."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from time import monotonic
from typing import TextIO

from torch_dataloader_utils._runtime.parallel import OnProgress

REDRAW_SECONDS = 0.2
# Shorter work needs no bar.
_PATIENCE_SECONDS = 1.0
_BAR_COLUMNS = 32
_ERASE_LINE = "\r\x1b[K"


def time_left(done: int, total: int | None, seconds: float) -> str:
    """Return the time left at the present rate; "" if it is not known.

    10 of 50 in 13.05 s   "0:52 left"      10 of 20 in 3700 s   "1:01:40 left"
    """
    if not total or not done or not seconds:
        return ""
    minutes, rest = divmod(round(seconds * max(0, total - done) / done), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"


class TerminalBar:
    """One line on a terminal, drawn over and over.

    footers ━━━━━━━━━━━━                      38% 38,000 of 100,000, 0:52 left
    """

    def __init__(self, label: str, terminal: TextIO) -> None:
        self._label = label
        self._terminal = terminal
        self._is_drawn = False

    def draw(self, done: int, total: int | None, seconds: float, *, detail: str = "", ending: str = "") -> None:
        """Draw the line. seconds: time that `done` took. detail: text after the numbers. ending: text of the last line.

        The line is cut at the width of the terminal. Without a total it has no bar.
        """
        text = f"{done:,}{detail}"
        if total:
            bar = "━" * (_BAR_COLUMNS * min(done, total) // total)
            text = f"{bar:<{_BAR_COLUMNS}} {done / total:4.0%} {done:,} of {total:,}{detail}"
        parts = [f"{self._label} {text}", ending or time_left(done, total, seconds)]
        line = ", ".join(filter(None, parts))[: get_terminal_size().columns - 1]
        self._write(_ERASE_LINE + line + ("\n" if ending else ""))
        self._is_drawn = True

    def wipe(self) -> None:
        """Erase the line if it is drawn."""
        if self._is_drawn:
            self._write(_ERASE_LINE)

    def _write(self, text: str) -> None:
        self._terminal.write(text)
        self._terminal.flush()


@contextmanager
def work_bar(
    label: str, *, is_wanted: bool = True, clock: Callable[[], float] = monotonic
) -> Iterator[OnProgress | None]:
    """Give a function to call with (done, total); None if no bar is wanted or stderr is no terminal.

    The bar appears after a second and is erased at the end. No thread: between two redraws a call only reads the
    clock.
    """
    if not is_wanted or not sys.stderr.isatty():
        yield None
        return
    bar, begin = TerminalBar(label, sys.stderr), clock()
    due = begin + _PATIENCE_SECONDS

    def update(done: int, total: int) -> None:
        nonlocal due
        now = clock()
        if now >= due:
            due = now + REDRAW_SECONDS
            bar.draw(done, total, now - begin)

    try:
        yield update
    finally:
        bar.wipe()
