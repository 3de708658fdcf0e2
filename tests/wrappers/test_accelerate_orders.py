"""Batch mode against accelerate itself, item by item."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from tests.effort import effort
from torch_dataloader_utils.wrappers import streaming_shard

data_loader = pytest.importorskip("accelerate.data_loader", reason="needs accelerate")


class Sized(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return self.count


@settings(max_examples=effort(150), deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.booleans())
def test_items_are_those_of_iterable_dataset_shard(count, run_items, num_shards, drop_last, split_batches):
    batch_size = run_items * num_shards if split_batches else run_items
    for index in range(num_shards):
        theirs = data_loader.IterableDatasetShard(
            Sized(count),
            batch_size=batch_size,
            drop_last=drop_last,
            num_processes=num_shards,
            process_index=index,
            split_batches=split_batches,
        )
        ours = streaming_shard(
            Sized(count), num_shards, index, batch_size=batch_size, drop_last=drop_last, split_batches=split_batches
        )
        assert list(ours) == list(theirs)
        assert len(ours) == len(list(ours))
        if not split_batches:
            assert len(ours) == len(theirs)


@settings(max_examples=effort(150), deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.booleans(), st.booleans())
def test_even_batches_is_that_of_batch_sampler_shard(
    count, run_items, num_shards, drop_last, split_batches, even_batches
):
    batch_size = run_items * num_shards if split_batches else run_items
    options = {"split_batches": split_batches, "even_batches": even_batches}
    for index in range(num_shards):
        sampler = BatchSampler(SequentialSampler(range(count)), batch_size, drop_last)
        theirs = data_loader.BatchSamplerShard(sampler, num_shards, index, **options)
        ours = streaming_shard(range(count), num_shards, index, batch_size=batch_size, drop_last=drop_last, **options)
        assert list(ours) == [item for batch in theirs for item in batch]
