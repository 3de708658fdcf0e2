"""The order of `BufferSortedDataset`: the documented algorithm, and the same from every side."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.effort import effort
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError
from torch_dataloader_utils.wrappers import BufferSortedDataset, DatasetImplementingSortKeyProtocol, ShardedDataset

# Golden order of 10 items of equal length, buffers of 4, packs of 2, seed 42: a change breaks resumed runs.
GOLDEN = {0: [1, 3, 0, 2, 7, 6, 4, 5, 8, 9], 1: [1, 2, 0, 3, 6, 5, 4, 7, 9, 8]}


class Lengths:
    """Items are their own index; the sort key is a given length."""

    def __init__(self, lengths):
        self.lengths, self.num_keys = list(lengths), 0

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return index

    def sort_key(self, index):
        self.num_keys += 1
        return self.lengths[index]


lengths_with_ties = st.lists(st.integers(0, 5), max_size=40)


def test_the_golden_order():
    dataset = BufferSortedDataset(Lengths([1] * 10), 4, 2, init_seed=42)
    orders = {}
    for epoch in GOLDEN:
        dataset.set_epoch(epoch)
        orders[epoch] = list(dataset)
    assert orders == GOLDEN


@settings(max_examples=effort(150), deadline=None)
@given(lengths_with_ties, st.integers(1, 12), st.integers(1, 5), st.integers(0, 3))
def test_packs_of_a_buffer_are_runs_of_its_sorted_lengths(lengths, buffer_size, pack_size, epoch):
    dataset = BufferSortedDataset(Lengths(lengths), buffer_size, pack_size, init_seed=7)
    dataset.set_epoch(epoch)
    order = list(dataset)
    assert sorted(order) == list(range(len(lengths)))
    for start in range(0, len(lengths), buffer_size):
        buffer = order[start : start + buffer_size]
        assert sorted(buffer) == list(range(start, min(start + buffer_size, len(lengths))))
        in_order = sorted(lengths[item] for item in buffer)
        packs = [sorted(in_order[at : at + pack_size]) for at in range(0, len(in_order), pack_size)]
        # Walk the buffer pack by pack: which pack comes next is random, the short one can come anywhere.
        assert split_into(packs, [lengths[item] for item in buffer])


def split_into(packs, rest):
    """Whether `rest` is the packs in some order, each in some order."""
    if not packs:
        return not rest
    tried = set()
    for place, pack in enumerate(packs):
        if tuple(pack) not in tried and sorted(rest[: len(pack)]) == pack:
            tried.add(tuple(pack))
            if split_into(packs[:place] + packs[place + 1 :], rest[len(pack) :]):
                return True
    return False


@settings(max_examples=effort(100), deadline=None)
@given(lengths_with_ties, st.integers(1, 12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_access_gives_the_order_of_one_pass(lengths, buffer_size, pack_size, chooser):
    dataset = BufferSortedDataset(Lengths(lengths), buffer_size, pack_size, init_seed=3)
    order = list(dataset)
    assert list(dataset) == order, "a second pass"
    asked = list(range(len(lengths)))
    chooser.shuffle(asked)
    fresh = BufferSortedDataset(Lengths(lengths), buffer_size, pack_size, init_seed=3)
    assert {index: fresh[index] for index in asked} == dict(enumerate(order))


def test_a_fresh_object_asked_for_a_later_buffer_first_agrees():
    lengths = [3, 1, 2, 0, 3, 1, 2, 0, 1, 1]
    order = list(BufferSortedDataset(Lengths(lengths), 4, 2, init_seed=0))
    fresh = BufferSortedDataset(Lengths(lengths), 4, 2, init_seed=0)
    assert [fresh[index] for index in range(4, 8)] == order[4:8]


@pytest.mark.processes
def test_workers_agree_and_persistent_ones_see_the_epoch():
    chooser = random.Random(1)
    lengths = [chooser.randrange(100) for _ in range(64)]
    dataset = BufferSortedDataset(Lengths(lengths), 16, 4, init_seed=5)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
    orders = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        together = [batch.tolist() for batch in loader]
        assert together == [batch.tolist() for batch in DataLoader(dataset, batch_size=4)]
        orders.append(together)
    del loader
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_equal_keys_come_in_random_order():
    dataset = BufferSortedDataset(Lengths([0] * 64), 64, 64, init_seed=1)
    assert list(dataset) != list(range(64))


def test_epoch_and_seed_are_not_added():
    def order(seed, epoch):
        dataset = BufferSortedDataset(Lengths([0] * 32), 16, 4, init_seed=seed)
        dataset.set_epoch(epoch)
        return list(dataset)

    assert order(0, 1) != order(1, 0)


def test_keys_of_a_buffer_are_asked_once():
    base = Lengths(range(100))
    list(BufferSortedDataset(base, 25, 5))
    assert base.num_keys == 100


def test_sorting_a_shard_and_sharding_a_sorted_dataset():
    base = Lengths([5, 1, 4, 2, 8, 3, 7, 6, 9, 0])
    sorted_shards = [BufferSortedDataset(ShardedDataset(base, 2, r, "sequential", False), 4, 2) for r in range(2)]
    shards_of_sorted = [ShardedDataset(BufferSortedDataset(base, 4, 2), 2, r, "chunked", False) for r in range(2)]
    for shards in (sorted_shards, shards_of_sorted):
        assert sorted(item for shard in shards for item in shard) == list(range(10))


def test_state_is_json_and_brings_the_epoch():
    saved = BufferSortedDataset(Lengths(range(20)), 8, 2, init_seed=9)
    saved.set_epoch(6)
    loaded = BufferSortedDataset(Lengths(range(20)), 8, 2, init_seed=9)
    loaded.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    assert list(loaded) == list(saved)


@pytest.mark.parametrize(
    "other",
    [
        BufferSortedDataset(Lengths(range(20)), 8, 2, init_seed=8),
        BufferSortedDataset(Lengths(range(20)), 4, 2, init_seed=9),
        BufferSortedDataset(Lengths(range(20)), 8, 4, init_seed=9),
        BufferSortedDataset(Lengths(range(21)), 8, 2, init_seed=9),
    ],
    ids=["seed", "buffer_size", "pack_size", "length"],
)
def test_a_state_of_another_order_is_refused(other):
    dataset = BufferSortedDataset(Lengths(range(20)), 8, 2, init_seed=9)
    with pytest.raises(CheckpointMismatchError, match="another order"):
        dataset.load_state_dict(other.state_dict())
    with pytest.raises(CheckpointMismatchError, match="another order"):
        dataset.load_state_dict(dict(dataset.state_dict(), surplus=1))


@pytest.mark.parametrize("epoch", [-1, "1", 0.5, None, 2**63 - 1, 2**63])
def test_an_epoch_that_is_none_is_refused(epoch):
    dataset = BufferSortedDataset(Lengths(range(20)), 8, 2)
    with pytest.raises(CheckpointMismatchError, match=f"The state says epoch={epoch!r}"):
        dataset.load_state_dict({**dataset.state_dict(), "epoch": epoch})
    with pytest.raises(
        (ConfigError, ConfigTypeError), match=rf"epoch={epoch!r}: (pass a whole number of at least 0|no epoch can)"
    ):
        dataset.set_epoch(epoch)
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        dataset[0.5]


def test_protocol_and_refusals():
    assert isinstance(Lengths([]), DatasetImplementingSortKeyProtocol)
    with pytest.raises(ConfigTypeError, match="sort_key"):
        BufferSortedDataset([1, 2], 4, 2)
    with pytest.raises(ConfigError, match="at least 1"):
        BufferSortedDataset(Lengths([1]), 0, 2)
    with pytest.raises(IndexError):
        BufferSortedDataset(Lengths([1]), 4, 2)[1]


def test_keys_need_only_compare():
    words = ["pear", "fig", "apple", "kiwi"]
    dataset = BufferSortedDataset(Lengths([(len(word), word) for word in words]), 4, 1)
    assert sorted(dataset) == [0, 1, 2, 3]
    assert sorted(BufferSortedDataset(Lengths(np.array([2.5, 0.5])), 2, 1)) == [0, 1]
