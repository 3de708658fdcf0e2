"""Batches under a token budget: every row once, none too large, equal steps and exact resume, for any lengths."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.plan.model import Plan, advance, files, make_space, resume, under
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.program import rows_of_batches
from torch_dataloader_utils._core.token_budget import TokenBudget, halve_largest
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.chunks import chunk_row_groups, order_chunks
from torch_dataloader_utils.plan.token_batches import cap_rows, cut_batches, group_chunks, join_batches

MAX_TOKENS = 40

topologies = st.builds(
    Topology,
    num_ranks=st.integers(1, 6),
    num_workers=st.integers(1, 4),
    batch_size=st.one_of(st.integers(1, 5), st.integers(1, 50)),
    drop_last=st.booleans(),
)
options = st.builds(
    PlanOptions,
    split_rows=st.one_of(st.none(), st.integers(1, 60)),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    shuffle_rows=st.integers(1, 80),
    interleave=st.integers(1, 5),
    bucket_by=st.just("tokens"),
    max_tokens_per_batch=st.just(MAX_TOKENS),
    pad_to_multiple_of=st.sampled_from([1, 4, 8]),
    padding_free=st.booleans(),
)


def make_plan(files, lengths, options, topology, epoch=0):
    """A fresh plan, and the length of every plan row."""
    space = make_space(files)
    lengths = np.resize(np.asarray(lengths), space.num_rows)
    chunks = order_chunks(chunk_row_groups(space, options), options, 0)
    batches = cut_batches(chunks, lengths, options.token_budget(topology.batch_size), options, epoch)
    position = Position(epoch=epoch, segment=Segment(topology=topology))
    return Plan(space=space, options=options, chunks=chunks, batches=batches, position=position), lengths


@st.composite
def plans(draw):
    lengths = draw(st.lists(st.one_of(st.integers(0, MAX_TOKENS), st.integers(0, 4)), min_size=1, max_size=60))
    return make_plan(draw(files), lengths, draw(options), draw(topologies), draw(st.integers(0, 2)))


def batches_of(program, lengths):
    """The batches of one worker, as lists of plan rows."""
    (lane,) = program.lanes
    rows = []
    for start, stop, window in zip(lane.start, lane.stop, lane.window, strict=True):
        stored = np.concatenate([np.arange(a, b) for a, b in zip(*lane.windows.pieces(window), strict=True)])
        key = int(lane.windows.keys[window])
        order = program.by_length.order(lengths[stored], seed=program.seed, epoch=program.epoch, index=key)
        rows += stored[order][start:stop].tolist()
    taken = np.append(0, np.cumsum(program.batching.batch_rows))
    assert taken[-1] == len(rows) == program.num_rows == rows_of_batches(program.batching)
    return [rows[a:b] for a, b in pairwise(taken.tolist())]


def rank_batches(plan, lengths, rank):
    """The batches that a rank's trainer receives from the plan's position on."""
    workers = [iter(batches_of(program, lengths)) for program in plan.programs(rank)]
    return [next(workers[step % len(workers)]) for step in range(plan.position.done, int(plan.rank_steps[rank]))]


def deliver(plan, lengths):
    """Every rank's batches to the end, and all their rows counted."""
    ranks = [rank_batches(plan, lengths, rank) for rank in range(plan.position.topology.num_ranks)]
    return ranks, Counter(row for batches in ranks for batch in batches for row in batch)


