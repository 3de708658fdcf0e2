"""No pass makes torch start threads of its own: they would wait for the cores that decode, and the trainer for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# Torch splits work on more than 32,768 numbers.
ROWS = 70_000

# Each team of torch's threads would have as many.
TEAM = 40

counts_threads = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")

PROGRAM = """
import json, os, sys, torch
from torch_dataloader_utils import Lanes, PadRagged, StructuredDataset

def run(folder, team, options):
    torch.set_num_threads(team)
    before = len(os.listdir("/proc/self/task"))
    if options.pop("pads", False):
        options["collate_fn"] = PadRagged()
    if "lanes" in options:
        options["lanes"] = Lanes(**options["lanes"])
    moves, splits = options.pop("moves", False), options.pop("splits", False)
    loader, _ = StructuredDataset.create_dataloader(folder, num_workers=0, **options)
    rows = 0
    for batch in loader:
        rows += len(batch["row_id"])
        if moves:
            batch.to("meta")
    if splits:
        torch.zeros(1 << 20).max()
    print(json.dumps([rows, len(os.listdir("/proc/self/task")) - before]), flush=True)

for options in json.loads(sys.argv[3]):
    child = os.fork()
    if not child:
        run(sys.argv[1], int(sys.argv[2]), options)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

# splits: of torch's own work, behind the pass.
SPLITS = {"splits": True}
OPTIONS = [
    {},
    {"batch_size": 40_000},
    {"batch_size": 40_000, "moves": True},
    {"nulls": "mask"},
    {"stack": {"features": ["x"]}, "columns": ["row_id", "x"]},
    {"columns": ["row_id", "tokens"], "pads": True, "batch_size": 20_000},
    {"shuffle": True, "shuffle_rows": ROWS},
    {"shuffle": True, "shuffle_rows": ROWS, "batch_size": 40_000, "columns": ["row_id", "tokens"]},
    {"lanes": {"num_lanes": 4, "rows": 64}, "batch_size": 256, "split_rows": 500},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    floats = pa.array(rng.random(4 * ROWS, dtype=np.float32))
    table = pa.table(
        {
            "row_id": np.arange(ROWS),
            "x": rng.random(ROWS),
            "vector": pa.FixedSizeListArray.from_arrays(floats, 4),
            "tokens": pa.ListArray.from_arrays(np.arange(0, 4 * ROWS + 1, 4, dtype=np.int32), floats),
        }
    )
    pq.write_table(table, path / "0.parquet", row_group_size=ROWS)
    return path


@pytest.fixture(scope="module")
def ends(folder):
    """By options: (rows, new threads) at the end of a pass in a process of its own, which is forked from one that has
    not used torch's threads."""
    all_options = [*OPTIONS, SPLITS]
    command = [sys.executable, "-c", PROGRAM, str(folder), str(TEAM), json.dumps(all_options)]
    # OMP_THREAD_LIMIT and OMP_DYNAMIC would make teams smaller.
    env = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300, env=env)
    return dict(zip(map(str, all_options), map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.slow
@pytest.mark.cases(1)
@counts_threads
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_pass_starts_no_threads_of_torch(ends, options):
    rows, threads = ends[str(options)]
    assert rows == ROWS
    assert threads < TEAM // 2


@counts_threads
def test_threads_of_torch_are_counted(ends):
    assert ends[str(SPLITS)][1] > TEAM // 2
