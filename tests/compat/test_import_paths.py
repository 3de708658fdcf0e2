"""A split strategy that was written for version 0.2, with its import paths of that time, runs unchanged."""

import importlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_dataloader_utils
from torch_dataloader_utils import StructuredDataset

STRATEGY = """
import random

import torch_dataloader_utils.splits.target_size
from torch_dataloader_utils.splits import SplitStrategy
from torch_dataloader_utils.splits.core import DataFileInfo, RowRange, Shard, Split
from torch_dataloader_utils.splits.round_robin import RoundRobinSplitStrategy


class Halves(torch_dataloader_utils.splits.target_size.TargetSizeSplitStrategy):
    def generate(self, files: list[DataFileInfo], num_workers, epoch=0, num_ranks=1, rank=0) -> list[Shard]:
        random.Random(epoch).shuffle(files)
        shards = [Shard(id=worker) for worker in range(num_workers)]
        for number, file in enumerate(files[rank::num_ranks]):
            half = file.record_count // 2
            for offset, length in ((0, half), (half, file.record_count - half)):
                split = Split(file=file, row_range=RowRange(offset=offset, length=length))
                shards[number % num_workers].splits.append(split)
        return shards
"""

# What version 0.2 had at the top level, of its split strategies.
OF_THE_TOP_LEVEL = {
    "DataFileInfo",
    "IcebergDataFileInfo",
    "RoundRobinSplitStrategy",
    "SizeBalancedSplitStrategy",
    "Split",
    "SplitStrategy",
}


@pytest.fixture
def fresh_import(monkeypatch):
    """As in a program that has not imported `splits` yet."""
    for name in [each for each in sys.modules if each.startswith("torch_dataloader_utils.splits")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(torch_dataloader_utils, "splits", raising=False)


def test_a_strategy_of_version_0_2_runs_unchanged(tmp_path, fresh_import):
    for file in range(3):
        pq.write_table(pa.table({"row": range(11 * file, 11 * file + 11)}), tmp_path / f"{file}.parquet")
    names = {}
    exec(STRATEGY, names)
    rows = []
    for rank in range(2):
        loader, _ = StructuredDataset.create_dataloader(
            tmp_path, batch_size=4, split_strategy=names["Halves"](), num_ranks=2, rank=rank, num_workers=0
        )
        rows += [row for batch in loader for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(33))


@pytest.mark.parametrize(
    "path", ["splits", "splits.core", "splits.balanced", "splits.round_robin", "splits.target_size"]
)
def test_names_of_that_time_are_those_of_the_top_level(path, fresh_import):
    module = importlib.import_module(f"torch_dataloader_utils.{path}")
    both = {*module.__all__} & {*torch_dataloader_utils.__all__}
    assert both >= OF_THE_TOP_LEVEL
    assert all(getattr(module, name) is getattr(torch_dataloader_utils, name) for name in both)
    assert module is importlib.import_module("torch_dataloader_utils.splits")


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("observability", r"loader\.metrics"),
        ("dataset.base", "from torch_dataloader_utils"),
        ("filesystem.discovery", "scan_files"),
        ("format.reader", "loader"),
    ],
)
def test_other_modules_of_that_time_say_where_their_names_are(path, place):
    with pytest.raises(ModuleNotFoundError, match=f"version 0.2.*{place}"):
        importlib.import_module(f"torch_dataloader_utils.{path}")
