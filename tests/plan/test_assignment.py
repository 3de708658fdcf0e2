"""Assigned chunks: heaviest first by bytes, whole ones kept from the front, and to another worker each epoch."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.plan.model import (
    Plan,
    bytes_of_groups,
    files,
    make_plan,
    make_space,
    options,
    rank_batches,
    rows_of,
    topologies,
)
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, RankCursors, Segment
from torch_dataloader_utils._core.splits import DataFileInfo, RowGroups, Shard, Split
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.assignment import EpochInputs
from torch_dataloader_utils.plan.balance import assign_units, worker_order
from torch_dataloader_utils.plan.chunks import chunk_row_groups, order_chunks
from torch_dataloader_utils.plan.planner import assign_epoch
from torch_dataloader_utils.plan.row_assignment import StrategyRows
from torch_dataloader_utils.plan.strategies import TargetSizeSplitStrategy
from torch_dataloader_utils.plan.strategy_call import StrategyCall
from torch_dataloader_utils.plan.uncounted import UncountedAssignment


@st.composite
def plain_plans(draw, **fixed):
    """Fresh plans whose rows come in the order of their chunks; fixed: values of the topology."""
    return make_plan(
        space=make_space(draw(files), draw(bytes_of_groups)),
        options=replace(draw(options), shuffle_rows=None),
        epoch=draw(st.integers(0, 3)),
        topology=replace(draw(topologies), **fixed),
    )


def chunks_of_workers(plan, rank):
    """The chunks of each worker of a rank as (start, stop): heaviest first, to the worker with the fewest bytes."""
    topology = plan.position.topology
    chunks = list(zip(plan.chunks.start.tolist(), plan.chunks.stop.tolist(), strict=True))[rank :: topology.num_ranks]
    starts, stops = np.array(chunks, dtype=np.int64).reshape(-1, 2).T
    weights = plan.space.bytes_between(starts, stops).tolist()
    order = list(worker_order(topology.num_workers, plan.options, plan.position.epoch, rank))
    loads, owned = [0] * topology.num_workers, [[] for _ in order]
    for index in sorted(range(len(chunks)), key=lambda index: (-weights[index], index)):
        worker = min(order, key=lambda worker: (loads[worker], order.index(worker)))
        loads[worker] += weights[index]
        owned[worker].append(index)
    return [[chunks[index] for index in sorted(indices)] for indices in owned]


def kept_rows(chunks, rows):
    """The rows that balancing leaves of these chunks: whole ones from the front, and the end of one more."""
    kept = []
    for start, stop in chunks:
        kept.extend(range(max(start, stop - rows), stop))
        rows -= min(rows, stop - start)
    return kept


@given(plain_plans(num_ranks=1, drop_last=False))
@settings(max_examples=effort(150), deadline=None)
def test_a_worker_keeps_the_chunks_that_the_fewest_bytes_gave_it(plan):
    for program, chunks in zip(plan.programs(0), chunks_of_workers(plan, 0), strict=True):
        rows = rows_of(program.lanes[0], program.seed, program.epoch)
        kept = kept_rows(chunks, len(rows) - plan.padding_rows(0))
        assert rows[: len(kept)] == kept


@given(plain_plans(num_workers=1))
@settings(max_examples=effort(150), deadline=None)
def test_a_rank_keeps_its_slice_from_the_front(plan):
    num_ranks = plan.position.topology.num_ranks
    total, most = plan.space.num_rows, -(-plan.space.num_rows // num_ranks)
    for rank in range(num_ranks):
        (chunks,) = chunks_of_workers(plan, rank)
        # Before drop_last the rank has total // num_ranks rows or one more.
        sliced = sum(stop - start for start, stop in chunks)
        delivered = [row for batch in rank_batches(plan, rank) for row in batch]
        possible = [kept_rows(chunks, min(sliced, rows)) for rows in {total // num_ranks, most}]
        assert any(delivered[: len(kept)] == kept[: len(delivered)] for kept in possible)


@given(plain_plans())
@settings(max_examples=effort(150), deadline=None)
def test_no_balancing_into_equal_ranks_moves_fewer_rows(plan):
    num_ranks = plan.position.topology.num_ranks
    sliced = [plan.chunks.take(slice(rank, None, num_ranks)).num_rows for rank in range(num_ranks)]
    least, spare = divmod(sum(sliced), num_ranks)
    surplus = [rows - least for rows in sliced if rows > least]
    assert plan.moved_rows == sum(surplus) - min(spare, len(surplus))


@given(plain_plans())
@settings(max_examples=effort(150), deadline=None)
def test_without_row_counts_workers_have_whole_chunks_by_bytes(plan):
    position = Position(epoch=plan.position.epoch, segment=Segment(topology=plan.position.topology))
    inexact = Plan(
        begin=UncountedAssignment.begin,
        space=plan.space,
        options=plan.options,
        chunks=plan.chunks,
        position=position,
    )
    for rank in range(plan.position.topology.num_ranks):
        for program, chunks in zip(inexact.programs(rank), chunks_of_workers(plan, rank), strict=True):
            rows = rows_of(program.lanes[0], program.seed, program.epoch)
            assert sorted(rows) == sorted(row for start, stop in chunks for row in range(start, stop))


class EveryFileToEveryRank:
    """A strategy without rank arguments: every rank reads all rows."""

    def generate(self, files, num_workers, epoch):
        return [Shard(number % num_workers, [Split(file)]) for number, file in enumerate(files)]


@given(files, st.lists(topologies, min_size=1, max_size=3), options, st.data())
@settings(max_examples=effort(60), deadline=None)
def test_without_row_counts_ranks_that_read_everything_go_on_with_their_own_rest(sizes, chain, chosen, data):
    space = replace(make_space(sizes), exact=False)
    described = [DataFileInfo(path=f"{file}") for file in range(len(sizes))]
    call = StrategyCall(strategy=EveryFileToEveryRank(), files=described, space=space)
    num_ranks = chain[0].num_ranks
    position, received = Position(segment=Segment(topology=chain[0])), [[] for _ in range(num_ranks)]
    for topology in [*chain[1:], chain[0], None]:
        inputs = EpochInputs(
            space=space, options=chosen, chunks=chunk_row_groups(space, chosen), position=position, strategy=call
        )
        assignment, places = assign_epoch(inputs), []
        for rank in range(num_ranks):
            programs = assignment.programs(rank, position.segment)
            done = [
                len(each.lanes[0]) if topology is None else data.draw(st.integers(0, len(each.lanes[0])))
                for each in programs
            ]
            for program, finished in zip(programs, done, strict=True):
                received[rank] += rows_of(program.lanes[0].take(slice(finished)), program.seed, program.epoch)
            places.append((rank, RankCursors(workers=tuple((finished, 0) for finished in done), next_worker=0)))
        if topology is not None:
            segment = replace(position.segment, steps=1, cursors=tuple(places))
            following = Segment(topology=replace(topology, num_ranks=num_ranks))
            position = replace(position, history=(*position.history, segment), segment=following)
    assert [sorted(rows) for rows in received] == [list(range(space.num_rows))] * num_ranks


def test_without_row_counts_ranks_that_read_everything_are_refused_on_another_number_of_ranks():
    space = replace(make_space([[4], [4]]), exact=False)
    call = StrategyCall(
        strategy=EveryFileToEveryRank(), files=[DataFileInfo(path="a"), DataFileInfo(path="b")], space=space
    )
    received = Segment(topology=Topology(num_ranks=2), steps=1, cursors=())
    position = Position(history=(received,), segment=Segment(topology=Topology(num_ranks=4)))
    with pytest.raises(ConfigError, match=r"EveryFileToEveryRank has no rank arguments.* Resume on num_ranks=2"):
        assign_epoch(
            EpochInputs(
                space=space,
                options=PlanOptions(),
                chunks=chunk_row_groups(space, PlanOptions()),
                position=position,
                strategy=call,
            )
        )


def divided_by(strategy, plan):
    """The rows as a strategy divides them, in files of as many row groups."""
    space, sizes = plan.space, np.diff(plan.space.group_start)
    weights, groups = np.diff(space.byte_start), [np.flatnonzero(space.file == file) for file in range(8)]
    described = [
        DataFileInfo(
            path=f"{file}",
            record_count=int(sizes[mine].sum()),
            row_groups=RowGroups(rows=sizes[mine], bytes=weights[mine]),
        )
        for file, mine in enumerate(groups)
    ]
    call, topology = StrategyCall(strategy=strategy, files=described, space=space), plan.position.topology
    chosen = call.units(plan.position.epoch, topology.num_ranks, topology.num_workers)
    return StrategyRows(chosen=chosen, is_shared=False, space=space, options=PlanOptions(), topology=topology)


@given(plain_plans(num_ranks=1, drop_last=False))
@settings(max_examples=effort(100), deadline=None)
def test_the_strategy_of_target_sizes_assigns_as_plans_without_one(plan):
    chosen = plan.options
    strategy = TargetSizeSplitStrategy(chosen.split_bytes, chosen.split_rows, chosen.shuffle, chosen.seed)
    workers = divided_by(strategy, plan).rank(0).workers
    for program, units in zip(plan.programs(0), workers, strict=True):
        rows = rows_of(program.lanes[0], 0, 0)
        assert rows[: units.num_rows] == rows_of(units, 0, 0)


def test_chunks_that_a_rank_receives_from_a_strategy_go_to_the_worker_with_the_fewest_bytes():
    class OneWorkerOfRank0:
        def generate(self, files, num_workers, epoch, num_ranks, rank):
            return [Shard(0, [Split(file) for file in files] if rank == 0 else [])]

    plan = make_plan(
        space=make_space([[10]] * 8, [1, 1, 1, 1, 50, 2, 2, 2]),
        options=PlanOptions(),
        topology=Topology(num_ranks=2, num_workers=2, batch_size=10),
    )
    workers = divided_by(OneWorkerOfRank0(), plan).rank(1).workers
    # By bytes 50 and 2 + 2 + 2, of which the last moves for equal steps.
    assert [sorted(row // 10 for row in rows_of(units, 0, 0)[::10]) for units in workers] == [[4, 7], [5, 6]]


@given(st.lists(st.integers(0, 60), max_size=7), st.permutations(range(3)))
@settings(max_examples=effort(150), deadline=None)
def test_the_heaviest_worker_is_within_grahams_bound_of_the_best(weights, order):
    units = Units.plain(np.arange(len(weights)), np.arange(len(weights)) + 1)
    lanes = assign_units(units, np.array(weights, dtype=np.int64), order)
    loads = [sum(weights[unit] for unit in lane.start.tolist()) for lane in lanes]
    best = min(
        max(sum(w for w, owner in zip(weights, owners, strict=True) if owner == worker) for worker in range(3))
        for owners in product(range(3), repeat=len(weights))
    )
    assert max(loads) <= (4 / 3 - 1 / 9) * best + 1e-9


@pytest.mark.parametrize("has_counts", [True, False])
def test_every_worker_of_every_rank_has_the_heaviest_chunk_in_some_epoch(has_counts):
    space = make_space([[8]] * 6, [10, 20, 30, 400, 50, 60])
    plan_options, topology = PlanOptions(shuffle=True), Topology(num_ranks=2, num_workers=3, batch_size=2)
    chunks, holders = chunk_row_groups(space, plan_options), set()
    for epoch in range(60):
        ordered = order_chunks(chunks, plan_options, epoch)
        position = Position(epoch=epoch, segment=Segment(topology=topology))
        plan = make_plan(space=space, options=plan_options, epoch=epoch, topology=topology)
        if not has_counts:
            plan = Plan(
                begin=UncountedAssignment.begin,
                space=space,
                options=plan_options,
                chunks=ordered,
                position=position,
            )
        for rank, worker in product(range(2), range(3)):
            program = plan.programs(rank)[worker]
            if 24 in rows_of(program.lanes[0], program.seed, epoch):
                holders.add((rank, worker))
    assert holders == set(product(range(2), range(3)))


def test_ranks_order_their_workers_apart_and_stored_order_has_one():
    shuffled, stored = PlanOptions(shuffle=True), PlanOptions()
    orders = [tuple(worker_order(4, shuffled, epoch, rank)) for epoch in range(5) for rank in range(5)]
    assert len(set(orders)) > 10
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert list(worker_order(4, stored, 1, 1)) == [0, 1, 2, 3]


@given(files, bytes_of_groups)
@settings(max_examples=effort(100), deadline=None)
def test_shuffled_chunks_are_as_small_as_row_groups_allow_down_to_a_1024th(sizes, group_bytes):
    sizes = sizes * 40
    space = make_space(sizes, group_bytes)
    wanted = max(1, int(space.byte_start[-1]) // 1024)
    chunks = chunk_row_groups(space, PlanOptions(shuffle=True))
    assert chunks.num_rows == space.num_rows
    assert len(chunks) <= 1024 + len(sizes)
    for start, stop in zip(chunks.start.tolist(), chunks.stop.tolist(), strict=True):
        groups = range(int(space.group_of(np.array(start))), int(space.group_of(np.array(stop - 1))) + 1)
        assert len({int(space.file[group]) for group in groups}) == 1
        assert space.byte_start[groups[-1]] - space.byte_start[groups[0]] < wanted


def test_shuffled_chunks_never_grow_beyond_the_default_of_stored_order():
    gib = 1 << 30
    space = make_space([[10] * 600], [gib // 2])
    assert len(chunk_row_groups(space, PlanOptions(shuffle=True))) == 600
    space = make_space([[10] * 5000], [64 << 20])
    assert len(chunk_row_groups(space, PlanOptions(shuffle=True))) == 2500
    assert len(chunk_row_groups(space, PlanOptions())) == 2500
    assert len(chunk_row_groups(make_space([[10] * 5000], [1000]), PlanOptions())) == 1
