"""Files scanned in threads or in the user's executor: the first damaged one is named, progress is reported for each."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pyarrow.compute as pc
import pytest

from tests.discover.datasets import write_parquet
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import CorruptFileError


@pytest.mark.processes
def test_a_pool_of_processes_scans_files_too(tmp_path):
    for index in range(5):
        write_parquet(tmp_path / f"k={index % 2}" / f"{index}.parquet", index, [3, 9])
    options = {"partitioning": "hive", "filters": (pc.field("row") >= 3) & (pc.field("k") == 1)}
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        inventory = scan_files(tmp_path, executor=pool, **options)
    assert inventory.fingerprint() == scan_files(tmp_path, **options).fingerprint()
    assert inventory.num_rows == 18


def test_the_first_damaged_file_in_path_order_is_named(tmp_path):
    for index in range(30):
        write_parquet(tmp_path / f"{index:02}", index, [2])
    for name in ("07", "19"):
        (tmp_path / name).write_bytes(b"no parquet here")
    with pytest.raises(CorruptFileError, match="/07: "):
        scan_files(tmp_path)


def test_progress_is_told_for_each_file_that_is_scanned(tmp_path):
    for index in range(4):
        write_parquet(tmp_path / f"k={index}" / "a", index, [2])
    seen = []
    scan_files(tmp_path, partitioning="hive", filters=pc.field("k") > 0, on_progress=lambda *args: seen.append(args))
    assert seen == [(1, 3), (2, 3), (3, 3)]
