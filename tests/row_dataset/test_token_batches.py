"""Batches by tokens: none above the limit, every row once, equal steps, a pure order."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.effort import effort
from torch_dataloader_utils import RowDataset
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.wrappers import TokenBatchSampler

LIMIT = 40


def batches_of(lengths, num_ranks=1, epoch=0, **options):
    samplers = [TokenBatchSampler(lengths, LIMIT, num_ranks=num_ranks, rank=r, **options) for r in range(num_ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers, [list(sampler) for sampler in samplers]


@given(
    lengths=st.lists(st.integers(0, 30), max_size=120),
    num_ranks=st.integers(1, 5),
    epoch=st.integers(0, 3),
    num_workers=st.integers(1, 4),
    shuffle=st.booleans(),
    window_rows=st.one_of(st.none(), st.integers(1, 50)),
    max_rows_per_batch=st.one_of(st.none(), st.integers(1, 9)),
    counted=st.sampled_from([{"pad_to_multiple_of": 1}, {"pad_to_multiple_of": 8}, {"padding_free": True}]),
)
@settings(max_examples=effort(200), deadline=None)
def test_within_the_limit_every_row_once_and_equal_steps(lengths, num_ranks, epoch, counted, **options):
    options |= counted
    samplers, ranks = batches_of(lengths, num_ranks, epoch, **options)
    multiple, most = options.get("pad_to_multiple_of"), options["max_rows_per_batch"]
    rows = [row for batches in ranks for batch in batches for row in batch]
    assert set(rows) == set(range(len(lengths)))
    assert len(rows) == len(lengths) + samplers[0].repeated_rows
    assert samplers[0].repeated_rows < num_ranks
    if any(len(batch) > 1 for batches in ranks for batch in batches):
        assert samplers[0].repeated_rows == 0
    assert {len(batches) for batches in ranks} == {len(sampler) for sampler in samplers} == {len(ranks[0])}
    for batches in ranks:
        for batch in batches:
            assert batch
            of_rows = [lengths[row] for row in batch]
            tokens = -(-max(of_rows) // multiple) * multiple * len(batch) if multiple else sum(of_rows)
            assert tokens <= LIMIT
            assert len(batch) <= (most or len(batch))
            if window := options["window_rows"]:
                assert max(batch) - min(batch) < window
    assert batches_of(lengths, num_ranks, epoch, **options)[1] == ranks


def test_batches_are_full():
    lengths = np.random.default_rng(0).integers(1, 31, 1000)
    tokens = [lengths[batch].max() * len(batch) for batch in TokenBatchSampler(lengths, 400)]
    assert lengths.sum() / sum(tokens) > 0.95
    assert np.mean(tokens) > 0.9 * 400
    sums = [lengths[batch].sum() for batch in TokenBatchSampler(lengths, 400, padding_free=True)]
    assert np.mean(sums) > 0.97 * 400


def test_epochs_differ_and_so_do_their_batches():
    lengths = np.random.default_rng(0).integers(1, 11, 300)
    epochs = [batches_of(lengths, epoch=epoch, window_rows=64)[1][0] for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    members = [{frozenset(batch) for batch in batches} for batches in epochs]
    assert len(members[0] & members[1]) < len(members[0]) / 2


def test_without_shuffle_windows_follow_one_another_longest_first():
    _, (batches,) = batches_of([10, 30, 20, 5, 40, 20], window_rows=3, shuffle=False)
    assert batches == [[1], [2, 0], [4], [5, 3]]
    _, (batches,) = batches_of([5, 20, 20, 10, 15, 10], window_rows=3, shuffle=False, padding_free=True)
    assert batches == [[1, 0], [2], [4, 3, 5]]


def test_workers_get_neighbouring_rows():
    lengths = [10] * 400
    sampler = TokenBatchSampler(lengths, LIMIT, num_workers=4, window_rows=20)
    batches = list(sampler)
    for worker in range(4):
        windows = {row // 20 for batch in batches[worker::4] for row in batch}
        assert len(windows) <= 12


def test_a_pass_begins_where_it_is_told_and_the_next_one_at_the_start():
    sampler = TokenBatchSampler([7] * 100, LIMIT, num_ranks=2, rank=1)
    whole = list(sampler)
    sampler.set_epoch(0, first_batch=4)
    assert list(sampler) == whole[4:]
    assert list(sampler) == whole


def test_refusals():
    with pytest.raises(ConfigError, match=r"first is row 1 with 48 tokens"):
        TokenBatchSampler([3, 41], LIMIT, pad_to_multiple_of=8)
    for endless in (np.array([1, 2**63 + 5], np.uint64), np.array([1.0, 1e30]), np.array([1, 2**63 - 1])):
        with pytest.raises(ConfigError, match=r"first is row 1 with [0-9.e+]{5,} tokens"):
            TokenBatchSampler(endless, LIMIT, pad_to_multiple_of=8)
    with pytest.raises(ConfigError, match="pad_to_multiple_of=8 with padding_free=True"):
        TokenBatchSampler([3], LIMIT, pad_to_multiple_of=8, padding_free=True)
    with pytest.raises(ConfigError, match="first is row 1 with 41 tokens"):
        TokenBatchSampler([3, 41], LIMIT, padding_free=True)
    with pytest.raises(ConfigError, match="row 1 has length nan"):
        TokenBatchSampler([3.0, float("nan")], LIMIT)
    with pytest.raises(ConfigError, match="window_rows=0"):
        TokenBatchSampler([3], LIMIT, window_rows=0)
    with pytest.raises(ConfigError, match="rank=2"):
        TokenBatchSampler([3], LIMIT, num_ranks=2, rank=2)


def test_an_epoch_that_is_refused_changes_nothing():
    sampler = TokenBatchSampler(range(1, 30), LIMIT)
    sampler.set_epoch(3)
    expected = list(sampler)
    with pytest.raises(ConfigError, match="epoch=-1: pass a whole number of at least 0"):
        sampler.set_epoch(-1)
    with pytest.raises(ConfigError, match="first_batch=-1: pass a whole number of at least 0"):
        sampler.set_epoch(4, first_batch=-1)
    assert list(sampler) == expected


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("padding_free", [False, True])
def test_with_a_row_dataset_and_workers(tmp_path, padding_free):
    lengths = np.random.default_rng(1).integers(0, 31, 200)
    pq.write_table(
        pa.table({"row": range(200), "tokens": [[1] * n for n in lengths]}), tmp_path / "t.parquet", row_group_size=32
    )
    rows = RowDataset(tmp_path, length_column="tokens", output_format="dict")
    sampler = TokenBatchSampler(rows.lengths, LIMIT, window_rows=64, num_workers=2, padding_free=padding_free)
    loader = DataLoader(rows, batch_sampler=sampler, num_workers=2, collate_fn=list)
    batches = list(loader)
    assert len(batches) == len(loader)
    assert sorted(row["row"] for batch in batches for row in batch) == list(range(200))
    of_batches = [[len(row["tokens"]) for row in batch] for batch in batches]
    assert all(sum(each) <= LIMIT if padding_free else max(each) * len(each) <= LIMIT for each in of_batches)
