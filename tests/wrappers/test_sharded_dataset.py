"""Shards of map-style data sets: content and length for every N and S."""

import json

import pytest
import torch
import torch.distributed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, IterableDataset

from tests.effort import effort
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.wrappers import ShardedDataset, ShardIndexingMode

# (items, mode, padded) -> items of 4 shards. Lengths of the chunked mode were 2, 2, 2, -1 in the system replaced.
FOUR_SHARDS = [
    ((5, "sequential", False), [[0, 4], [1], [2], [3]]),
    ((5, "sequential", True), [[0, 4], [1, 4], [2, 4], [3, 4]]),
    ((5, "chunked", False), [[0, 1], [2, 3], [4], []]),
    ((5, "chunked", True), [[0, 1], [2, 3], [4, 4], [4, 4]]),
    ((10, "chunked", False), [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
    ((1, "chunked", False), [[0], [], [], []]),
    ((1, "chunked", True), [[0], [0], [0], [0]]),
    ((0, "sequential", True), [[], [], [], []]),
    ((14, "sequential", False), [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10], [3, 7, 11]]),
    ((14, "chunked", False), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]),
]


class Items:
    """range(count) with an epoch, a state, and batched reads that are counted."""

    def __init__(self, count):
        self.count, self.epoch, self.num_batched_reads = count, 0, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return index

    def __getitems__(self, indices):
        self.num_batched_reads += 1
        return [self[index] for index in indices]

    def sort_key(self, index):
        return -index

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict):
        self.epoch = state_dict["epoch"]


@pytest.mark.parametrize(("case", "wanted"), FOUR_SHARDS)
def test_content_and_length(case, wanted):
    count, mode, is_padded = case
    every_shard = [ShardedDataset(list(range(count)), 4, index, mode, is_padded) for index in range(4)]
    assert [[shard[index] for index in range(len(shard))] for shard in every_shard] == wanted


@settings(max_examples=effort(200), deadline=None)
@given(st.integers(0, 60), st.integers(1, 12), st.sampled_from(ShardIndexingMode), st.booleans())
def test_every_item_once_and_lengths_that_add_up(count, total_shards, mode, is_padded):
    every_shard = [
        ShardedDataset(list(range(count)), total_shards, index, mode, is_padded) for index in range(total_shards)
    ]
    flat = [item for shard in every_shard for item in shard]
    assert [len(list(shard)) for shard in every_shard] == [len(shard) for shard in every_shard]
    if is_padded:
        assert {len(shard) for shard in every_shard} == {-(-count // total_shards)}
        assert set(flat) == set(range(count))
        assert all(item == count - 1 for item in flat if flat.count(item) > 1)
    else:
        assert sorted(flat) == list(range(count))


@pytest.mark.parametrize("mode", ShardIndexingMode)
@pytest.mark.parametrize("is_padded", [False, True])
def test_past_the_end_is_an_index_error_and_negative_counts_from_the_end(mode, is_padded):
    shard = ShardedDataset(list(range(10)), 4, 3, mode, is_padded)
    assert shard[-1] == shard[len(shard) - 1]
    for index in (len(shard), -len(shard) - 1):
        with pytest.raises(IndexError, match="of shard 3"):
            shard[index]


def test_a_fraction_is_no_item():
    shard = ShardedDataset([1, 2, 3], 2, 1, "chunked", False)
    for wrong in (0.5, 0.0, "0"):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            shard[wrong]
    assert shard[torch.tensor(0)] == 3


@pytest.mark.parametrize("state", [None, [1], "state"])
def test_something_else_than_a_state_is_refused(state):
    with pytest.raises(CheckpointMismatchError, match=f"it is {of_type(state)}. Load what state_dict returned"):
        ShardedDataset([1, 2, 3], 2, 1, "chunked", False).load_state_dict(state)


def test_batched_reads_stay_batched():
    items = Items(10)
    loader = DataLoader(ShardedDataset(items, 2, 1, "sequential", False), batch_size=3)
    assert [batch.tolist() for batch in loader] == [[1, 3, 5], [7, 9]]
    assert items.num_batched_reads == 2


def test_sort_key_and_epoch_pass_through():
    items = Items(10)
    shard = ShardedDataset(items, 2, 1, "chunked", False)
    shard.set_epoch(4)
    assert (shard.sort_key(0), items.epoch) == (-5, 4)
    with pytest.raises(ConfigTypeError, match="list has no sort_key"):
        ShardedDataset([1], 1, 0, "chunked", False).sort_key(0)


def test_state_is_json_and_loading_keeps_the_own_shard():
    saved = ShardedDataset(Items(10), 4, 1, "sequential", True)
    saved.set_epoch(2)
    items = Items(10)
    shard = ShardedDataset(items, 4, 3, "sequential", True)
    shard.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    assert list(shard) == [3, 7, 9]
    assert items.epoch == 2


@pytest.mark.parametrize(
    "other",
    [
        ShardedDataset(Items(10), 2, 1, "sequential", True),
        ShardedDataset(Items(10), 4, 1, "chunked", True),
        ShardedDataset(Items(11), 4, 1, "sequential", True),
        ShardedDataset(list(range(10)), 4, 1, "sequential", True),
    ],
    ids=["shard count", "mode", "length", "no state below"],
)
def test_a_state_that_does_not_fit_is_refused(other):
    shard = ShardedDataset(Items(10), 4, 1, "sequential", True)
    with pytest.raises(CheckpointMismatchError, match="does not fit"):
        shard.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], 0, 0, "chunked", False), "Shard 0 of 0"),
        (([1], 2, 2, "chunked", False), "Shard 2 of 2"),
        (([1], 2, 0, "random", False), "use one of sequential, chunked"),
    ],
)
def test_impossible_shards_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ShardedDataset(*arguments)


def test_padding_is_on_or_off():
    with pytest.raises(ConfigTypeError, match="pad_to_equal_size_across_shards='no'"):
        ShardedDataset([1], 2, 0, "chunked", "no")


def test_a_stream_is_sent_to_streaming_shard():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(ConfigTypeError, match="streaming_shard"):
        ShardedDataset(Stream(), 2, 0, "chunked", False)


def test_without_a_process_group_there_is_one_shard():
    assert list(ShardedDataset.from_process_group([1, 2, 3])) == [1, 2, 3]


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_what_is_no_mesh_is_named():
    with pytest.raises(ConfigTypeError, match=r"^mesh is .*None.*: pass a DeviceMesh"):
        ShardedDataset.from_mesh([1, 2, 3], None, "dp")


@pytest.mark.filterwarnings("ignore")
def test_a_process_group_and_a_mesh_say_which_shard(one_rank):
    assert list(ShardedDataset.from_process_group([1, 2, 3], torch.distributed.group.WORLD)) == [1, 2, 3]
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    shard = ShardedDataset.from_mesh([1, 2, 3], mesh, "dp", indexing_mode="chunked")
    assert list(shard) == [1, 2, 3]
