"""Two processes of one job: FSDP2, meshes, distributed checkpoints, and Accelerate with and without our `prepare`."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

from tests.integrations.jobs import BATCH_ROWS, NUM_ROWS, STEPS, check_epochs, run_job, write_rows
from torch_dataloader_utils import StructuredDataset

pytestmark = pytest.mark.full

pytest.importorskip("accelerate", reason="accelerate is not installed")

Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def table(folder: Path) -> Path:
    return write_rows(folder / "table")


@pytest.fixture(scope="module")
def reports(table: Path, folder: Path) -> Reports:
    return run_job("torch_job", table, folder / "reports")


def test_fsdp2_with_a_mesh_reads_every_row_once(reports: Reports) -> None:
    check_epochs([report["fsdp2"]["steps"] for report in reports])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_a_distributed_checkpoint_of_two_ranks_goes_on_with_three(reports: Reports, table: Path, folder: Path) -> None:
    rows = [row for report in reports for step in report["fsdp2"]["steps"][:3] for row in step]
    for rank in range(3):
        loader, _ = StructuredDataset.create_dataloader(
            table, batch_size=BATCH_ROWS, shuffle=True, split_rows=9, num_ranks=3, rank=rank
        )
        dcp.load({"loader": loader}, checkpoint_id=folder / "reports" / "checkpoint")
        rows += [row for batch in loader for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(NUM_ROWS))


def test_ranks_of_a_tensor_parallel_group_share_their_data(reports: Reports) -> None:
    shared = [report["meshes"]["shared"] for report in reports]
    assert shared[0] == shared[1]
    check_epochs(shared[:1])


@pytest.mark.parametrize("mesh", ["split", "part"])
def test_ranks_of_data_parallel_dimensions_split_their_data(reports: Reports, mesh: str) -> None:
    check_epochs([report["meshes"][mesh] for report in reports])


def test_accelerate_neither_shards_nor_dispatches_a_loader_again(reports: Reports) -> None:
    assert all(report["plain"]["is_same"] for report in reports)
    check_epochs([report["plain"]["steps"] for report in reports], num_epochs=2)


def test_accelerate_steps_at_the_end_of_an_epoch_that_its_accumulation_does_not_divide(reports: Reports) -> None:
    for report in reports:
        assert report["plain"]["ends"] == [step in (STEPS, 2 * STEPS) for step in range(1, 2 * STEPS + 1)]
        assert report["plain"]["synced"] == 2 * [False, False, True, False, False, True, True]
        assert report["plain"]["is_left"]


def test_accelerate_saves_and_loads_the_place_of_the_loader(reports: Reports) -> None:
    for report in reports:
        assert report["plain"]["rest"] == report["plain"]["steps"][10:]


def test_accelerate_gives_batches_on_the_device(reports: Reports) -> None:
    assert [report["plain"]["device"] for report in reports] == ["meta", "meta"]


def test_gathered_rows_are_those_of_the_data_set(reports: Reports) -> None:
    for report in reports:
        gathered = report["gather"]
        rows = [row for step in gathered["rows"] for row in step]
        assert sorted(rows) == list(range(NUM_ROWS))
        assert gathered["pairs"] == [[2 * row for row in step] for step in gathered["rows"]]
        assert gathered["names"] == [str(row) for row in rows]
        assert gathered["is_same"]


@pytest.mark.parametrize("which", ["first", "last"])
def test_gather_for_metrics_leaves_out_the_row_that_a_short_rank_repeats(reports: Reports, which: str) -> None:
    assert [report["gather"]["repeats"][which] for report in reports] == ([1, 0] if which == "first" else [0, 1])
    for report in reports:
        assert sorted(row for step in report["gather"][which] for row in step) == list(range(NUM_ROWS))
        assert report["gather"]["agree"]
