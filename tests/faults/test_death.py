"""Processes that die: the error names the worker and its row group, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from tests.faults.tables import table
from torch_dataloader_utils import StructuredDataset

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
ROWS = 400
# For what hangs, not for what is slow: on a busy machine a job takes minutes.
HANGS_SECONDS = 1500


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for file in range(4):
        pq.write_table(table(file * 100, 100), folder / f"{file}.parquet", row_group_size=50)
    return folder


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A directory for temporary files, which must be empty afterwards."""
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


@contextmanager
def started(data: Path, scratch: Path, *how: str) -> "Iterator[subprocess.Popen[str]]":
    """A job, which is gone afterwards: one that outlasts a failed test would fail the next one, too."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.doomed_job", str(data), *how],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        try:
            yield job
        finally:
            job.kill()


def shared_memory_of(pids: list[int]) -> list[str]:
    """What processes with these ids have left in /dev/shm; torch puts the id into the name."""
    folder = Path("/dev/shm")
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return [name for name in names if any(name.startswith(f"torch_{pid}_") for pid in pids)]


# Processes that are not forked import torch anew, for each fate.
METHODS = [
    "fork",
    pytest.param("forkserver", marks=pytest.mark.full),
    pytest.param("spawn", marks=pytest.mark.full),
]


@pytest.mark.parametrize("method", METHODS)
def test_a_dead_worker_is_named_with_its_row_group_and_the_rest_is_read_after_a_restart(
    data: Path, scratch: Path, method: str
) -> None:
    fates = ["killed", "locked", "exit", "segfault", "interrupted", "hangs", "raises"]
    seen = outcomes(data, scratch, method, *fates)
    assert [each["how"] for each in seen] == fates
    assert all(len(each["workers"]) >= 2 for each in seen)
    for each in seen:
        assert each["error"] == ("TransformError" if each["how"] == "raises" else "WorkerDiedError")
        # Row 150 is the first of the second row group of file 1, and so in the batch of rows 150 to 159.
        assert f"{data}/1.parquet row group 1" in each["text"], each
        assert ("no good" in each["text"]) == (each["how"] == "raises")
        assert ("let workers ignore SIGINT" in each["text"]) == (each["how"] == "interrupted")
        assert_the_rest_comes(data, each)


def test_workers_that_are_shot_while_they_read_ahead_cost_no_row(data: Path, scratch: Path) -> None:
    # Without functions of the user several batches travel as one; those that came in whole are still given. The trainer
    # hears of it where it asks for the next batch, not in what it does meanwhile.
    (seen,) = outcomes(data, scratch, "fork", "shot")
    assert seen["error"] == "WorkerDiedError"
    assert 30 <= len(seen["rows"]) < ROWS
    assert_the_rest_comes(data, seen)


def test_persistent_workers_that_die_between_two_passes_are_replaced(data: Path, scratch: Path) -> None:
    (seen,) = outcomes(data, scratch, "fork", "shot-after")
    assert sorted(seen["rows"]) == list(range(ROWS))


def outcomes(data: Path, scratch: Path, method: str, *fates: str) -> list[dict[str, Any]]:
    """What a job says of each of its fates; its workers have left no shared memory."""
    with started(data, scratch, method, *fates) as job:
        output, errors = job.communicate(timeout=HANGS_SECONDS)
    assert job.returncode == 0, errors[-3000:]
    seen = [json.loads(line) for line in output.splitlines()]
    assert shared_memory_of([pid for each in seen for pid in (each["pid"], *each["workers"])]) == []
    return seen


def assert_the_rest_comes(data: Path, seen: dict[str, Any]) -> None:
    """A loader that is given the state of a job that ended gives the rows that the job had not."""
    loader = StructuredDataset.create_dataloader(str(data), batch_size=10, num_workers=0)[0]
    loader.load_state_dict(seen["state"])
    rest = [row for batch in loader for row in batch["row"].tolist()]
    assert sorted(seen["rows"] + rest) == list(range(ROWS))


def started_and_waiting(job: "subprocess.Popen[str]") -> list[psutil.Process]:
    assert job.stdout is not None
    line = json.loads(job.stdout.readline())
    return [psutil.Process(pid) for pid in line["children"]]


@pytest.mark.cases(1)
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("method", METHODS)
def test_workers_end_with_the_trainer_and_leave_nothing(
    data: Path, scratch: Path, method: str, sign: signal.Signals
) -> None:
    with started(data, scratch, method, "waits") as job:
        workers = started_and_waiting(job)
        assert len(workers) >= 2
        job.send_signal(sign)
        _, errors = job.communicate(timeout=HANGS_SECONDS)
        _, alive = psutil.wait_procs(workers, timeout=HANGS_SECONDS)
    assert alive == []
    assert errors.count("Traceback") <= 1
    assert shared_memory_of([job.pid, *(worker.pid for worker in workers)]) == []
