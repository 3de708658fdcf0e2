"""One rank fails where all work together: the others raise its error too, and do not wait for it."""

import os
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
from pyiceberg.catalog import load_catalog

from tests.faults.ranks import RANKS, run_ranks
from tests.simulated_cuda import simulated_nccl
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import IcebergDataset, StructuredDataset, TokenBatches, pack_tokens, scan_files
from torch_dataloader_utils.errors import StoreError
from torch_dataloader_utils.ranks.agree import add_over_ranks, all_or_none, from_rank_zero

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

SOME = pc.field("n") < 3  # of every row group: statistics do not say how many rows


def _rank(rank: int, meeting: str, build: Callable[[int], object], answer: Any) -> None:
    # Who waits for a rank that failed ends after this time, with gloo's error.
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=limit)
    try:
        build(rank)
        answer.send("none")
    except Exception as error:  # noqa: BLE001  # gloo's too, and those of no kind of ours
        answer.send(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()


def raised(tmp_path: Path, build: Callable[[int], object]) -> list[str]:
    """What building raises on every rank."""
    return run_ranks(_rank, tmp_path / "meeting", build)


def fail_with_a_reply() -> None:
    error = StoreError("s3://bucket: no permission.")
    error.reply = threading.Lock()  # type: ignore[attr-defined]  # as what a client keeps: it does not pickle
    raise error


def test_an_error_of_rank_zero_need_not_pickle_to_be_told(tmp_path: Path) -> None:
    errors = raised(tmp_path, lambda _: from_rank_zero(fail_with_a_reply))
    assert errors == ["StoreError: s3://bucket: no permission."] * RANKS


def write(folder: Path) -> Path:
    """Two files of one row group; the second is damaged, and rank 1 is the one to read it before the plan."""
    folder.mkdir()
    table = pa.table({"n": np.arange(100) % 7, "tokens": [[row] * (row % 7) for row in range(100)]})
    for name in "ab":
        pq.write_table(table, folder / f"{name}.parquet", write_page_checksum=True)
    content = bytearray((folder / "b.parquet").read_bytes())
    group = pq.read_metadata(folder / "b.parquet").row_group(0)
    for column in map(group.column, range(group.num_columns)):
        first = column.dictionary_page_offset or column.data_page_offset
        content[first + column.total_compressed_size - 1] ^= 0xFF
    (folder / "b.parquet").write_bytes(content)
    return folder


@pytest.mark.cases(3)
@pytest.mark.parametrize("has_inventory", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"filters": SOME},
        {"on_error": "skip"},
        {"pack": pack_tokens("tokens", 8)},
        {"token_batches": TokenBatches("n", max_tokens=100), "shuffle_rows": 50},
    ],
)
def test_ranks_that_see_other_files_are_told(tmp_path: Path, options: dict[str, Any], has_inventory: bool) -> None:
    for name in "ab":
        pq.write_table(pa.table({"n": np.arange(100) % 7, "tokens": [[1, 2]] * 100}), tmp_path / f"{name}.parquet")

    def build(rank: int) -> object:
        files = [tmp_path / f"{name}.parquet" for name in "ab"[rank:]]
        given = scan_files(files) if has_inventory else None
        return StructuredDataset(files, num_ranks="auto", inventory=given, **options)

    for error in raised(tmp_path, build):
        assert error.startswith("DataError: ")
        assert "files is 2 files with 2 row groups" in error
        assert "on rank 0 and 1 file with 1 row group" in error


def test_ranks_that_see_files_of_other_rows_are_told(tmp_path: Path) -> None:
    for rank in range(RANKS):
        pq.write_table(pa.table({"n": np.arange(100 + rank) % 7}), tmp_path / f"{rank}.parquet")
    build = partial(StructuredDataset, num_ranks="auto", filters=SOME)
    for error in raised(tmp_path, lambda rank: build(tmp_path / f"{rank}.parquet")):
        assert error.startswith("DataError: ")
        assert "files is 1 file with 1 row group, sizes, rows and names" in error


def test_ranks_that_build_data_sets_in_another_order_are_told(tmp_path: Path) -> None:
    files = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for size, file in enumerate(files, start=10):
        pq.write_table(pa.table({"n": np.arange(size)}), file)

    def build(rank: int) -> None:
        for file in files[:: 1 - 2 * rank]:
            StructuredDataset(file, num_ranks="auto", filters=pc.field("n") >= 0)

    for error in raised(tmp_path, build):
        assert error.startswith("DataError: ")
        assert "files is 1 file with 1 row group, sizes, rows and names" in error


@pytest.mark.parametrize("filters", [[pc.field("n").isin([1, 2]), pc.field("n").isin([2, 1])], [SOME, None]])
def test_ranks_that_filter_otherwise_are_told(tmp_path: Path, filters: list[Any]) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(100) % 7}), file)

    def build(rank: int) -> None:
        next(iter(StructuredDataset(file, num_ranks="auto", filters=filters[rank], batch_size=10)))

    first, second = raised(tmp_path, build)
    assert first.startswith("ConfigError: Ranks differ: filters is ")
    assert second in (first, "none")  # what reads without a filter has its batch before it looks


