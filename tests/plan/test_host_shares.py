"""Shares that hosts keep: the same rows in every epoch and under every topology, in another order on other ranks."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.plan.model import bytes_of_groups, files, make_plan, make_space, options, rows_of, topologies
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils.errors import ConfigError

SPACE = make_space([[8] * 12] * 10, [100])


def rows_of_groups(plan):
    """Of each group of ranks, the plan rows that it reads, as they come rank after rank; repeats left out."""
    num_ranks = plan.position.topology.num_ranks
    ranks = []
    for rank in range(num_ranks):
        lanes = [program.lanes[0] for program in plan.programs(rank)]
        ranks.append([row for lane in lanes for row in rows_of(lane, plan.options.seed, plan.position.epoch)])
        assert plan.padding_rows(rank) in (0, 1)
    size = num_ranks // plan.options.rank_groups(num_ranks)
    return [list(chain(*ranks[first : first + size])) for first in range(0, num_ranks, size)]


@given(files, bytes_of_groups, options, topologies, st.integers(1, 12))
@settings(max_examples=effort(200), deadline=None)
def test_every_group_of_ranks_reads_its_shares_in_all_epochs(files, group_bytes, drawn, topology, host_shares):
    shared = replace(drawn, shuffle=True, host_shares=host_shares)
    space, topology = make_space(files, group_bytes), replace(topology, drop_last=False)
    epochs = [make_plan(space=space, options=shared, epoch=epoch, topology=topology) for epoch in range(3)]
    if epochs[0].repeated_rows:
        return
    groups = [[sorted(rows) for rows in rows_of_groups(plan)] for plan in epochs]
    assert groups[0] == groups[1] == groups[2]
    # One rank for each share says which rows it has; other topologies join neighbouring ones.
    alone = Topology(num_ranks=host_shares, batch_size=50)
    shares = [sorted(rows) for rows in rows_of_groups(make_plan(space=space, options=shared, topology=alone))]
    joined = np.array_split(np.arange(host_shares), len(groups[0]))
    if space.num_rows >= host_shares:
        assert groups[0] == [sorted(row for share in each for row in shares[share]) for each in joined]


def test_order_and_ranks_within_a_share_change():
    shared = PlanOptions(shuffle=True, split_rows=8, host_shares=4)
    topology = Topology(num_ranks=8, num_workers=2, batch_size=16)
    epochs = [make_plan(space=SPACE, options=shared, epoch=epoch, topology=topology) for epoch in range(2)]
    orders = [rows_of_groups(plan) for plan in epochs]
    assert all(one != other for one, other in zip(*orders, strict=True))
    ranks = [{int(start) for program in plan.programs(0) for start in program.lanes[0].start} for plan in epochs]
    # Of 30 chunks of the share, a rank has half of them in each epoch: not the same half.
    assert 2 <= len(ranks[0] & ranks[1]) <= 13


def test_shares_follow_the_seed_and_mix_the_files():
    topology = Topology(num_ranks=4, batch_size=16)
    shares = []
    for seed in range(2):
        shared = PlanOptions(shuffle=True, split_rows=8, host_shares=4, seed=seed)
        shares.append([set(rows) for rows in rows_of_groups(make_plan(space=SPACE, options=shared, topology=topology))])
        assert all(len({row // 96 for row in rows}) >= 6 for rows in shares[-1])
    assert shares[0] != shares[1]


def test_a_loader_of_shares_goes_on_with_other_ranks(tmp_path):
    pq.write_table(pa.table({"row": np.arange(6000)}), tmp_path / "a.parquet", row_group_size=100)

    def make(num_ranks, rank):
        loader, _ = StructuredDataset.create_dataloader(
            str(tmp_path), batch_size=64, shuffle=True, split_rows=1, num_ranks=num_ranks, rank=rank, host_shares=4
        )
        loader.set_epoch(1)
        return loader

    received, state = [], None
    for rank in range(4):
        loader = make(4, rank)
        received += [row for _, batch in zip(range(5), loader, strict=False) for row in batch["row"].tolist()]
        state = loader.state_dict()
    later = [make(6, rank) for rank in range(6)]
    for loader in later:
        loader.load_state_dict(state)
        received += [row for batch in loader for row in batch["row"].tolist()]
    assert sorted(received) == list(range(6000))
    # 2 groups of 3 ranks, in the next epochs.
    epochs = []
    for epoch in (2, 3):
        for loader in later:
            loader.set_epoch(epoch)
        epochs.append({row for loader in later[:3] for batch in loader for row in batch["row"].tolist()})
    assert len(epochs[0]) == 3000
    assert epochs[0] == epochs[1]


def test_shares_that_no_ranks_keep_are_a_warning(tmp_path):
    pq.write_table(pa.table({"row": np.arange(6000)}), tmp_path / "a.parquet", row_group_size=100)
    with pytest.warns(UserWarning, match="host_shares=4 keeps no chunks on their hosts: 4 shares and 3 ranks"):
        StructuredDataset.create_dataloader(str(tmp_path), shuffle=True, num_ranks=3, host_shares=4)


def test_shares_need_row_counts(tmp_path):
    pq.write_table(pa.table({"row": np.arange(600)}), tmp_path / "a.parquet", row_group_size=100)
    with pytest.raises(ConfigError, match="host_shares= needs exact row counts"):
        StructuredDataset.create_dataloader(
            str(tmp_path), shuffle=True, host_shares=2, filters=pc.field("row") > 7, count_rows=False
        )


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({"shuffle": False}, "without shuffle=True"),
        ({"rank_sharding": "chunks"}, "rank_sharding"),
        ({"num_lanes": 4}, "lanes="),
        ({"bucket_by": "n", "shuffle_rows": 10, "max_tokens_per_batch": 9}, "max_tokens"),
        ({"strategy": "mine"}, "split_strategy=mine"),
        ({"host_shares": 0}, "host_shares"),
    ],
)
def test_what_excludes_shares_says_so(others, text):
    with pytest.raises(ConfigError, match=text):
        PlanOptions(**({"shuffle": True, "host_shares": 4} | others))
