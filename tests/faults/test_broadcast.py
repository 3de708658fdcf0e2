"""Rank 0 scans for all: one listing a job, and an error on every rank if it fails."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.faults.s3_server import S3Server
from tests.faults.tables import upload
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import LoaderError

RANKS = 2


def _rank(rank: int, meeting: str, path: str, access: StoreAccess, answer: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    try:
        loader, _ = StructuredDataset.create_dataloader(
            path, num_workers=0, num_ranks="auto", storage_options=access, broadcast_inventory=True, batch_size=50
        )
        answer.send([row for batch in loader for row in batch["row"].tolist()])
    except LoaderError as error:
        answer.send(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()


def run_ranks(meeting: Path, path: str, access: StoreAccess) -> list[Any]:
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe() for _ in range(RANKS)]
    children = [
        fork.Process(target=_rank, args=(rank, str(meeting), path, access, pipes[rank][1])) for rank in range(RANKS)
    ]
    for child in children:
        child.start()
    answers = [ours.recv() if ours.poll(60) else None for ours, _ in pipes]
    for child in children:
        child.join(20)
        child.kill()
    return answers


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_one_rank_lists_and_reads_footers_for_all(server: S3Server, access: StoreAccess, tmp_path: Path) -> None:
    total = upload(server)
    rows = run_ranks(tmp_path / "meeting", "s3://bucket/data", access)
    assert sorted(row for each in rows for row in each) == list(range(total))
    assert len(server.of("HEAD")) == 1  # whether "data" is a file: asked by one rank


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_scan_that_fails_fails_on_every_rank(server: S3Server, access: StoreAccess, tmp_path: Path) -> None:
    answers = run_ranks(tmp_path / "meeting", "s3://bucket/nothing", access)
    assert len(answers) == RANKS
    assert all(answer.startswith("NoDataError") for answer in answers)
