"""Exactly once, equal steps, exact resume: for any files, options, topologies and chains of resumes."""

import sys
import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.lines_run import lines_run
from tests.plan.model import advance, make_plan, make_space, plans, rank_batches, resume, rows_of, topologies, under
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Segment
from torch_dataloader_utils._core.program import touched_groups
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.row_assignment import RemainingRows, remaining_lanes, remaining_units
from torch_dataloader_utils.plan.windows import group_windows


def deliver(plan):
    """Every rank's batches to the end, and all their rows counted."""
    ranks = [rank_batches(plan, rank) for rank in range(plan.position.topology.num_ranks)]
    return ranks, Counter(row for batches in ranks for batch in batches for row in batch)


def check_counts(plan, counts, expected_rows):
    """Delivered rows are the expected ones but for the announced drops and repeats."""
    assert set(counts) <= set(expected_rows)
    assert sum(counts.values()) - len(counts) == plan.repeated_rows
    assert len(set(expected_rows) - set(counts)) == plan.dropped_rows


@given(plans())
@settings(max_examples=effort(300), deadline=None)
def test_every_row_once_and_equal_steps(plan):
    ranks, counts = deliver(plan)
    check_counts(plan, counts, range(plan.space.num_rows))
    assert len({len(batches) for batches in ranks}) == 1
    for rank, batches in enumerate(ranks):
        assert len(batches) == plan.rank_steps[rank]
        sizes = [len(batch) for batch in batches]
        assert all(1 <= size <= plan.position.topology.batch_size for size in sizes)
        assert all(size == plan.position.topology.batch_size for size in sizes[:-2])
        if plan.position.topology.drop_last:
            assert all(size == plan.position.topology.batch_size for size in sizes)


@given(plans(), st.data())
@settings(max_examples=effort(150), deadline=None)
def test_resume_on_the_same_topology_continues_at_the_next_batch(plan, data):
    whole, _ = deliver(plan)
    step = data.draw(st.integers(0, int(plan.rank_steps[0])))
    rest, _ = deliver(advance(plan, step))
    assert rest == [batches[step:] for batches in whole]


@given(plans(), st.lists(st.tuples(st.integers(0, 30), topologies), max_size=3), st.integers(0, 2))
@settings(max_examples=effort(200), deadline=None)
def test_chains_of_resumes_deliver_every_row_once(plan, chain, final_steps):
    plan = under(plan, replace(plan.position.topology, drop_last=False))
    received, repeats = Counter(), 0
    for steps, topology in chain:
        ranks, _ = deliver(plan)
        steps = min(steps, int(plan.rank_steps[0]))
        at_end = steps == plan.rank_steps[0]
        received.update(row for batches in ranks for batch in batches[:steps] for row in batch)
        repeats += plan.repeated_rows if at_end and steps else 0
        plan = resume(advance(plan, steps), replace(topology, drop_last=False))
    ranks, rest = deliver(plan)
    received.update(rest)
    assert set(received) == set(range(plan.space.num_rows))
    assert sum(received.values()) == plan.space.num_rows + repeats + plan.repeated_rows
    assert len({len(batches) for batches in ranks}) == 1


@given(plans(), st.lists(st.tuples(st.integers(0, 30), topologies), min_size=1, max_size=3))
@settings(max_examples=effort(200), deadline=None)
def test_rows_that_one_topology_would_drop_are_left_for_the_next(plan, chain):
    received = Counter()
    for number, (steps, topology) in enumerate(chain):
        ranks, counts = deliver(plan)
        assert int(plan.rank_rows.sum()) + plan.dropped_rows == plan.space.num_rows - len(received)
        assert not set(counts) & set(received)
        steps = min(steps, int(plan.rank_steps[0]))
        if plan.repeated_rows:
            steps = min(steps, int(plan.rank_steps[0]) - 1)
        received.update(row for batches in ranks for batch in batches[:steps] for row in batch)
        is_last = number == len(chain) - 1
        plan = resume(advance(plan, steps), replace(topology, drop_last=topology.drop_last and not is_last))
    rest = deliver(plan)[1]
    assert sum(rest.values()) - len(rest) == plan.repeated_rows
    received.update(set(rest))
    assert received == Counter(range(plan.space.num_rows))


