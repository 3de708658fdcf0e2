"""The line about slow work before the first batch."""

import io
import sys
from pathlib import Path

import pytest

from tests.faults.tables import parquet_bytes, table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe.work_bar import WorkBar, time_left, work_bar


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def bar(terminal: Terminal, now: list[float]) -> WorkBar:
    return WorkBar("footers", terminal, patience_seconds=2.0, clock=lambda: now[0])


def test_quick_work_is_never_mentioned() -> None:
    terminal, now = Terminal(), [0.0]
    line = bar(terminal, now)
    for done in range(100):
        now[0] = done * 0.019
        line.update(done + 1, 100)
    line.close()
    assert terminal.getvalue() == ""


def test_slow_work_is_drawn_now_and_then_and_wiped_at_the_end() -> None:
    terminal, now = Terminal(), [0.0]
    line = bar(terminal, now)
    for done in range(1, 1_001):
        now[0] = done * 0.01
        line.update(done, 1_000)
    drawn = terminal.getvalue().split("\r")[1:]
    assert 30 <= len(drawn) <= 45  # of 1,000 updates
    assert drawn[0].startswith("footers ━━━━━━ ")
    assert drawn[0].rstrip().endswith("20% 200 of 1,000, 0:08 left")
    line.close()
    assert terminal.getvalue().split("\r")[-2:] == [" " * len(drawn[-1]), ""]


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
    monkeypatch.setitem(WorkBar.__init__.__kwdefaults__, "patience_seconds", patience)
    StructuredDataset.create_dataloader(tmp_path, show_progress=show_progress, on_error="skip")
    expected = is_terminal and show_progress and patience < 0
    assert ("footers" in stderr.getvalue()) == expected
    assert ("row groups" in stderr.getvalue()) == expected
    assert stderr.getvalue().endswith("\r" if expected else "")


def test_nobody_is_told_where_there_is_no_terminal() -> None:
    with work_bar("footers") as on_progress:
        assert on_progress is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00 left"), (59.6, "1:00 left"), (3599.4, "59:59 left"), (3700, "1:01:40 left")]
)
def test_the_time_left_has_hours_where_there_are_some(seconds: float, text: str) -> None:
    assert time_left(seconds) == text
