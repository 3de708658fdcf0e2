"""Numbers that a user gives to wrappers, blends and plans: numpy's are taken, text and fractions are refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import StructuredDataset, blend, merge_states, plan_epoch, scan_files
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.wrappers import (
    BufferSortedDataset,
    ShardedDataset,
    ShardIndexingMode,
    TokenBatchSampler,
    pad_stack_1d,
    streaming_shard,
)


class Numbers:
    """Ten items that are their own index and sort key."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index

    def sort_key(self, index):
        return index


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"row": range(40)}), tmp_path / "a.parquet", row_group_size=5)
    return tmp_path


def make_blend(path, weights=(0.5, 0.5), **options):
    loaders = [StructuredDataset.create_dataloader(path, batch_size=5, shuffle=True, num_workers=0)[0] for _ in "ab"]
    return blend(loaders, weights, **options)


def test_numpy_numbers_give_the_order_of_python_numbers():
    orders = []
    for number in (int, np.int64, np.uint8):
        data = BufferSortedDataset(Numbers(), number(4), number(2), init_seed=number(3))
        data.set_epoch(number(2))
        ranks = {"num_ranks": number(2), "rank": number(1), "num_workers": number(2), "seed": number(5)}
        limits = {"window_rows": number(3), "max_rows_per_batch": number(2), "pad_to_multiple_of": number(2)}
        sampler = TokenBatchSampler([1, 2, 3, 4], number(8), **ranks, **limits)
        sampler.set_epoch(number(2))
        shard = ShardedDataset(
            data, number(2), number(1), ShardIndexingMode.chunked, pad_to_equal_size_across_shards=False
        )
        stream = streaming_shard(range(9), num_shards=number(2), index=number(1), batch_size=number(2))
        parts = streaming_shard(range(9), number(2), number(1), batch_size=number(4), split_batches=True)
        padded = pad_stack_1d([torch.ones(3)], 0, pad_to_multiple_of=number(2))
        states = [json.dumps(each.state_dict()) for each in (shard, stream, parts)]
        orders.append([list(shard), list(sampler), list(stream), list(parts), padded.tolist(), states])
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint32, np.uint64])
def test_lengths_may_be_integers_that_do_not_hold_a_batch(dtype):
    lengths, options = [100, 60, 127, 1], {"pad_to_multiple_of": 128, "max_rows_per_batch": 2}
    batches = [list(TokenBatchSampler(np.array(lengths, dtype=of), 2**40, **options)) for of in (np.int64, dtype)]
    assert batches[0] == batches[1]


@pytest.mark.parametrize("number", [np.int64, np.uint8])
def test_shards_of_data_sets_of_ours_may_be_numbered_by_numpy(path, number):
    shard = streaming_shard(StructuredDataset(path, num_ranks=100), number(4), number(3))
    assert (shard.topology.num_ranks, shard.rank, type(shard.rank)) == (400, 300, int)


def test_epochs_of_blends_and_plans_may_be_numpy_numbers(path):
    first, second = make_blend(path, stop=np.int64(4)), make_blend(path, stop=4)
    first.set_epoch(np.int64(2))
    second.set_epoch(2)
    assert json.dumps(first.state_dict()) == json.dumps(second.state_dict())
    assert [batch["row"].tolist() for batch in first] == [batch["row"].tolist() for batch in second]
    plans = [plan_epoch(scan_files(path), shuffle=True, split_rows=5, epoch=epoch) for epoch in (2, np.int64(2))]
    assert plans[0].to_arrow().equals(plans[1].to_arrow())


@pytest.mark.parametrize(
    "call",
    [
        lambda: BufferSortedDataset(Numbers(), 4.0, 2, init_seed=1),
        lambda: BufferSortedDataset(Numbers(), 4, 2, init_seed="1"),
        lambda: BufferSortedDataset(Numbers(), 4, 2, init_seed=1).set_epoch(1.5),
        lambda: TokenBatchSampler([1, 2], 8, num_ranks=1, rank="0"),
        lambda: TokenBatchSampler([1, 2], 8, num_ranks=1, rank=0).set_epoch("1"),
        lambda: ShardedDataset(Numbers(), "2", 0, ShardIndexingMode.chunked, pad_to_equal_size_across_shards=False),
        lambda: streaming_shard(range(8), num_shards=2.0, index=0),
        lambda: streaming_shard(range(8), num_shards=2, index=0, batch_size=1.5),
    ],
)
def test_what_is_no_whole_number_is_refused_at_once(call):
    with pytest.raises(ConfigTypeError, match="pass a whole number"):
        call()


@pytest.mark.parametrize("weights", [1, [None, 1], "ab"])
def test_weights_that_are_no_numbers_are_refused(path, weights):
    with pytest.raises(ConfigTypeError, match="pass a list of positive numbers, one for each source"):
        make_blend(path, weights, stop=4)


LARGE = 2**70