def tokens(plan, lengths, batch):
    """The tokens that count of a batch: its rows as they are, or all padded to the longest."""
    if plan.options.padding_free:
        return sum(lengths[row] for row in batch)
    multiple = plan.options.pad_to_multiple_of
    return len(batch) * max(1, -(-max(lengths[row] for row in batch) // multiple)) * multiple


@given(plans())
@settings(max_examples=effort(200), deadline=None)
def test_every_row_once_within_the_budget_and_equal_steps(made):
    plan, lengths = made
    ranks, counts = deliver(plan, lengths)
    assert len({len(batches) for batches in ranks}) == 1
    for rank, batches in enumerate(ranks):
        assert len(batches) == plan.rank_steps[rank]
        assert sum(map(len, batches)) == plan.rank_rows[rank] + plan.padding_rows(rank)
        for batch in batches:
            assert 1 <= len(batch) <= plan.position.topology.batch_size
            assert tokens(plan, lengths, batch) <= MAX_TOKENS
    total = plan.space.num_rows
    assert total - len(counts) == plan.dropped_rows
    assert sum(counts.values()) - len(counts) == plan.repeated_rows < plan.position.topology.num_ranks
    if plan.position.topology.drop_last:
        assert plan.repeated_rows == 0
    else:
        assert plan.dropped_rows == 0
        if any(len(batch) > 1 for batches in ranks for batch in batches):
            assert plan.repeated_rows == 0


@given(plans(), st.data())
@settings(max_examples=effort(100), deadline=None)
def test_resume_on_the_same_topology_continues_at_the_next_batch(made, data):
    plan, lengths = made
    whole, _ = deliver(plan, lengths)
    step = data.draw(st.integers(0, int(plan.rank_steps[0])))
    rest, _ = deliver(advance(plan, step), lengths)
    assert rest == [batches[step:] for batches in whole]


@given(plans(), st.lists(st.tuples(st.integers(0, 30), topologies), max_size=3))
@settings(max_examples=effort(150), deadline=None)
def test_chains_of_resumes_deliver_every_row_once_and_keep_the_budget(made, chain):
    plan, lengths = made
    received = Counter()
    for steps, topology in chain:
        ranks, _ = deliver(plan, lengths)
        # A job that has taken its last step resumes in the next epoch.
        steps = min(steps, max(0, int(plan.rank_steps[0]) - 1))
        received.update(row for batches in ranks for batch in batches[:steps] for row in batch)
        plan = resume(advance(plan, steps), topology)
    ranks, rest = deliver(plan, lengths)
    received.update(rest)
    assert len({len(batches) for batches in ranks}) == 1
    assert plan.space.num_rows - len(received) == plan.dropped_rows
    assert sum(received.values()) - len(received) == plan.repeated_rows
    for batches in ranks:
        for batch in batches:
            assert len(batch) <= plan.position.topology.batch_size
            assert tokens(plan, lengths, batch) <= MAX_TOKENS


@given(plans(), st.integers(2, 6))
@settings(max_examples=effort(50), deadline=None)
def test_batches_are_the_same_on_any_number_of_ranks_but_for_halves(made, num_ranks):
    plan, lengths = made
    topology = replace(plan.position.topology, num_ranks=1, num_workers=1, drop_last=False)
    alone, together = under(plan, topology), under(plan, replace(topology, num_ranks=num_ranks))
    ((one,), _), (many, _) = deliver(alone, lengths), deliver(together, lengths)
    whole = [set(batch) for batch in one]
    parts = [set(batch) for batches in many for batch in batches]
    assert all(any(part <= batch for batch in whole) for part in parts)
    if len(one) % num_ranks == 0:
        assert [batch for batches in many for batch in batches] == one


@given(files, st.lists(st.integers(0, MAX_TOKENS), min_size=1, max_size=60), options, topologies)
@settings(max_examples=effort(50), deadline=None)
def test_every_epoch_has_as_many_steps_and_rows(files, lengths, options, topology):
    epochs = [make_plan(files, lengths, options, topology, epoch)[0] for epoch in range(3)]
    assert len({plan.rank_steps.tobytes() for plan in epochs}) == 1
    assert len({len(plan.batches) for plan in epochs}) == 1
    assert all(plan.repeated_rows == epochs[0].repeated_rows for plan in epochs)


@given(files, options)
@settings(max_examples=effort(100), deadline=None)
def test_groups_are_whole_chunks_and_windows_about_as_large_as_asked(files, options):
    space = make_space(files)
    chunks = chunk_row_groups(space, options)
    groups = group_chunks(chunks, options)
    found = []
    for group in groups:
        pieces = list(zip(group.windows.piece_start.tolist(), group.windows.piece_stop.tolist(), strict=True))
        found.append({row for start, stop in pieces for row in range(start, stop)})
        assert group.rows.max() <= options.shuffle_rows
        assert group.num_rows == len(found[-1])
        assert len(groups) == 1 or group.rows[0] > options.shuffle_rows * 0.6
    assert sum(map(len, found)) == space.num_rows
    of_chunks = [set(range(start, stop)) for start, stop in zip(chunks.start, chunks.stop, strict=True)]
    assert all(sum(chunk <= rows for rows in found) == 1 for chunk in of_chunks)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    max_rows=st.integers(1, 9),
    multiple=st.sampled_from([1, 4]),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=effort(100), deadline=None)
def test_a_window_is_cut_as_a_loop_would(lengths, max_rows, multiple, seed):
    budget = TokenBudget(max_tokens=MAX_TOKENS, max_rows=max_rows, pad_to_multiple_of=multiple)
    widths = sorted((max(1, -(-length // multiple)) * multiple for length in lengths), reverse=True)
    expected, batch = [], []
    for each in widths:
        if batch and ((len(batch) + 1) * batch[0] > MAX_TOKENS or len(batch) == max_rows):
            expected.append(batch)
            batch = []
        batch.append(each)
    expected.append(batch)
    key = {"seed": seed, "epoch": 1, "index": 7}
    order, sizes = budget.order(np.array(lengths), **key), budget.batch_rows(np.array(lengths), **key)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    of_rows = budget.widths(np.array(lengths))[order]
    found = [sorted(part.tolist(), reverse=True) for part in np.split(of_rows, np.cumsum(sizes)[:-1])]
    assert sorted(found) == sorted(expected)
    assert budget.batch_rows(np.array(lengths, dtype=np.float32), **key).tolist() == sizes.tolist()


def test_the_order_of_a_window_is_pinned():
    budget = TokenBudget(max_tokens=12, max_rows=8)
    lengths = np.array([5, 1, 4, 2, 9, 9, 0])
    key = {"seed": 42, "epoch": 1, "index": 7}
    assert budget.batch_rows(lengths, **key).tolist() == [1, 1, 2, 3]
    assert budget.order(lengths, **key).tolist() == [5, 4, 0, 2, 6, 3, 1]


def test_depends_on_every_part_of_the_key():
    budget, lengths = TokenBudget(max_tokens=12, max_rows=8), np.ones(50, dtype=np.int64)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    orders = [budget.order(lengths, seed=s, epoch=e, index=i).tolist() for s, e, i in keys]
    assert len({tuple(order) for order in orders}) == 4


@given(rows=st.lists(st.integers(1, 9), max_size=30), divisor=st.integers(1, 12))
@settings(max_examples=effort(100), deadline=None)
def test_halving_takes_the_largest_and_stops_at_single_rows(rows, divisor):
    stop = np.cumsum(np.array(rows, dtype=np.int64))
    start, end, part_of = halve_largest(stop - np.array(rows, dtype=np.int64), stop, divisor)
    assert start.tolist() == [0, *end[:-1].tolist()][: len(start)]
    assert int(end[-1] if len(end) else 0) == sum(rows)
    assert np.bincount(part_of, end - start, minlength=len(rows)).tolist() == rows
    assert len(start) % divisor == 0 or set((end - start).tolist()) == {1}
    assert len(start) - len(rows) < divisor or set((end - start).tolist()) == {1}


def test_batches_are_capped_in_equal_parts_and_lanes_joined():
    batches = Units(
        start=np.array([0, 7, 9, 0]),
        stop=np.array([7, 9, 10, 4]),
        window=np.array([0, 0, 0, 1]),
        windows=Units.none().windows,
    )
    capped = cap_rows(batches, 3)
    assert capped.rows.tolist() == [2, 2, 3, 2, 1, 2, 2]
    assert join_batches(capped).stop.tolist() == [10, 4]
    assert len(join_batches(capped.take(slice(0, 0)))) == 0


def test_windows_are_gathered_by_one_worker_but_at_the_borders_of_runs():
    plan, _ = make_plan(
        [[100] * 8],
        [3, 5, 1, 8],
        PlanOptions(shuffle_rows=50, bucket_by="t", max_tokens_per_batch=MAX_TOKENS),
        Topology(num_ranks=2, num_workers=2),
    )
    lanes = [lane for rank in range(2) for program in plan.programs(rank) for lane in program.lanes]
    assert all(len(np.unique(lane.window)) == len(lane) for lane in lanes)
    keys = Counter(key for lane in lanes for key in lane.windows.keys[lane.window].tolist())
    assert len(keys) == 16
    assert sum(count - 1 for count in keys.values()) <= 3


@pytest.mark.parametrize(
    "more",
    [{"bucket_by": ""}, {"num_lanes": 4}, {"rank_sharding": "chunks"}, {"strategy": "x"}, {"max_tokens_per_batch": 0}],
)
def test_refusals(more):
    with pytest.raises(ConfigError, match="max_tokens"):
        PlanOptions(**{"shuffle_rows": 8, "bucket_by": "t", "max_tokens_per_batch": 5, **more})
