"""Random Parquet data sets: the inventory against what was written."""

import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.discover.datasets import FILES, SCHEMA, write_parquet
from tests.effort import effort
from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils.discover import load_inventory, save_inventory, scan_files

COLUMNS = {
    "file": st.integers(-1, 8),
    "row": st.integers(-1, 120),
    "x": st.floats(-1, 60),
    "maybe": st.integers(-1, 120),
    "year": st.integers(2019, 2028),
}
OPERATORS = [lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a >= b]


@st.composite
def filters(draw, depth=2):
    kind = draw(st.sampled_from(["compare", "null", "in", "not", "and", "or"] if depth else ["compare"]))
    if kind in ("and", "or", "not"):
        left = draw(filters(depth - 1))
        if kind == "not":
            return ~left
        right = draw(filters(depth - 1))
        return left & right if kind == "and" else left | right
    name = draw(st.sampled_from(sorted(COLUMNS)))
    if kind == "null":
        return pc.field(name).is_null()
    if kind == "in":
        return pc.field(name).isin(draw(st.lists(COLUMNS[name], max_size=3)))
    return draw(st.sampled_from(OPERATORS))(pc.field(name), draw(COLUMNS[name]))


def write(root: Path, files: list[list[int]]) -> list[Path]:
    paths = [root / f"year={2020 + i % 3}" / f"part-{i}.parquet" for i in range(len(files))]
    for index, (path, groups) in enumerate(zip(paths, files, strict=True)):
        write_parquet(path, index, groups)
    return paths


def groups_of(inventory) -> list[tuple[str, int, int, int]]:
    g = inventory.groups
    return [
        (inventory.files.paths[int(f)], int(o), int(first), int(rows))
        for f, o, first, rows in zip(g.file, g.ordinal, g.first_row, g.physical_rows, strict=True)
    ]


@settings(max_examples=effort(60), deadline=None)
@given(files=FILES)
def test_every_row_group_with_rows_is_listed_once_in_order(files):
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), files)
        inventory = scan_files(folder)
        wanted = []
        for path, groups in sorted(zip(map(str, paths), files, strict=True)):
            starts = np.cumsum([0, *groups])
            wanted += [(path, i, int(starts[i]), rows) for i, rows in enumerate(groups) if rows]
        assert groups_of(inventory) == wanted
        assert list(inventory.files.paths) == sorted(map(str, paths))
        assert inventory.num_rows == sum(map(sum, files))
        assert (inventory.groups.live_rows == inventory.groups.physical_rows).all()
        assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)) == SCHEMA


@pytest.mark.slow
@settings(max_examples=effort(40), deadline=None)
@given(files=FILES, seed=st.integers())
def test_listing_order_executor_and_a_saved_copy_change_nothing(files, seed):
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder) / "data", files)
        inventory = scan_files(Path(folder) / "data", partitioning="hive")
        shuffled = [str(path) for path in paths]
        random.Random(seed).shuffle(shuffled)
        with ThreadPoolExecutor(2) as pool:
            again = scan_files(shuffled, partitioning="hive", executor=pool)
        save_inventory(inventory, f"{folder}/saved.parquet")
        loaded = load_inventory(f"{folder}/saved.parquet")
    assert again.fingerprint() == inventory.fingerprint() == loaded.fingerprint()
    for name in inventory.groups.__slots__:
        seen, wanted = getattr(loaded.groups, name), getattr(inventory.groups, name)
        assert seen.dtype == wanted.dtype
        assert seen.tolist() == wanted.tolist() == getattr(again.groups, name).tolist()


@pytest.mark.slow
@settings(max_examples=effort(120), deadline=None)
@given(files=FILES, row_filter=filters())
def test_a_filter_leaves_out_only_dead_groups_and_counts_only_whole_ones(files, row_filter):
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), files)
        inventory = scan_files(folder, filters=row_filter, partitioning="hive")
        live = {}
        for index, (path, groups) in enumerate(zip(paths, files, strict=True)):
            for ordinal in range(len(groups)):
                table = pq.ParquetFile(path).read_row_group(ordinal)
                table = table.append_column("year", pa.array([2020 + index % 3] * table.num_rows, pa.int64()))
                live[str(path), ordinal] = table.filter(row_filter).num_rows
    listed = {}
    for (path, ordinal, _, _), rows in zip(groups_of(inventory), inventory.groups.live_rows.tolist(), strict=True):
        listed[path, ordinal] = rows
        assert rows in (UNKNOWN, live[path, ordinal])
    assert all(rows == 0 for key, rows in live.items() if key not in listed)


@settings(max_examples=effort(20), deadline=None)
@given(files=FILES)
def test_a_remote_store_gives_the_same_groups(files):
    memory = fsspec.filesystem("memory")
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), files)
        for path in paths:
            memory.pipe_file(f"/props/{path.relative_to(folder)}", path.read_bytes())
        local = scan_files(folder, partitioning="hive")
        remote = scan_files("memory://props", partitioning="hive")
        memory.rm("/props", recursive=True)
        renamed = [(p.replace("memory://props", folder), *rest) for p, *rest in groups_of(remote)]
    assert renamed == groups_of(local)
    assert [(c.name, c.values, c.codes.tolist()) for c in remote.files.partitions] == [
        (c.name, c.values, c.codes.tolist()) for c in local.files.partitions
    ]