@pytest.mark.parametrize(
    "call",
    [
        lambda path: BufferSortedDataset(Numbers(), LARGE, 2, init_seed=1),
        lambda path: BufferSortedDataset(Numbers(), 4, LARGE, init_seed=1),
        lambda path: BufferSortedDataset(Numbers(), 4, 2, init_seed=1).set_epoch(LARGE),
        lambda path: TokenBatchSampler([1, 2], LARGE),
        lambda path: TokenBatchSampler([1, 2], 8, window_rows=LARGE),
        lambda path: TokenBatchSampler([1, 2], 8, num_workers=LARGE),
        lambda path: TokenBatchSampler([1, 2], 8).set_epoch(LARGE),
        lambda path: streaming_shard(range(9), num_shards=LARGE, index=0),
        lambda path: pad_stack_1d([torch.ones(2)], 0, pad_to_multiple_of=LARGE),
        lambda path: plan_epoch(scan_files(path), epoch=LARGE),
        lambda path: plan_epoch(scan_files(path), split_rows=LARGE),
        lambda path: make_blend(path, stop=LARGE),
        lambda path: make_blend(path, stop=4).set_epoch(LARGE),
        lambda path: StructuredDataset(path, batch_size=LARGE),
    ],
)
def test_numbers_beyond_int64_are_refused_at_once(path, call):
    with pytest.raises(ConfigError, match="that int64 holds"):
        call(path)


def test_the_largest_int64_means_no_limit(path):
    most = 2**63 - 1
    assert len(list(TokenBatchSampler([1, 2], most, max_rows_per_batch=most, window_rows=most))) == 1
    loader, _ = StructuredDataset.create_dataloader(
        path, batch_size=most, split_rows=most, shuffle_rows=most, num_workers=0
    )
    assert [batch["row"].shape[0] for batch in loader] == [40]


def test_seeds_are_taken_modulo_2_to_the_64(path):
    for small, large in ((3, 3 + 2**64), (2**64 - 1, -1)):
        samplers = [list(TokenBatchSampler(range(1, 9), 8, seed=seed)) for seed in (small, large)]
        orders = [list(BufferSortedDataset(Numbers(), 4, 2, init_seed=seed)) for seed in (small, large)]
        rows = [
            [
                batch["row"].tolist()
                for batch in StructuredDataset.create_dataloader(
                    path, batch_size=5, shuffle=True, shuffle_seed=seed, split_rows=5, num_workers=0
                )[0]
            ]
            for seed in (small, large)
        ]
        assert samplers[0] == samplers[1]
        assert orders[0] == orders[1]
        assert rows[0] == rows[1]


@pytest.mark.parametrize("lengths", [3, "abc", ["a"], [None], [[1, 2]], [1, LARGE], None])
def test_lengths_that_are_no_list_of_numbers_are_refused(lengths):
    with pytest.raises(ConfigTypeError, match="pass a list of numbers, the tokens of each row"):
        TokenBatchSampler(lengths, 8)


@pytest.mark.parametrize("items", [3, [3], torch.ones(2, 2), iter([torch.ones(2)])])
def test_items_that_are_no_list_of_tensors_are_refused(items):
    with pytest.raises(ConfigTypeError, match=r"pass (a list of )?1-D tensors"):
        pad_stack_1d(items, 0)


@pytest.mark.parametrize("value", ["x", None, LARGE])
def test_a_pad_value_that_the_dtype_does_not_hold_is_refused(value):
    with pytest.raises(ConfigError, match=r"pass a number|cannot be|does not fit"):
        pad_stack_1d([torch.ones(2, dtype=torch.int64)], value)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([None, None], r"sort_key\(0\) is None and sort_key\(1\) is None, which do not compare"),
        ([1, 2, "a"], r"sort_key\(0\) is 1 and sort_key\(2\) is 'a', which do not compare"),
        ([1, float("nan")], r"sort_key\(1\) is NaN"),
        ([np.float32("nan"), 1], r"sort_key\(0\) is NaN"),
    ],
)
def test_keys_in_no_order_are_told(keys, says):
    numbers = Numbers()
    numbers.sort_key = (keys + [3] * 10).__getitem__
    with pytest.raises(ConfigError, match=says):
        list(BufferSortedDataset(numbers, len(keys), 2))


def test_a_function_that_gives_no_stream_is_told():
    with pytest.raises(ConfigTypeError, match="function of the stream gave an int: return an iterable"):
        list(streaming_shard(lambda: 5, 2, 0))


def test_a_negative_length_is_told():
    with pytest.raises(ConfigError, match="lengths: row 1 has length -1"):
        TokenBatchSampler([3, -1], 8)


@pytest.mark.parametrize("states", [5, {}, "state"])
def test_states_are_a_list(states):
    with pytest.raises(ConfigTypeError, match="pass a list of the states of all ranks"):
        merge_states(states)


@pytest.mark.parametrize("rank", ["a", 1.5])
def test_a_plan_is_asked_for_whole_ranks(path, rank):
    plan = plan_epoch(scan_files(path), num_ranks=2)
    for ask in (plan.worker_inputs, plan.padding_rows, lambda rank: plan.to_arrow([rank])):
        with pytest.raises(ConfigTypeError, match=f"rank={rank!r}: pass a whole number"):
            ask(rank)
    with pytest.raises(ConfigTypeError, match=f"max_ranks={rank!r}: pass a whole number"):
        plan.explain(rank)
    with pytest.raises(ConfigTypeError, match="ranks=5: pass a list of ranks"):
        plan.to_arrow(5)
