"""What a plan says of a cache is what a cache does that follows its rules one read at a time."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import plan_epoch, scan_files
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.program import touched_groups
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.planner import Planner
from torch_dataloader_utils.plan.upcoming import EPOCHS_AHEAD, CacheForecast


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 row groups of as many bytes."""
    directory = tmp_path_factory.mktemp("data")
    for number in range(6):
        table = pa.table({"x": np.random.default_rng(number).random(8 * 64)})
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=64, use_dictionary=False)
    return directory


def test_after_a_resume_a_worker_of_a_foreign_loader_foresees_the_rows_that_it_reads(data: Path) -> None:
    """Its worker 0 gives the next batch, step 4, which is one of worker 1 of the plan."""
    planner = Planner(inventory=scan_files(data), options=PlanOptions(shuffle=True, split_rows=64))
    position = Position(segment=Segment(topology=Topology(num_workers=3, batch_size=16), steps=4))
    (lane,) = planner.plan(position).programs(0)[1].lanes
    reads, num_present = planner.upcoming(position, 0, worker=0)
    assert set(reads.group[:num_present].tolist()) == set(touched_groups(lane, planner.space).tolist())


sizes_of_groups = st.lists(st.integers(1, 9), min_size=6, max_size=6)
reads = st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=EPOCHS_AHEAD + 4)


def cached_one_by_one(epochs, sizes, room):
    """Bytes of each epoch that are in the cache, by looking at every entry at every read."""
    kept, found = {}, []  # row group -> when it was kept
    later = [(epoch, group) for epoch, groups in enumerate(epochs) for group in groups]
    for epoch in range(len(epochs) - EPOCHS_AHEAD):
        found.append(0)
        for group in epochs[epoch]:
            later.pop(0)
            known = [each for number, each in later if number <= epoch + EPOCHS_AHEAD]
            distance = {each: known.index(each) if each in known else len(later) + 1 for each in {*kept, group}}
            if group in kept:
                found[-1] += sizes[group]
                continue
            victims = []
            for each in sorted(kept, key=lambda each: (-distance[each], kept[each])):
                if room - sum(sizes[one] for one in kept if one not in victims) >= sizes[group]:
                    break
                if distance[each] < distance[group]:
                    break
                victims.append(each)
            if room - sum(sizes[one] for one in kept if one not in victims) >= sizes[group]:
                kept = {each: when for each, when in kept.items() if each not in victims}
                kept[group] = len(later) * -1
    return found


@given(reads, sizes_of_groups, st.integers(0, 30))
@settings(max_examples=effort(300), deadline=None)
def test_the_forecast_follows_the_rules(epochs, sizes, room):
    arrays = [np.array(each, dtype=np.int64) for each in epochs]
    parts = CacheForecast(arrays, np.array(sizes), room).parts()
    assert [part.cached_bytes for part in parts] == cached_one_by_one(epochs, sizes, room)
    assert [part.read_bytes for part in parts] == [
        sum(sizes[group] for group in each) for each in epochs[:-EPOCHS_AHEAD]
    ]


def test_explain_says_what_a_size_gives(data: Path) -> None:
    plan = plan_epoch(scan_files(data), num_ranks=4, batch_size=64, shuffle=True, split_rows=1, epoch=2)
    assert "cache" not in plan.explain()
    all_of_it = plan.explain(cache_bytes="1GiB", host_ranks=4)
    assert "in epoch 2, then 100 %, 100 %, 100 %, 100 %" in all_of_it
    assert all_of_it == plan.explain(cache_bytes=1 << 30)
    assert "0 % of it from the cache in epoch 2, then 0 %, 0 %, 0 %, 0 %" in plan.explain(cache_bytes=0)
    with pytest.raises(ConfigError, match="host_ranks=5: the plan has 4 ranks"):
        plan.explain(cache_bytes=0, host_ranks=5)
    with pytest.raises(ConfigError, match="cache_bytes"):
        plan.explain(cache_bytes="much")


def test_a_host_that_keeps_its_share_needs_room_for_no_more(data: Path) -> None:
    inventory = scan_files(data)
    options = {"num_ranks": 4, "batch_size": 64, "shuffle": True, "split_rows": 1}
    shared = plan_epoch(inventory, **options, host_shares=2)
    half = int(inventory.groups.projected_bytes.sum()) * 3 // 4
    assert "for 2 ranks" in shared.explain(cache_bytes=half)
    assert "then 100 %, 100 %, 100 %, 100 %" in shared.explain(cache_bytes=half)
    apart = plan_epoch(inventory, **options)
    assert "then 100 %" not in apart.explain(cache_bytes=half, host_ranks=2)
    assert "every 2 ranks draw from the same" in shared.explain()
    assert "2 host shares" in shared.explain()
    assert shared.fingerprint != apart.fingerprint
