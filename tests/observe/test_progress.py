"""show_progress: lines where there is no terminal, bars where there is one, all ranks' bars in one place."""

import io
import logging
import os
import pty
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.stream.tables import write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe import progress
from torch_dataloader_utils._observe.callbacks import EpochRun
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._observe.progress_bars import RankBoard, TerminalBars
from torch_dataloader_utils._observe.work_bar import seconds_left


@pytest.fixture
def table(tmp_path):
    """165 rows in six row groups."""
    folder = tmp_path / "table"
    folder.mkdir()
    write_table(folder, [[40, 30], [35], [20, 20, 20]])
    return folder


def run_of(rank=0, num_ranks=1, num_rows=100):
    return EpochRun(
        epoch=3,
        rank=rank,
        num_ranks=num_ranks,
        num_workers=0,
        num_batches=10,
        num_rows=num_rows,
        padding_rows=0,
        fingerprint="f" * 32,
    )


def test_lines_come_every_interval_with_figures_as_extras(table, caplog):
    caplog.set_level(logging.INFO, logger="torch_dataloader_utils.progress")
    loader, _ = StructuredDataset.create_dataloader(
        str(table), batch_size=16, num_workers=0, show_progress=True, progress_interval_sec=0.0
    )
    list(loader)
    events = [record.event for record in caplog.records]
    assert events == ["progress"] * 11 + ["epoch_end"]
    assert [record.metrics["batches"] for record in caplog.records] == [*range(1, 12), 11]
    assert all((record.epoch, record.rank) == (0, 0) for record in caplog.records)
    assert caplog.records[-1].getMessage().startswith("epoch 0 rank 0 of 1: 165 of 165 rows (100%)")


@pytest.mark.full
@pytest.mark.processes
def test_without_rich_data_sets_are_read_and_progress_is_lines(table):
    code = f"""
import sys
sys.modules["rich"] = sys.modules["rich.console"] = sys.modules["rich.progress"] = None
from torch_dataloader_utils import StructuredDataset
loader, _ = StructuredDataset.create_dataloader({str(table)!r}, num_workers=0, show_progress=True)
print(sum(batch.num_rows for batch in loader))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "165\n"
    assert "165 of 165 rows" in done.stderr


def test_a_long_interval_gives_one_line_at_the_end_and_a_break_says_so(table, caplog):
    caplog.set_level(logging.INFO, logger="torch_dataloader_utils.progress")
    loader, _ = StructuredDataset.create_dataloader(str(table), batch_size=16, num_workers=0, show_progress=True)
    for _ in loader:
        break
    assert [record.event for record in caplog.records] == ["epoch_stopped"]


def test_nothing_is_said_unasked(table, caplog):
    caplog.set_level(logging.DEBUG, logger="torch_dataloader_utils.progress")
    loader, _ = StructuredDataset.create_dataloader(str(table), batch_size=16, num_workers=0)
    list(loader)
    assert not caplog.records


def test_no_value_of_a_row_is_ever_logged(table, caplog):
    caplog.set_level(logging.DEBUG)
    loader, _ = StructuredDataset.create_dataloader(
        str(table), batch_size=16, num_workers=0, show_progress=True, progress_interval_sec=0.0
    )
    list(loader)
    assert not any("row-" in str(record.__dict__) for record in caplog.records)


def test_where_logging_is_not_configured_the_lines_still_come(table, monkeypatch, capsys):
    monkeypatch.setattr(progress, "logger", logging.Logger("alone"))
    loader, _ = StructuredDataset.create_dataloader(str(table), show_progress=True)
    list(loader)
    shown = capsys.readouterr()
    assert "165 of 165 rows (100%)" in shown.err
    assert shown.out == ""


@pytest.mark.full
@pytest.mark.processes
def test_bars_come_on_a_terminal(table):
    script = (
        "import sys\n"
        "from torch_dataloader_utils import StructuredDataset\n"
        "loader, _ = StructuredDataset.create_dataloader(sys.argv[1], show_progress=True)\n"
        "list(loader)\n"
    )
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        with os.fdopen(theirs, "wb") as end:
            environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
            process = subprocess.Popen([sys.executable, "-c", script, str(table)], stderr=end, env=environment)
        shown = _read_all(terminal)
        assert process.wait() == 0
    assert "epoch 0 rank 0" in shown
    assert "100% 165 rows" in shown


def _read_all(terminal):
    """The text that a terminal shows; reading it fails once its other end is closed."""
    parts = []
    while True:
        try:
            part = terminal.read(4096)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def test_one_rank_draws_the_bars_of_all():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    first = TerminalBars(run_of(rank=1, num_ranks=3), console)
    others = [TerminalBars(run_of(rank=rank, num_ranks=3), console) for rank in (0, 2)]
    try:
        others[0].update(Metrics(rows=25, seconds=1.0))
        others[1].update(Metrics(rows=75, seconds=1.0))
        first.update(Metrics(rows=50, seconds=1.0))
    finally:
        for bars in (*others, first):
            bars.close(Metrics(rows=100, seconds=2.0), completed=True)
    shown = screen.getvalue()
    for rank, share in ((0, "25%"), (1, "50%"), (2, "75%")):
        assert f"epoch 3 rank {rank}" in shown
        assert share in shown


def test_the_board_is_gone_with_the_rank_that_draws():
    board = RankBoard.open(run_of(rank=0, num_ranks=2))
    assert board is not None
    assert board.draws
    assert board.path.exists()
    assert board.path.stat().st_mode & 0o777 == 0o600
    board.close()
    assert not Path(board.path).exists()
    assert RankBoard.open(run_of(num_ranks=1)) is None


def test_on_a_full_disk_the_bars_stand_still():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        board = RankBoard.open(run_of(rank=1, num_ranks=2))
        assert board is not None
        board.write(5, 10, 100)
        assert board.lines().tolist() == [[0, 0, 0, 0], [0, 0, 0, 0]]
        board.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_board_that_cannot_be_opened_is_done_without(tmp_path, monkeypatch):
    board = RankBoard.open(run_of(num_ranks=2))
    assert board is not None
    board.close()
    board.path.symlink_to(tmp_path / "elsewhere")
    try:
        assert RankBoard.open(run_of(num_ranks=2)) is None
        assert not (tmp_path / "elsewhere").exists()
    finally:
        board.path.unlink()


@pytest.mark.parametrize(
    ("rows", "num_rows", "pace", "left"),
    [(50, 100, 10.0, 5.0), (0, 100, 0.0, None), (5, None, 1.0, None), (9, 5, 1.0, 0)],
)
def test_time_left(rows, num_rows, pace, left):
    assert seconds_left(rows, num_rows, pace) == left
