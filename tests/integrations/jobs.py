"""Jobs of two processes under torchrun, and the table they train on: its only columns are `row` and `x`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.gloo_threads import check_ended, python_path

ROOT = Path(__file__).parents[2]
NUM_RANKS = 2
# Odd in total and in every part, so that nothing divides evenly between two ranks or into batches.
FILE_ROWS = (61, 7, 33)
NUM_ROWS = sum(FILE_ROWS)
BATCH_ROWS = 8
STEPS = 7  # of each rank: 51 and 50 rows

Steps = list[list[int]]


def write_rows(folder: Path) -> Path:
    """Write the table; gives its directory."""
    folder.mkdir()
    first = 0
    for number, rows in enumerate(FILE_ROWS):
        row = np.arange(first, first + rows)
        table = pa.table({"row": row, "x": (row % 7).astype(np.float32)})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=10)
        first += rows
    return folder


def run_job(module: str, table: Path, reports: Path) -> list[dict[str, Any]]:
    """Run `python -m tests.integrations.<module> TABLE REPORTS` on every rank; gives their reports, in rank order."""
    reports.mkdir(exist_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NUM_RANKS)]
    fixed = {"PYTHONPATH": python_path(*sys.path), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*torchrun, "-m", f"tests.integrations.{module}", str(table), str(reports)],
        timeout=300,
        env={**os.environ, **fixed, "HF_HUB_OFFLINE": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    check_ended(done.stdout)
    return [json.loads((reports / f"rank{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def check_epochs(ranks: list[Steps], num_epochs: int = 1, num_rows: int = NUM_ROWS) -> None:
    """Equal steps on all ranks, and every row once in each epoch."""
    assert len({len(steps) for steps in ranks}) == 1
    per_epoch = len(ranks[0]) // num_epochs
    for epoch in range(num_epochs):
        rows = [row for steps in ranks for step in steps[epoch * per_epoch : (epoch + 1) * per_epoch] for row in step]
        assert sorted(rows) == list(range(num_rows))
