"""Samplers: the orders of Megatron-LM, equal numbers of full batches on all ranks, exact resume."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.corpora import (
    FullValidationSampler,
    GlobalBatchSampler,
    PretrainingRandomSampler,
    PretrainingSampler,
)


def _ranks(kind: type, *arguments: Any, **options: Any) -> list[list[Any]]:
    return [list(kind(*arguments, rank, 2, **options)) for rank in range(2)]


def test_samples_in_order() -> None:
    assert _ranks(PretrainingSampler, 10, 0, 2) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert _ranks(PretrainingSampler, 10, 4, 2) == [[[4, 5]], [[6, 7]]]


def test_last_samples_are_filled_up_and_no_batch_is_empty() -> None:
    assert _ranks(PretrainingSampler, 10, 0, 2, drop_last=False) == [
        [[0, 1], [4, 5], [8, 9]],
        [[2, 3], [6, 7], [None, None]],
    ]


@pytest.mark.parametrize(
    ("data_sharding", "orders"),
    [
        (True, [[[0, 1], [3, 2]], [[4, 5], [7, 6]]]),
        (False, [[[4, 7], [3, 0]], [[1, 5], [9, 8]]]),
    ],
)
def test_random_orders_of_the_original(data_sharding: bool, orders: list[list[list[int]]]) -> None:
    assert _ranks(PretrainingRandomSampler, 10, 0, 2, data_sharding=data_sharding) == orders


@settings(max_examples=effort(60))
@given(
    total=st.integers(1, 60),
    micro_batch=st.integers(1, 4),
    ranks=st.integers(1, 4),
    sharding=st.booleans(),
    steps_done=st.integers(0, 20),
)
def test_random_epochs_are_equal_on_ranks_and_resume_anywhere(
    total: int, micro_batch: int, ranks: int, sharding: bool, steps_done: int
) -> None:
    step = micro_batch * ranks
    if total < step:
        with pytest.raises(ConfigError, match=r"do not fill one step of .* Lower micro_batch_size"):
            PretrainingRandomSampler(total, 0, micro_batch, 0, ranks, sharding)
        return
    seen = []
    for rank in range(ranks):
        sampler = PretrainingRandomSampler(total, 0, micro_batch, rank, ranks, sharding)
        assert len(sampler) == total // step
        epochs = [list(sampler), list(sampler)]
        assert [len(epoch) for epoch in epochs] == [total // step] * 2
        seen += [sample for batch in epochs[0] for sample in batch]
        done = steps_done % (2 * (total // step))
        resumed = PretrainingRandomSampler(total, done * step, micro_batch, rank, ranks, sharding)
        assert [*resumed] == [*itertools.chain(*epochs)][done : (done // (total // step) + 1) * (total // step)]
    assert len(seen) == len(set(seen)) == total - total % step
    assert set(seen) <= set(range(total))


@settings(max_examples=effort(60))
@given(total=st.integers(1, 60), consumed=st.integers(0, 70), micro_batch=st.integers(1, 4), ranks=st.integers(1, 4))
def test_ranks_take_every_sample_once_in_equal_numbers_of_full_batches(
    total: int, consumed: int, micro_batch: int, ranks: int
) -> None:
    consumed %= total
    samplers = [PretrainingSampler(total, consumed, micro_batch, rank, ranks, False) for rank in range(ranks)]
    batches = [list(sampler) for sampler in samplers]
    assert {len(each) for each in batches} == {len(samplers[0])}
    assert all(len(batch) == micro_batch for each in batches for batch in each)
    samples = [sample for each in batches for batch in each for sample in batch if sample is not None]
    assert sorted(samples) == list(range(consumed, total))


def test_global_batches() -> None:
    def sampler(rank: int, total: int, drop_last: bool = True) -> GlobalBatchSampler:
        return GlobalBatchSampler(total, 0, 2, 8, rank, 2, drop_last)

    assert list(sampler(0, 16)) == [[0, 1, 4, 5], [8, 9, 12, 13]]
    assert list(sampler(1, 16)) == [[2, 3, 6, 7], [10, 11, 14, 15]]
    assert list(sampler(0, 10)) == [[0, 1, 4, 5]]
    assert list(sampler(0, 10, False)) == [[0, 1, 4, 5], [8, 9, None, None]]
    assert list(sampler(1, 10, False)) == [[2, 3, 6, 7], [None] * 4]
    assert len(sampler(0, 10, False)) == 2


def test_full_validation_is_even() -> None:
    assert _ranks(FullValidationSampler, 5) == [[0, 2, 4], [1, 3, None]]
    assert len(FullValidationSampler(5, 1, 2)) == 3


def test_impossible_samplers() -> None:
    with pytest.raises(ConfigError, match=r"data_parallel_rank=2 is not in \[0, data_parallel_size=2\)\. Pass"):
        PretrainingSampler(10, 0, 2, 2, 2)
    with pytest.raises(ConfigError, match="micro_batch_size"):
        PretrainingSampler(10, 0, 0, 0, 2)
    with pytest.raises(ConfigError, match="micro_batch_size"):
        GlobalBatchSampler(10, 0, 0, 8, 0, 2)
    with pytest.raises(ConfigError, match="total_samples=0: pass a whole number of at least 1"):
        PretrainingSampler(0, 0, 1, 0, 1)
    with pytest.raises(ConfigError, match="total_samples=0: pass a whole number of at least 1"):
        FullValidationSampler(0, 0, 1)
    with pytest.raises(ConfigError, match="consumed_samples=-1: pass a whole number of at least 0"):
        PretrainingSampler(9, -1, 1, 0, 1)
    for consumed in (10, 11):
        with pytest.raises(ConfigError, match=rf"consumed_samples={consumed} of total_samples=10: none are left"):
            PretrainingSampler(10, consumed, 1, 0, 1)
        with pytest.raises(ConfigError, match=rf"consumed_samples={consumed} of total_samples=10: none are left"):
            GlobalBatchSampler(10, consumed, 1, 2, 0, 1)
    with pytest.raises(ConfigError, match=r"whole number of steps of 4\. Resume with"):
        PretrainingRandomSampler(10, 3, 2, 0, 2)
    with pytest.raises(ConfigError, match=r"global_batch_size=7 is not a whole number of steps of 4 samples\. Pass a"):
        GlobalBatchSampler(10, 0, 2, 7, 0, 2)
