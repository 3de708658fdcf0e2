"""show_progress: log lines, or on a terminal the bar of rank 0."""

import logging
import os
import pty
import subprocess
import sys

import pytest

from tests.observe.test_work_bar import on_terminal
from tests.stream.tables import write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe import progress
from torch_dataloader_utils._observe.callbacks import EpochRun
from torch_dataloader_utils._observe.metrics import Metrics


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
    assert "100% 165 of 165 rows" in shown
    assert shown.endswith("done\r\n")


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


def test_the_bar_has_share_rate_and_time_left(monkeypatch):
    terminal = on_terminal(monkeypatch)
    show = progress.choose_sink(run_of())
    show(run_of(), Metrics(rows=25, seconds=1.0, decoded_bytes=7_000_000), "")
    bar, text = terminal.getvalue().split("\x1b[K")[-1].split(maxsplit=5)[-2:]
    assert (bar, text) == ("━" * 8, "25% 25 of 100 rows, 7 MB/s, 0:03 left")
    show(run_of(), Metrics(rows=50, seconds=1.0), "stopped")
    assert terminal.getvalue().endswith(" 50% 50 of 100 rows, 0 MB/s, stopped\n")


def test_without_row_counts_the_bar_is_a_number(monkeypatch):
    terminal = on_terminal(monkeypatch)
    progress.choose_sink(run_of(num_rows=None))(run_of(num_rows=None), Metrics(rows=25, seconds=1.0), "")
    assert terminal.getvalue().endswith("epoch 3 rank 0 25 rows, 0 MB/s")


def test_on_a_terminal_the_other_ranks_only_log(caplog, monkeypatch):
    terminal = on_terminal(monkeypatch)
    caplog.set_level(logging.INFO, logger="torch_dataloader_utils.progress")
    run = run_of(rank=1, num_ranks=2)
    progress.choose_sink(run)(run, Metrics(rows=25), "")
    assert [record.rank for record in caplog.records] == [1]
    monkeypatch.setattr(progress, "logger", logging.Logger("alone"))
    progress.choose_sink(run)(run, Metrics(rows=25), "")
    assert terminal.getvalue() == ""
