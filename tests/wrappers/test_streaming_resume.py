"""State of a sharded stream: the rest of every pass, from every place, also over several resumes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.effort import effort
from tests.wrappers.streams import IteratorStateStream, PlainStream, StatefulStream
from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.wrappers import streaming_shard

TAILS = [{}, {"even_batches": False}, {"drop_last": True}]


def take(shard, count):
    """The next `count` items and the state after them; the iterator is dropped as in a crash."""
    items = iter(shard)
    taken = [next(items) for _ in range(count)]
    return taken, json.loads(json.dumps(shard.state_dict()))


@settings(max_examples=effort(150), deadline=None)
@given(
    st.sampled_from([PlainStream, StatefulStream, IteratorStateStream]),
    st.integers(0, 30),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(TAILS),
    st.booleans(),
    st.data(),
)
def test_any_chain_of_resumes_gives_the_uninterrupted_pass(kind, count, num_shards, batch_size, tail, contiguous, data):
    options = dict(tail, batch_size=batch_size, contiguous=contiguous, length=count)
    index = data.draw(st.integers(0, num_shards - 1))
    whole = list(streaming_shard(kind(count), num_shards, index, **options))
    given_items, state = [], None
    for _ in range(3):
        shard = streaming_shard(kind(count), num_shards, index, **options)
        if state is not None:
            shard.load_state_dict(state)
        part, state = take(shard, data.draw(st.integers(0, len(whole) - len(given_items))))
        given_items += part
    shard = streaming_shard(kind(count), num_shards, index, **options)
    shard.load_state_dict(state)
    assert given_items + list(shard) == whole
    assert list(shard) == whole, "the pass after the resumed one"


@pytest.mark.parametrize("tail", TAILS)
def test_a_stateful_source_is_put_back_and_not_walked(tail):
    _, state = take(streaming_shard(StatefulStream(10_000), 4, 1, batch_size=2, **tail), 2001)
    source = StatefulStream(10_000)
    shard = streaming_shard(source, 4, 1, batch_size=2, **tail)
    shard.load_state_dict(state)
    next(iter(shard))
    assert source.num_read <= 3 * 4 * 2


@pytest.mark.parametrize("kind", [PlainStream, IteratorStateStream])
def test_shards_of_one_shard_that_are_read_in_turns_save_their_own_places(kind):
    inner = streaming_shard(kind(30), 2, 0)
    outer = [streaming_shard(inner, 2, index) for index in range(2)]
    whole = [list(shard) for shard in outer]
    passes = [iter(shard) for shard in outer]
    first = [next(passes[0]) for _ in range(3)]
    next(passes[1])
    resumed = streaming_shard(streaming_shard(kind(30), 2, 0), 2, 0)
    resumed.load_state_dict(outer[0].state_dict())
    assert first + list(resumed) == whole[0]


class Counting:
    """An iterator with a state."""

    def __init__(self):
        self.given = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.given == 10:
            raise StopIteration
        self.given += 1
        return self.given - 1

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class WithStatesOfItsOwn:
    """An iterable whose own state does not say where its iterator stands."""

    def __iter__(self):
        return Counting()

    def state_dict(self):
        return {"epoch": 0}

    def load_state_dict(self, state):
        assert state.keys() == {"epoch"}


def test_the_state_of_an_iterator_goes_back_to_the_iterator():
    stream = streaming_shard(WithStatesOfItsOwn(), 1, 0)
    items = iter(stream)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    resumed = streaming_shard(WithStatesOfItsOwn(), 1, 0)
    resumed.load_state_dict(stream.state_dict())
    assert list(resumed) == [4, 5, 6, 7, 8, 9]


def test_state_does_not_grow_with_the_position():
    shard = streaming_shard(StatefulStream(10_000), 2, 1, batch_size=8)
    sizes = {len(json.dumps(take(shard, count)[1])) for count in (10, 4000)}
    assert max(sizes) < 300


def test_a_state_taken_before_the_resumed_source_was_read_is_right():
    source = StatefulStream(4)
    shard = streaming_shard(source, 1, 0, batch_size=2, drop_last=True)
    _, state = take(shard, 2)
    shard.load_state_dict(state)
    part, state = take(shard, 1)
    shard.load_state_dict(state)
    assert part + list(shard) == [2, 3]


def test_loading_in_the_same_process_goes_back():
    shard = streaming_shard(StatefulStream(12), 2, 0, batch_size=2)
    first, state = take(shard, 3)
    list(shard)
    shard.load_state_dict(state)
    assert first + list(shard) == [0, 1, 4, 5, 8, 9]


def test_state_after_the_end_is_the_start_of_the_next_epoch():
    shard = streaming_shard(PlainStream(4), 2, 0)
    assert list(shard) == [0, 2]
    state = shard.state_dict()
    assert (state["epoch"], state["yielded"]) == (1, 0)
    again = streaming_shard(PlainStream(4), 2, 0)
    again.load_state_dict(state)
    again.set_epoch(1)
    assert list(again) == [1000, 1002]


def test_state_before_the_end_is_noticed_gives_nothing_more_in_this_epoch():
    shard = streaming_shard(PlainStream(4), 2, 0)
    _, state = take(shard, 2)
    shard.load_state_dict(state)
    assert [list(shard), list(shard)] == [[], [0, 2]]


def test_the_epoch_of_a_loaded_state_keeps_its_place_and_another_one_starts_anew():
    for epoch, wanted in ((3, [3002, 3003]), (4, [4000, 4001, 4002, 4003])):
        shard = streaming_shard(PlainStream(4), 1, 0)
        shard.set_epoch(3)
        _, state = take(shard, 2)
        resumed = streaming_shard(PlainStream(4), 1, 0)
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert list(resumed) == wanted


def test_the_state_of_rank_0_serves_all_ranks():
    _, state = take(streaming_shard(StatefulStream(20), 2, 0), 4)
    other = streaming_shard(StatefulStream(20), 2, 1)
    other.load_state_dict(state)
    assert list(other) == [9, 11, 13, 15, 17, 19]


def test_a_state_that_is_already_further_is_refused():
    _, state = take(streaming_shard(StatefulStream(20), 2, 1), 4)
    other = streaming_shard(StatefulStream(20), 2, 0)
    other.load_state_dict(dict(state, yielded=1))
    with pytest.raises(CheckpointMismatchError, match="at item 8"):
        list(other)


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"drop_last": True}, {"contiguous": True, "length": 20}])
def test_a_state_of_other_options_is_refused(options):
    _, state = take(streaming_shard(PlainStream(20), 2, 0), 4)
    with pytest.raises(CheckpointMismatchError, match="Shard with the same options"):
        streaming_shard(PlainStream(20), 2, 0, **options).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="num_shards"):
        streaming_shard(PlainStream(20), 4, 0).load_state_dict(state)


@pytest.mark.parametrize("state", [{}, {"yielded": 3}, {"version": 2}, None, [1]])
def test_something_else_than_a_state_is_refused(state):
    with pytest.raises(CheckpointMismatchError, match="Not a streaming_shard state"):
        streaming_shard(PlainStream(20), 2, 0).load_state_dict(state)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", -1),
        ("epoch", "1"),
        ("epoch", 2**63 - 1),
        ("epoch", 2**63),
        ("yielded", 1.5),
        ("yielded", True),
        ("position", None),
        ("is_finished", "no"),
    ],
)
def test_a_wrong_value_in_a_state_is_refused(key, value):
    shard = streaming_shard(PlainStream(20), 2, 0)
    with pytest.raises(CheckpointMismatchError, match=f"The state says {key}={value!r}"):
        shard.load_state_dict({**shard.state_dict(), key: value})
    assert list(shard) == list(range(0, 20, 2))


def test_the_state_of_no_worker_is_refused():
    shard = streaming_shard(PlainStream(20), 2, 0)
    _, state = take(shard, 3)
    shard.load_state_dict({**state, "worker": 7})
    with pytest.raises(CheckpointMismatchError, match=r"of how many\) 7, this is \[0, 1\]"):
        list(shard)


@pytest.mark.processes
def test_a_state_of_one_process_is_refused_by_two_workers():
    shard = streaming_shard(PlainStream(20), 2, 0)
    _, state = take(shard, 3)
    shard.load_state_dict(state)
    with pytest.raises(CheckpointMismatchError, match="number of workers"):
        list(DataLoader(shard, batch_size=None, num_workers=2))


@pytest.mark.parametrize("items", [40, 42])  # 42 need padding, which comes behind the end of the inner shard
def test_nested_shards_resume(items):
    def nested():
        return streaming_shard(streaming_shard(StatefulStream(items), 2, 1), 2, 0, batch_size=2)

    whole = list(nested())
    for count in range(len(whole) + 1):
        part, state = take(nested(), count)
        resumed = nested()
        resumed.load_state_dict(state)
        assert part + list(resumed) == whole
