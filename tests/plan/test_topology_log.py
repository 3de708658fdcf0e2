"""The log of a state: exact, also from version 2, and below 1 kB for 200 topologies in one epoch."""

import json
from base64 import b85encode
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.packed_numbers import PackedColumns, packed
from torch_dataloader_utils._core.position import Position, RankCursors, Segment
from torch_dataloader_utils._core.sealed_state import sealed
from torch_dataloader_utils._core.state import Identity, decode_state, encode_state, merge_states
from torch_dataloader_utils.errors import CheckpointMismatchError

IDENTITY = Identity(
    fingerprint="fcf0f7a022967e24cacf8c4f9479a051",
    options=PlanOptions(shuffle=True, shuffle_rows=65_536),
    settings=(
        ("columns", "row_id, pickup, fare, distance"),
        ("filters", "none"),
        ("snapshot", "none"),
        ("files", "128 files 5be1c0de"),
        ("schema", "5be1c0de"),
        ("rows", "1024 row groups 5be1c0de"),
    ),
)

counts = st.one_of(st.integers(0, 9), st.integers(0, 5000), st.integers(0, 2**63 - 1))


@st.composite
def segments(draw):
    """A stretch of an epoch; ranks may differ in steps, and there may be cursors."""
    topology = Topology(
        num_ranks=draw(st.integers(1, 4)),
        num_workers=draw(st.integers(1, 3)),
        batch_size=draw(counts) or 1,
        drop_last=draw(st.booleans()),
    )
    each = st.tuples(*[st.one_of(st.none(), counts)] * topology.num_ranks)
    cursors = st.tuples(*[st.tuples(counts, counts)] * topology.num_workers)
    of_rank = st.builds(RankCursors, workers=cursors, next_worker=st.integers(0, topology.num_workers - 1))
    of_ranks = st.lists(st.tuples(st.integers(0, topology.num_ranks - 1), of_rank), min_size=1, max_size=3)
    return Segment(
        topology=topology,
        steps=draw(st.one_of(counts, counts, each)),
        cursors=draw(st.one_of(st.none(), st.none(), of_ranks.map(tuple))),
    )


logs = st.lists(segments(), min_size=1, max_size=30)


def saved(state):
    return json.loads(json.dumps(state))


def position_of(log, epoch=3):
    return Position(epoch=epoch, history=tuple(log[:-1]), segment=log[-1])


@given(log=logs, all_taken=st.booleans())
@settings(max_examples=effort(60), deadline=None)
def test_a_log_of_any_length_comes_back_as_it_was(log, all_taken):
    topology = log[-1].topology
    if all_taken:
        position = Position(
            epoch=3, segment=Segment(topology=topology), before=(*log, Segment(topology=topology, steps=None))
        )
    else:
        position = position_of([*log, Segment(topology=topology, steps=7)])
    state = saved(encode_state(IDENTITY, position))
    assert decode_state(state, IDENTITY, topology) == (position, None)
    assert merge_states([state] * topology.num_ranks) == state


@given(log=logs)
@settings(max_examples=effort(30), deadline=None)
def test_a_log_of_version_2_becomes_the_same_log(log):
    """Version 2 has all topologies in columns, and no next worker: it follows from the steps."""
    log = [*log, Segment(topology=log[-1].topology, steps=7)]
    old = {
        "num_ranks": [each.topology.num_ranks for each in log],
        "num_workers": [each.topology.num_workers for each in log],
        "batch_size": [each.topology.batch_size for each in log],
        "drop_last": [each.topology.drop_last for each in log],
        "steps": [list(each.steps) if isinstance(each.steps, tuple) else each.steps for each in log],
        "cursors": [[[rank, of_rank.workers] for rank, of_rank in each.cursors or ()] for each in log],
    }
    state = {**encode_state(IDENTITY, position_of(log)), "version": 2, "log": old}
    del state["checksum"]
    position, _ = decode_state(saved(sealed(state)), IDENTITY, log[-1].topology)
    for found, expected in zip(position.segments, log, strict=True):
        assert (found.topology, found.steps) == (expected.topology, expected.steps)
        for (rank, of_rank), (before, cursors) in zip(found.cursors or (), expected.cursors or (), strict=True):
            steps = found.steps if isinstance(found.steps, int) else found.steps[rank] or 0
            assert (rank, of_rank.workers) == (before, cursors.workers)
            assert of_rank.next_worker == steps % found.topology.num_workers


def random_log(random, length, **values):
    """Topologies and steps, each value drawn from its own list."""
    drawn = [{name: random.choice(of) for name, of in values.items()} for _ in range(length)]
    return [Segment(steps=each.pop("steps"), topology=Topology(**each)) for each in drawn]


@pytest.mark.parametrize(
    "values",
    [
        {"num_ranks": [2, 3], "batch_size": [4], "steps": [1]},
        {
            "num_ranks": [8, 16, 24, 32, 64],
            "num_workers": [1, 2, 4, 8],
            "batch_size": [64, 128, 256, 512, 1024],
            "drop_last": [False, True],
            "steps": [1, 10, 50, 100, 500],
        },
        {"num_ranks": range(1, 9), "num_workers": range(1, 5), "batch_size": range(1, 65), "steps": range(1, 10)},
        {"num_ranks": [6, 7, 8], "num_workers": [4], "batch_size": [256, 512], "steps": range(1, 1000)},
    ],
    ids=["two in turn", "a handful of each", "small numbers", "many steps"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_state_of_200_topologies_takes_less_than_1_kb(values, seed):
    position = position_of(random_log(Random(seed), 201, **values))
    state = saved(encode_state(IDENTITY, position))
    assert len(json.dumps(state)) < 1_000
    assert decode_state(state, IDENTITY, position.topology) == (position, None)


def test_a_log_too_long_to_pack_is_written_out_and_exact():
    position = position_of(random_log(Random(1), 1_000, num_ranks=[2], batch_size=range(1, 9), steps=[3, (1, None)]))
    state = saved(encode_state(IDENTITY, position))
    assert 1 < len(state["log"]["num_ranks"]) < 1_000
    assert decode_state(state, IDENTITY, position.topology) == (position, None)


columns = st.lists(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=40), max_size=5)


@given(columns=columns)
@example(columns=[[0] * 40, [5] * 40, []])
@settings(max_examples=effort(60), deadline=None)
def test_packed_numbers_come_back(columns):
    text = packed(columns)
    assert json.dumps(text) == f'"{text}"'
    reader = PackedColumns(text)
    assert [reader.column(len(column)) for column in columns] == columns
    assert reader.is_read


@given(text=st.one_of(st.text(max_size=20), st.binary(max_size=20).map(lambda data: b85encode(data).decode())))
@example(text=packed([[1 << 40], [1]]))
@example(text=packed([[2], [1 << 20] * 2, [1] * 2, [1] * 2, [0] * 2, [1] * 2]))
@settings(max_examples=effort(60), deadline=None)
def test_a_changed_text_of_earlier_topologies_is_a_log_or_refused(text):
    """With a checksum that fits, as only somebody who changes states on purpose would make one."""
    state = encode_state(IDENTITY, position_of([Segment(topology=Topology(), steps=1)]))
    del state["checksum"]
    state["log"]["earlier"] = text
    try:
        position, _ = decode_state(sealed(state), IDENTITY, Topology())
    except CheckpointMismatchError:
        return
    assert all(each.topology.num_ranks > 0 for each in position.segments)