@given(plans())
@settings(max_examples=effort(100), deadline=None)
def test_balancing_moves_at_most_one_range_fewer_than_ranks(plan):
    assert plan.cuts <= plan.position.topology.num_ranks - 1
    assert plan.rank_rows.max() - plan.rank_rows.min() <= 1


@given(plans())
@settings(max_examples=effort(100), deadline=None)
def test_chunk_sharding_gives_each_rank_its_slice(plan):
    plan = under(plan, replace(plan.position.topology, drop_last=False))
    plan = replace(plan, options=replace(plan.options, rank_sharding="chunks", shuffle_rows=None, host_shares=None))
    for rank in range(plan.position.topology.num_ranks):
        mine = plan.chunks.take(slice(rank, None, plan.position.topology.num_ranks))
        delivered = [row for batch in rank_batches(plan, rank) for row in batch]
        assert sorted(delivered) == sorted(rows_of(mine, 0, 0))


def test_nine_one_chunk_files_over_three_ranks():
    plan = make_plan(
        space=make_space([[10]] * 9),
        options=PlanOptions(rank_sharding="chunks"),
        epoch=0,
        topology=Topology(num_ranks=3, batch_size=10),
    )
    files = [sorted({row // 10 for batch in rank_batches(plan, rank) for row in batch}) for rank in range(3)]
    assert files == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


@pytest.mark.parametrize(("chunks", "ranks", "expected"), [(7, 3, [3, 2, 2]), (2, 4, [1, 1, 0, 0])])
def test_chunk_sharding_may_leave_ranks_uneven_and_rows_never_does(chunks, ranks, expected):
    def plan(sharding):
        return make_plan(
            space=make_space([[12]] * chunks),
            options=PlanOptions(rank_sharding=sharding),
            epoch=0,
            topology=Topology(num_ranks=ranks, batch_size=12),
        )

    assert plan("chunks").rank_steps.tolist() == expected
    assert len(set(plan("rows").rank_steps.tolist())) == 1


def test_a_plan_of_a_million_row_groups_keeps_its_arrays_small():
    space = make_space([[10] * 1000] * 1000)
    plan = make_plan(
        space=space,
        options=PlanOptions(shuffle=True, split_rows=10),
        epoch=1,
        topology=Topology(num_ranks=1024, num_workers=8),
    )
    programs = plan.programs(1023)
    assert sum(program.num_rows for program in programs) == plan.rank_rows[1023]


def test_one_more_rank_of_a_resumed_epoch_costs_that_rank_alone():
    starts = np.arange(100_000) * 10
    topology = Topology(num_ranks=100, num_workers=8, batch_size=64)
    rest = RemainingRows(units=Units.plain(starts, starts + 10), topology=topology)
    rest.rank(0)
    tracemalloc.start()
    try:
        ranks = [rest.rank(rank) for rank in (1, 50, 99)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [mine.sizes.rows for mine in ranks] == [10_000] * 3
    # A number for each unit would be 800,000 bytes; a rank has 1,000 of them.
    assert peak_bytes < 200_000


@given(
    rows=st.lists(st.integers(1, 12), max_size=8),
    topology=st.builds(
        Topology,
        num_ranks=st.integers(1, 6),
        num_workers=st.integers(1, 4),
        batch_size=st.integers(1, 9),
        drop_last=st.booleans(),
    ),
    steps=st.lists(st.integers(0, 9), min_size=6, max_size=6),
)
@settings(max_examples=effort(100), deadline=None)
def test_what_remains_of_all_ranks_is_what_remains_of_each(rows, topology, steps):
    starts = 2 * np.cumsum(np.array(rows, dtype=np.int64))
    rest = RemainingRows(units=Units.plain(starts, starts + rows), topology=topology)
    received = Segment(topology=topology, steps=tuple(steps[: topology.num_ranks]))
    expected = []
    for rank in range(topology.num_ranks):
        mine = rest.rank(rank)
        expected += [*remaining_lanes(mine, received.steps_of(rank)), mine.dropped]
    found, expected = remaining_units(rest, received), Units.concat(expected)
    assert (found.start.tolist(), found.stop.tolist()) == (expected.start.tolist(), expected.stop.tolist())


def test_a_topology_of_many_ranks_in_a_long_log_costs_little():
    starts = np.arange(1_000) * 1_000
    topology = Topology(num_ranks=64, num_workers=4, batch_size=16)
    rest = RemainingRows(units=Units.plain(starts, starts + 1_000), topology=topology)
    # Some 500 lines; rank by rank it was 34,000, and 200 such topologies took a second.
    assert lines_run(lambda: remaining_units(rest, Segment(topology=topology, steps=3))) < 1_500


def plan_of_lanes(num_lanes):
    """As many files as lanes, of unequal sizes, so that about every lane gives rows or receives some."""
    return make_plan(
        space=make_space([[16 + 8 * (file % 3)] for file in range(num_lanes)]),
        options=PlanOptions(num_lanes=num_lanes, lane_rows=8),
        topology=Topology(num_ranks=4, batch_size=8),
    )


def test_eight_times_the_lanes_take_about_eight_times_the_work():
    few, many = plan_of_lanes(128), plan_of_lanes(1024)
    assert lines_run(lambda: many.programs(1)) < 12 * lines_run(lambda: few.programs(1))


@pytest.mark.parametrize("has_tail", [False, True])
def test_one_more_rank_of_lanes_costs_that_rank_alone(has_tail):
    def work(num_ranks):
        beyond_whole_steps = [[8]] * (num_ranks // 2 if has_tail else 0)
        plan = make_plan(
            space=make_space([[8 * num_ranks]] * num_ranks + beyond_whole_steps),
            options=PlanOptions(num_lanes=num_ranks, lane_rows=8),
            topology=Topology(num_ranks=num_ranks, batch_size=8),
        )
        plan.programs(0)
        return lines_run(lambda: plan.programs(1))

    assert work(256) < 1.2 * work(16)


def test_a_batch_costs_no_look_at_lanes_it_does_not_draw_from():
    few, many = (plan_of_lanes(lanes).programs(1)[0].batching for lanes in (128, 1024))
    assert lines_run(lambda: many.parts(1)) == lines_run(lambda: few.parts(1))


def test_the_row_groups_of_a_few_rows_are_found_without_a_number_for_each_of_all():
    space = make_space([[10] * 1000] * 100)
    rows = Units.plain(np.array([500_005, 15]), np.array([500_025, 20]))
    touched_groups(rows, space)
    tracemalloc.start()
    try:
        touched = touched_groups(rows, space)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert touched.tolist() == [1, 50_000, 50_001, 50_002]
    # A number for each of the 100,000 row groups would be 800,000 bytes.
    assert peak_bytes < 100_000


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=8),
    st.sampled_from([(24, [(1, 1, 4), (2, 1, 4), (2, 3, 2), (4, 1, 4), (8, 1, 4), (3, 2, 4), (1, 6, 8), (12, 1, 1)])]),
    st.one_of(st.none(), st.integers(1, 30)),
    st.data(),
)
@settings(max_examples=effort(100), deadline=None)
@example([[40, 40, 40], [33]], (24, [(1, 1, 4), (2, 1, 2)]), None, None)
def test_lanes_give_the_same_rows_on_every_topology(files, shapes, shuffle_rows, data):
    num_lanes, topologies = shapes
    space = make_space(files)
    options = PlanOptions(
        shuffle=True, split_rows=7, num_lanes=num_lanes, lane_rows=1, shuffle_rows=shuffle_rows, interleave=2
    )
    for shape in topologies:
        ranks, workers, batch = shape
        if num_lanes % (ranks * batch * workers):
            continue
        plan = make_plan(
            space=space,
            options=options,
            epoch=1,
            topology=Topology(num_ranks=ranks, num_workers=workers, batch_size=batch),
        )
        by_rank, counts = deliver(plan)
        assert set(counts) == set(range(space.num_rows))
        assert sum(counts.values()) == space.num_rows + plan.repeated_rows
        for rank, batches in enumerate(by_rank):  # no row is read that is in no batch
            assert sum(program.num_rows for program in plan.programs(rank)) == sum(map(len, batches))
        numbered = rank_batches_as_numbers(plan)
        single = make_plan(space=space, options=options, epoch=1, topology=Topology(batch_size=1))
        one_by_one = [batch[0] for batch in rank_batches(single, 0)]
        whole = len(by_rank[0]) if space.num_rows % (ranks * batch) == 0 else len(by_rank[0]) - 1
        for step in range(whole):
            expected = one_by_one[step * ranks * batch : (step + 1) * ranks * batch]
            assert set(numbered[step]) == set(expected)
            for rank in range(ranks):
                assert by_rank[rank][step] == expected[rank::ranks]


def rank_batches_as_numbers(plan):
    """Global batches: per step, the rows of all ranks."""
    ranks = [rank_batches(plan, rank) for rank in range(plan.position.topology.num_ranks)]
    return [[row for batches in ranks for row in batches[step]] for step in range(len(ranks[0]))]


@given(st.integers(0, 6), st.integers(0, 6))
@settings(max_examples=effort(40), deadline=None)
def test_lanes_continue_on_another_topology(first_steps, second_steps):
    space = make_space([[37, 12], [40], [5, 0, 31]])
    options = PlanOptions(shuffle=True, split_rows=9, num_lanes=24, lane_rows=2)
    shapes = [Topology(num_ranks=2, num_workers=2, batch_size=6), Topology(num_ranks=3, batch_size=4)]
    plan = make_plan(space=space, options=options, epoch=0, topology=shapes[0])
    received = Counter()
    for steps, following in ((first_steps, shapes[1]), (second_steps, Topology(num_ranks=1, batch_size=8))):
        steps = min(steps, int(plan.rank_steps[0]))
        received.update(row for step in rank_batches_as_numbers(plan)[:steps] for row in step)
        plan = resume(advance(plan, steps), following)
    received.update(deliver(plan)[1])
    assert received == Counter(range(space.num_rows))


def test_lanes_and_a_strategy_both_deal_chunks():
    with pytest.raises(ConfigError, match="Leave one out"):
        PlanOptions(num_lanes=4, strategy="ByHand")


def test_lanes_that_do_not_fit_say_which_would():
    plan = make_plan(
        space=make_space([[10]]),
        options=PlanOptions(num_lanes=10, lane_rows=2),
        epoch=0,
        topology=Topology(num_ranks=3, batch_size=4),
    )
    with pytest.raises(ConfigError, match="num_lanes=6 or a multiple"):
        _ = plan.rank_steps


def test_lanes_far_beyond_the_data_that_do_not_fit_are_told_too():
    plan = make_plan(space=make_space([[10]]), options=PlanOptions(num_lanes=10**12), topology=Topology(num_ranks=3))
    with pytest.raises(ConfigError, match="500000000000, 1000000000000]"):
        _ = plan.rank_steps


@pytest.mark.parametrize("target", ["split_rows", "split_bytes"])
def test_a_chunk_as_large_as_numbers_go_is_a_file(target):
    plan = make_plan(
        space=make_space([[10, 0, 5, 0], [], [3, 4]]),
        options=PlanOptions(**{target: sys.maxsize}),
        topology=Topology(batch_size=2),
    )
    chunks = plan.chunks
    assert list(zip(chunks.start.tolist(), chunks.stop.tolist(), strict=True)) == [(0, 15), (15, 22)]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_out_of_range_is_an_error(rank):
    plan = make_plan(
        space=make_space([[4]]), options=PlanOptions(), epoch=0, topology=Topology(num_ranks=2, batch_size=2)
    )
    with pytest.raises(ConfigError, match="global rank"):
        plan.programs(rank)


def test_golden_order_of_an_epoch():
    plan = make_plan(
        space=make_space([[1]] * 8), options=PlanOptions(shuffle=True, seed=42), epoch=3, topology=Topology()
    )
    assert (
        plan.chunks.start.tolist()
        == np.argsort(
            np.random.Philox(key=np.array([42, 3], np.uint64), counter=np.array([0, 0, 0, 1], np.uint64)).random_raw(8)
        ).tolist()
    )


def test_windows_of_whole_row_groups_draw_from_the_units_that_are_open():
    lane = Units.plain(np.array([0, 6]), np.array([6, 12]))
    units = group_windows(lane, np.arange(0, 13, 2), window_rows=4, interleave=2)
    starts = units.windows.piece_start.tolist()
    assert [starts[a:b] for a, b in pairwise(units.windows.offsets.tolist())] == [[0, 6], [2, 8], [4, 10]]
