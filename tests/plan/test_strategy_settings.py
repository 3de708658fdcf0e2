"""Split strategies: what states know of their settings, and what they may do with the files they are given."""

import json
import re
import warnings
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import RoundRobinSplitStrategy, SizeBalancedSplitStrategy, StructuredDataset
from torch_dataloader_utils._core.splits import RowRange, Shard, Split
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.splits import TargetSizeSplitStrategy


@pytest.fixture
def files(tmp_path):
    first = 0
    for i, rows in enumerate([50, 33, 60]):
        pq.write_table(pa.table({"row": range(first, first + rows)}), tmp_path / f"{i}.parquet")
        first += rows
    return tmp_path


def load(files, strategy, **options):
    loader, _ = StructuredDataset.create_dataloader(files, batch_size=10, split_strategy=strategy, **options)
    return loader


@pytest.mark.parametrize(
    ("saved", "present", "says"),
    [
        (
            RoundRobinSplitStrategy(shuffle=True, seed=1),
            RoundRobinSplitStrategy(shuffle=True, seed=6),
            "seed=1.*seed=6",
        ),
        (TargetSizeSplitStrategy(target_rows=9), TargetSizeSplitStrategy(target_rows=30), "rows=9.*rows=30"),
        (SizeBalancedSplitStrategy(shuffle=True), SizeBalancedSplitStrategy(), "shuffle=True"),
    ],
)
def test_states_are_bound_to_the_settings(files, saved, present, says):
    state = load(files, saved).state_dict()
    load(files, type(saved)(**{name: getattr(saved, name) for name in saved.__slots__})).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match=says):
        load(files, present).load_state_dict(state)


@dataclass
class Tiered:
    tier: str = "hot"
    token: str = field(default="", repr=False, compare=False)
    key: str = field(default="", repr=False)

    def generate(self, files, num_workers, epoch=0):
        return [Shard(0, list(map(Split, files)))]


@pytest.mark.filterwarnings("ignore:.*no rank arguments")
def test_what_a_strategy_does_not_print_is_in_no_state_and_what_it_does_not_compare_binds_none(files):
    loader = load(files, Tiered(token="canary", key="canary"))
    state = loader.state_dict()
    assert "canary" not in json.dumps(state) + loader.plan.explain() + repr(loader)
    load(files, Tiered(token="another", key="canary")).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="key="):
        load(files, Tiered(token="canary", key="another")).load_state_dict(state)


class Tier(Enum):
    HOT = "hot"
    COLD = "cold"


@dataclass
class Weighted:
    weights: tuple[float, ...] = (1.0,)
    tiers: list[Tier] = field(default_factory=lambda: [Tier.HOT])
    shares: dict[str, int] = field(default_factory=dict)
    order: object = None

    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        return RoundRobinSplitStrategy().generate(files, num_workers, epoch, num_ranks, rank)


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"weights": (0.5, 0.5)}, "weights=[0.5, 0.5]"),
        ({"tiers": [Tier.HOT, Tier.COLD]}, "tiers=[Tier.HOT, Tier.COLD]"),
        ({"shares": {"b": 1, "a": 2}}, "shares=[['a', 2], ['b', 1]]"),
        ({"weights": np.float64(0.5)}, "weights=0.5"),
    ],
)
def test_settings_that_are_collections_bind_states_too(files, settings, shown):
    state = load(files, Weighted(**settings)).state_dict()
    load(files, Weighted(**settings, order=len)).load_state_dict(state)  # what has no text of its own binds none
    with pytest.raises(CheckpointMismatchError, match=re.escape(shown)):
        load(files, Weighted()).load_state_dict(state)


class Sorted:
    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        files.sort(key=lambda file: -file.record_count)
        return [Shard(0, [Split(file) for file in files[rank::num_ranks]])]


@pytest.mark.filterwarnings("ignore:Ranks take different numbers of steps")
def test_a_strategy_may_sort_the_files_it_is_given(files):
    loader = load(files, Sorted(), num_ranks=3, rank=0, rank_sharding="chunks", num_workers=0)
    assert [row for batch in loader for row in batch["row"].tolist()] == list(range(83, 143))


class Ranges:
    def __init__(self, *ranges):
        self.ranges = ranges

    def generate(self, files, num_workers, epoch=0):
        return [Shard(0, [Split(files[file], RowRange(offset, length)) for file, offset, length in self.ranges])]


@pytest.mark.parametrize("ranges", [[(0, 0, 143)], [(0, 0, 60), (1, 10, 23), (2, 0, 60)], [(0, -1, 51)], [(0, 5, -2)]])
def test_a_range_is_within_its_file(files, ranges):
    with pytest.raises(ConfigError, match=r"0\.parquet, which has 50"):
        len(load(files, Ranges(*ranges)))


class ByHand:
    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        return RoundRobinSplitStrategy().generate(files, num_workers, epoch, num_ranks, rank)


@pytest.mark.parametrize("strategy", [RoundRobinSplitStrategy(), TargetSizeSplitStrategy(), ByHand()])
def test_a_shuffle_that_nobody_does_is_told(files, strategy):
    name = type(strategy).__name__
    with pytest.warns(UserWarning, match=rf'shuffle="chunks" does nothing.*{name} orders'):
        load(files, strategy, shuffle="chunks")
    with pytest.warns(UserWarning, match=rf"shuffle=True only permutes rows inside windows.*{name} orders"):
        loader = load(files, strategy, shuffle=True)
    assert f"seed 42, strategy {name}" in loader.plan.explain()


def test_rows_are_shuffled_in_windows_of_a_strategys_order(files):
    batches = [batch["row"].tolist() for batch in load(files, RoundRobinSplitStrategy(shuffle=True), shuffle=True)]
    assert sorted(row for batch in batches for row in batch) == list(range(143))
    assert min(len({row // 50 for row in batch}) for batch in batches[:-1]) > 1


@pytest.mark.parametrize("strategy", [RoundRobinSplitStrategy(shuffle=True), None])
def test_a_shuffle_that_somebody_does_is_not(files, strategy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(files, strategy, shuffle=True, shuffle_rows=50)
        load(files, RoundRobinSplitStrategy())
