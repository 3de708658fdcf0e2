"""Rank 0 scans for all: one listing a job, and an error on every rank if it fails."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.faults.ranks import RANKS, run_ranks
from tests.faults.s3_server import S3Server
from tests.faults.tables import upload
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import HostCache, IcebergDataset, RemoteOptions, RetryPolicy, StructuredDataset
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.datasets.iceberg_source import IcebergSource
from torch_dataloader_utils.errors import LoaderError

pytestmark = pytest.mark.processes


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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_one_rank_lists_and_reads_footers_for_all(server: S3Server, access: StoreAccess, tmp_path: Path) -> None:
    total = upload(server)
    rows = run_ranks(_rank, tmp_path / "meeting", "s3://bucket/data", access)
    assert sorted(row for each in rows for row in each) == list(range(total))
    assert len(server.of("HEAD")) == 1  # whether "data" is a file: asked by one rank


def _building_rank(rank: int, meeting: str, path: str, access: StoreAccess, options: Any, answer: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    loader, _ = StructuredDataset.create_dataloader(
        path, num_workers=0, num_ranks="auto", storage_options=access, batch_size=50, **options
    )
    answer.send(len(loader))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("options", "scans"), [({}, 1), ({"broadcast_inventory": False}, RANKS), ({"check_ranks": False}, RANKS)]
)
def test_a_group_that_runs_reads_each_footer_of_remote_files_once(
    options: Any, scans: int, server: S3Server, access: StoreAccess, tmp_path: Path
) -> None:
    upload(server, files=20)
    steps = run_ranks(_building_rank, tmp_path / "meeting", "s3://bucket/data", access, options)
    assert steps == [20 * 300 // 50 // RANKS] * RANKS
    footers = Counter(each.key for each in server.of("GET") if each.span is not None)
    assert footers == {f"data/{file}.parquet": scans for file in range(20)}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_scan_that_fails_fails_on_every_rank(server: S3Server, access: StoreAccess, tmp_path: Path) -> None:
    answers = run_ranks(_rank, tmp_path / "meeting", "s3://bucket/nothing", access)
    assert len(answers) == RANKS
    assert all(answer.startswith("NoDataError") for answer in answers)


def _lone_rank(rank: int, _: str, path: str, access: StoreAccess, answer: Any) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        path, num_workers=0, rank=rank % RANKS, num_ranks=RANKS, storage_options=access, batch_size=50
    )
    answer.send(len(loader))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("has_cache", [True, False])
def test_ranks_without_a_group_read_each_footer_once_a_host(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_cache: bool
) -> None:
    upload(server, files=40)
    server.latency_seconds = 0.02
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "own"))
    cache = HostCache(tmp_path / "cache", max_bytes="1GiB") if has_cache else None
    # Without second requests, which a busy machine would cause.
    remote = RemoteOptions(cache=cache, retry=RetryPolicy(hedge_share=0))
    access = StoreAccess.of(server.storage_options, remote=remote)
    steps = run_ranks(_lone_rank, tmp_path / "meeting", "s3://bucket/data", access, ranks=4)
    assert steps == [40 * 300 // 50 // RANKS] * 4
    footers = Counter(each.key for each in server.of("GET") if each.span is not None)
    assert footers.keys() == {f"data/{file}.parquet" for file in range(40)}
    assert footers.total() <= 1.05 * 40


def _table_rank(rank: int, meeting: str, table: str, answer: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    opened = []
    original = IcebergSource.open

    def counted(source: IcebergSource) -> Any:
        opened.append(source)
        return original(source)

    IcebergSource.open = counted  # type: ignore[method-assign]  # in this process alone
    loader, _ = IcebergDataset.create_dataloader(
        table, num_workers=0, num_ranks="auto", broadcast_inventory=True, batch_size=7
    )
    answer.send((len(opened), [row for batch in loader for row in batch["id"].tolist()]))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_one_rank_reads_the_manifests_of_a_table_for_all(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "t")
    table.evolve(field_of(1, "id", "long"))
    for file in range(3):
        table.append([{"id": file * 20 + i} for i in range(20)])
    answers = run_ranks(_table_rank, tmp_path / "meeting", table.metadata)
    assert [opened for opened, _ in answers] == [1, 0]
    assert sorted(row for _, rows in answers for row in rows) == list(range(60))
