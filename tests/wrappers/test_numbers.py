"""Numbers that a user gives to wrappers, blends and plans: numpy's are taken, text and fractions are refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import StructuredDataset, blend, plan_epoch, scan_files
from torch_dataloader_utils.errors import ConfigTypeError
from torch_dataloader_utils.wrappers import (
    BufferSortedDataset,
    ShardedDataset,
    ShardIndexingMode,
    TokenBatchSampler,
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
    for number in (int, np.int64):
        data = BufferSortedDataset(Numbers(), number(4), number(2), init_seed=number(3))
        data.set_epoch(number(2))
        sampler = TokenBatchSampler([1, 2, 3, 4], 8, num_ranks=number(2), rank=number(1), seed=number(5))
        sampler.set_epoch(number(2))
        shard = ShardedDataset(
            data, number(2), number(1), ShardIndexingMode.chunked, pad_to_equal_size_across_shards=False
        )
        stream = streaming_shard(range(9), num_shards=number(2), index=number(1), batch_size=number(2))
        orders.append([list(shard), list(sampler), list(stream), json.dumps(shard.state_dict())])
    assert orders[0] == orders[1]


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
