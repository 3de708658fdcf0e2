"""The programs and worked examples of the documentation that this library took its interface from."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.gloo_threads import check_ended, python_path
from tests.seed.run_snippet import NUM_EPOCHS
from torch_dataloader_utils import StructuredDataset

RANKS = 2
BATCH_ROWS = 1024
FILE_ROWS = (3_000, 1_100, 700, 41)


@pytest.fixture
def training_data(tmp_path: Path) -> Path:
    """Files with the columns of the snippets; feature_a is the row's number."""
    directory = tmp_path / "training-data"
    directory.mkdir()
    first = 0
    for number, rows in enumerate(FILE_ROWS):
        feature = np.arange(first, first + rows, dtype=np.float32)
        table = pa.table({"feature_a": feature, "label": feature / 1000})
        pq.write_table(table, directory / f"part-{number}.parquet", row_group_size=500)
        first += rows
    return directory


def run(name: str, data: Path, reports: Path) -> list[list[list[float]]]:
    """The row ids of every step of every rank."""
    reports.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command = [*torchrun, "-m", "tests.seed.run_snippet", name, str(data), str(reports)]
    fixed = {"PYTHONPATH": python_path(*sys.path), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        command,
        timeout=300,
        env={**os.environ, **fixed},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    check_ended(done.stdout)
    return [json.loads((reports / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


def check_epochs(ranks: list[list[list[float]]]) -> None:
    """Equal steps on all ranks, full batches but for the last two, every row once in every epoch, in another order."""
    assert len({len(steps) for steps in ranks}) == 1
    per_epoch = len(ranks[0]) // NUM_EPOCHS
    orders = set()
    for epoch in range(NUM_EPOCHS):
        mine = [steps[epoch * per_epoch : (epoch + 1) * per_epoch] for steps in ranks]
        assert all(len(step) == BATCH_ROWS for steps in mine for step in steps[:-2])
        rows = sorted(int(row) for steps in mine for step in steps for row in step)
        assert rows == list(range(sum(FILE_ROWS)))
        orders.add(tuple(row for step in mine[0] for row in step))
    assert len(orders) == NUM_EPOCHS


@pytest.mark.full
@pytest.mark.processes
def test_pytorch_ddp(training_data: Path, tmp_path: Path) -> None:
    check_epochs(run("PYTORCH_DDP", training_data, tmp_path / "reports"))


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.full
def test_accelerate(training_data: Path, tmp_path: Path) -> None:
    check_epochs(run("ACCELERATE", training_data, tmp_path / "reports"))


@pytest.mark.full
def test_horovod_with_a_stand_in_over_gloo(training_data: Path, tmp_path: Path) -> None:
    check_epochs(run("HOROVOD", training_data, tmp_path / "reports"))


def write_chunks(directory: Path, count: int) -> Path:
    """`count` files of one chunk each; their only column says which."""
    for chunk in range(count):
        pq.write_table(pa.table({"chunk": [chunk] * 3}), directory / f"C{chunk}.parquet")
    return directory


def chunks_of_rank(path: Path, num_ranks: int, rank: int, **options: object) -> list[int]:
    """The chunks that one rank reads, in order."""
    loader, _ = StructuredDataset.create_dataloader(
        path, num_ranks=num_ranks, rank=rank, rank_sharding="chunks", num_workers=0, batch_size=3, **options
    )
    return [int(batch["chunk"][0]) for batch in loader]


def test_nine_chunks_are_dealt_to_three_ranks_by_an_interleaved_slice(tmp_path: Path) -> None:
    path = write_chunks(tmp_path, 9)
    assert [chunks_of_rank(path, 3, rank) for rank in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


@pytest.mark.filterwarnings("ignore:Ranks take different numbers of steps")
def test_seven_chunks_over_three_ranks_are_3_2_and_2(tmp_path: Path) -> None:
    path = write_chunks(tmp_path, 7)
    assert [len(chunks_of_rank(path, 3, rank)) for rank in range(3)] == [3, 2, 2]


@pytest.mark.filterwarnings("ignore:Ranks take different numbers of steps")
def test_more_ranks_than_chunks_leave_ranks_with_an_empty_epoch(tmp_path: Path) -> None:
    path = write_chunks(tmp_path, 2)
    assert [chunks_of_rank(path, 4, rank) for rank in range(4)] == [[0], [1], [], []]


def test_shuffle_comes_before_the_slice_so_that_ranks_cover_everything(tmp_path: Path) -> None:
    path = write_chunks(tmp_path, 9)
    ranks = [chunks_of_rank(path, 3, rank, shuffle="chunks", shuffle_seed=1) for rank in range(3)]
    assert sorted(chunk for rank in ranks for chunk in rank) == list(range(9))
    assert ranks != [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