def test_copies_on_the_disks_of_ranks_are_counted_together(tmp_path: Path) -> None:
    for rank in range(RANKS):
        folder = tmp_path / f"disk{rank}"
        folder.mkdir()
        for name in "ab":
            pq.write_table(pa.table({"n": np.arange(100) % 7}), folder / f"{name}.parquet")
        os.utime(folder / "a.parquet", (rank, rank))
    build = partial(StructuredDataset, num_ranks="auto", filters=SOME)
    assert raised(tmp_path, lambda rank: build(tmp_path / f"disk{rank}")) == ["none"] * RANKS


@pytest.mark.parametrize(
    "options",
    [
        {"filters": SOME},
        {"token_batches": TokenBatches("n", max_tokens=100), "shuffle_rows": 50},
        {"pack": pack_tokens("tokens", 8, counts="read")},
    ],
    ids=["filter", "token budget", "pack"],
)
def test_a_row_group_that_one_rank_cannot_count(tmp_path: Path, options: dict[str, Any]) -> None:
    build = partial(StructuredDataset.create_dataloader, write(tmp_path / "data"), num_ranks="auto", **options)
    first, second = raised(tmp_path, lambda rank: build(num_workers=0))
    damaged = f"{tmp_path}/data/b.parquet row group 0 does not decode"
    assert second.startswith(f"CorruptFileError: {damaged}")
    assert first.startswith(f"CorruptFileError: rank 1 failed: {damaged}")


def test_a_file_that_changed_where_bad_ones_are_skipped(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    inventory = scan_files(folder)
    (folder / "b.parquet").write_bytes(b"another one")
    build = partial(StructuredDataset, folder, inventory=inventory, num_ranks="auto", on_error="skip")
    first, second = raised(tmp_path, lambda rank: build())
    assert second.startswith("FileChangedError: ")
    assert first.startswith("FileChangedError: rank 1 failed: ")


def test_files_that_one_rank_cannot_scan(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    build = partial(StructuredDataset, filters=SOME, num_ranks="auto")
    first, second = raised(tmp_path, lambda rank: build(folder if rank == 0 else folder / "none"))
    assert second.startswith("NoDataError: ")
    assert first == second.replace("Error: ", "Error: rank 1 failed: ", 1)


def make_table(root: Path) -> str:
    table = TableWriter(root)
    table.evolve(field_of(1, "n", "long"))
    table.append([{"n": number} for number in range(20)])
    return table.metadata


@pytest.mark.parametrize("broken", range(RANKS))
def test_a_table_that_one_rank_cannot_open(tmp_path: Path, broken: int) -> None:
    table, nowhere = make_table(tmp_path / "t"), str(tmp_path / "nowhere")
    answers = raised(tmp_path, lambda rank: IcebergDataset(nowhere if rank == broken else table, num_ranks="auto"))
    assert answers[broken].startswith("NoDataError: ")
    assert answers[1 - broken].startswith(f"NoDataError: rank {broken} failed: ")


def test_a_table_that_one_rank_cannot_scan(tmp_path: Path) -> None:
    build = partial(IcebergDataset, make_table(tmp_path / "t"), num_ranks="auto", filters=SOME)
    first, second = raised(tmp_path, lambda rank: build(columns=["n", "zz"][: rank + 1], check_ranks=False))
    assert second.startswith("ConfigError: columns names 'zz'")
    assert first.startswith("ConfigError: rank 1 failed: columns names 'zz'")


def test_a_catalog_that_only_rank_0_reaches(tmp_path: Path) -> None:
    catalogs = [
        {"type": "sql", "uri": f"sqlite:///{path}", "warehouse": f"file://{tmp_path}"}
        for path in (tmp_path / "catalog.db", tmp_path / "nowhere" / "catalog.db")
    ]
    with closing(load_catalog("default", **catalogs[0])) as catalog:
        catalog.create_namespace("db")
        catalog.create_table("db.t", pa.schema([("n", pa.int64())])).append(pa.table({"n": range(20)}))
    build = partial(IcebergDataset, "db.t", num_ranks="auto", broadcast_inventory=True, filters=SOME)
    first, second = raised(tmp_path, lambda rank: build(catalog_config=catalogs[rank]))
    assert second.startswith("StoreError: the catalog could not load")
    assert first.startswith("StoreError: rank 1 failed: the catalog could not load")


def test_an_error_of_another_kind_and_work_that_succeeds(tmp_path: Path) -> None:
    first, second = raised(tmp_path, lambda rank: (all_or_none(lambda: 1), all_or_none(lambda: 1 // (1 - rank))))
    assert second.startswith("ZeroDivisionError")
    assert first == "InternalError: rank 1 failed: ZeroDivisionError; see its traceback."


def _count_with_nccl(rank: int) -> None:
    with simulated_nccl(rank) as device:
        assert add_over_ranks(np.array([rank, 10])).tolist() == [1, 20]
        assert len(device.uploads) == 1


def test_counts_go_over_the_device_where_groups_have_nccl_alone(tmp_path: Path) -> None:
    assert raised(tmp_path, _count_with_nccl) == ["none", "none"]
