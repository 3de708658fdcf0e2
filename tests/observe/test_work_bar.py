"""The line about slow work before the first batch."""

import io
import sys
from pathlib import Path

import pytest

from tests.faults.tables import parquet_bytes, table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe import work_bar as module
from torch_dataloader_utils._observe.work_bar import time_left, work_bar


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal; in a fixture, pytest would put its own stderr back before the test."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "120")
    return shown


def test_quick_work_is_never_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    now = [0.0]
    with work_bar("footers", clock=lambda: now[0]) as on_progress:
        assert on_progress is not None
        for done in range(100):
            now[0] = done * 0.009
            on_progress(done + 1, 100)
    assert terminal.getvalue() == ""


def test_slow_work_is_drawn_now_and_then_and_wiped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    now = [0.0]
    with work_bar("footers", clock=lambda: now[0]) as on_progress:
        assert on_progress is not None
        for done in range(1, 1_001):
            now[0] = done * 0.01
            on_progress(done, 1_000)
    drawn = terminal.getvalue().split("\r\x1b[K")[1:]
    assert 35 <= len(drawn) <= 50  # of 1,000 updates
    assert drawn[0].startswith("footers ━━━ ")
    assert drawn[0].endswith("10% 100 of 1,000, 0:09 left")
    assert drawn[-1] == ""


def test_a_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "20")
    module.TerminalBar("footers", terminal).draw(5, 10, 1.0)
    assert len(terminal.getvalue().removeprefix("\r\x1b[K")) == 19


@pytest.mark.parametrize("patience", [-1.0, 2.0])
@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("show_progress", [True, False])
def test_a_data_set_shows_it_if_asked_to_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, show_progress: bool, patience: float
) -> None:
    for file in range(3):
        (tmp_path / f"{file}.parquet").write_bytes(parquet_bytes(table(file * 10, 10)))
    stderr = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", patience)
    StructuredDataset.create_dataloader(tmp_path, show_progress=show_progress, on_error="skip")
    expected = is_terminal and show_progress and patience < 0
    assert ("footers" in stderr.getvalue()) == expected
    assert ("row groups" in stderr.getvalue()) == expected
    assert stderr.getvalue().endswith("\x1b[K" if expected else "")


def test_nobody_is_told_where_there_is_no_terminal() -> None:
    with work_bar("footers") as on_progress:
        assert on_progress is None


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (1, 2, 59.6, "1:00 left"),
        (1, 2, 3599.4, "59:59 left"),
        (10, 20, 3700, "1:01:40 left"),
        (9, 5, 1.0, "0:00 left"),
        (0, 100, 5.0, ""),
        (5, None, 1.0, ""),
        (5, 10, 0.0, ""),
    ],
)
def test_time_left(done: int, total: int | None, seconds: float, text: str) -> None:
    assert time_left(done, total, seconds) == text
