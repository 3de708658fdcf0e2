"""Readers in threads, in forked children and through a pickle."""

import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.formats.files import make_spec, write_parquet
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.formats.file_cache import FileCache
from torch_dataloader_utils.tables.reader import Reader, make_reader

TABLE = pa.table({"row": np.arange(20_000), "half": np.arange(20_000) / 2})


def row_sum(reader: Reader, task: RowGroupTask) -> int:
    return int(reader.read(task).column("row").to_numpy().sum())


def test_many_threads_read_row_groups_of_one_file_at_once(tmp_path: Path) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", TABLE, 500)
    reader = make_reader(make_spec(TABLE.schema))
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(reader.read, tasks * 3))
    table = pa.Table.from_batches(batches)
    assert table.column("row").to_pylist() == list(range(20_000)) * 3


@pytest.mark.processes
def test_a_spawned_child_reads_with_a_pickled_reader(tmp_path: Path) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", TABLE, 10_000)
    spec = make_spec(
        TABLE.schema, columns=("row",), row_filter=pc.field("half") >= 0, access=StoreAccess.of({"key": "canary"})
    )
    reader = make_reader(spec)
    assert row_sum(reader, tasks[0]) == sum(range(10_000))
    assert "canary" not in repr(reader)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(row_sum, (reader, tasks[1])) == sum(range(10_000, 20_000))


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_though_a_lock_was_held(tmp_path: Path) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", TABLE, 10_000)
    reader = make_reader(make_spec(TABLE.schema))
    cache: FileCache[int] = FileCache()
    cache.get(("a", ""), lambda: (1, 1))
    row_sum(reader, tasks[0])
    with cache._lock:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                fresh = cache.get(("a", ""), lambda: (2, 1))
                status = 0 if fresh == 2 and row_sum(reader, tasks[1]) == sum(range(10_000, 20_000)) else 2
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_footer_cache_forgets_the_least_recently_used() -> None:
    cache: FileCache[str] = FileCache(capacity_bytes=10)
    loads: list[str] = []

    def get(name: str, size: int) -> None:
        def load() -> tuple[str, int]:
            loads.append(name)
            return name, size

        assert cache.get((name, "1"), load) == name

    for name, size in [("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4), ("huge", 99), ("huge", 99)]:
        get(name, size)
    assert loads == ["a", "b", "c", "b", "huge"]


def test_a_reader_pickles_small(tmp_path: Path) -> None:
    tasks = write_parquet(tmp_path / "a.parquet", TABLE, 10_000)
    reader = make_reader(make_spec(TABLE.schema))
    reader.read(tasks[0])
    assert len(pickle.dumps(reader)) < 4_000
