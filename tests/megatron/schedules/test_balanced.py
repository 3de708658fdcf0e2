"""The balanced schedulers: every sequence once, within capacity, within the bound, never behind first-fit."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.schedules import (
    ComputeBalancedScheduler,
    CostModel,
    DpBalancedScheduler,
    HybridContextParallelScheduler,
    Schedule,
    measure_schedule,
)
from torch_dataloader_utils.megatron.schedules.plan.fit import first_fit
from torch_dataloader_utils.megatron.schedules.plan.inputs import span_sizes
from torch_dataloader_utils.megatron.schedules.plan.quality import occupied_tokens, slowest_per_microbatch
from torch_dataloader_utils.megatron.schedules.plan.schedule import arrange_packs

TOKENS = 16
COST = CostModel(quadratic=1, linear=8)
SCHEDULERS = [DpBalancedScheduler, ComputeBalancedScheduler, HybridContextParallelScheduler]


def balanced(scheduler: type, **options: object):
    extra = {} if scheduler is DpBalancedScheduler else {"cost": COST}
    return scheduler(TOKENS, missing_packs="fill", **options, **extra)


batches = st.lists(st.integers(1, TOKENS), min_size=1, max_size=60)
ranks = {"dp": st.integers(1, 5), "cp": st.integers(1, 4), "group": st.integers(1, 3)}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=effort(100), deadline=None)
@given(lengths=batches, **ranks)
def test_every_sequence_once_and_no_pack_above_capacity(scheduler, lengths, dp, cp, group):
    schedule = balanced(scheduler, dp_size=dp, cp_size=cp, microbatch_group_size_per_vp_stage=group).schedule(lengths)
    assert sorted(schedule.samples.tolist()) == list(range(len(lengths)))
    tokens = np.concatenate([[0], np.cumsum(occupied_tokens(schedule, np.array(lengths)))])[schedule.offsets]
    assert (np.diff(tokens) <= schedule.span * TOKENS).all()
    assert schedule.num_microbatches % group == 0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=effort(50), deadline=None)
@given(lengths=batches, **ranks)
def test_packs_tile_the_ranks_of_every_microbatch(scheduler, lengths, dp, cp, group):
    schedule = balanced(scheduler, dp_size=dp, cp_size=cp, microbatch_group_size_per_vp_stage=group).schedule(lengths)
    taken = np.zeros((schedule.num_microbatches, dp * cp), dtype=int)
    for microbatch, rank, span in zip(schedule.microbatch, schedule.first_rank, schedule.span, strict=True):
        assert rank % span == 0
        taken[microbatch, rank : rank + span] += 1
    assert (taken == 1).all()


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=effort(50), deadline=None)
@given(lengths=batches, **ranks)
def test_groups_and_arrays_say_the_same(scheduler, lengths, dp, cp, group):
    chosen = balanced(scheduler, dp_size=dp, cp_size=cp, microbatch_group_size_per_vp_stage=group)
    schedule = chosen.schedule(lengths)
    again = Schedule.of_groups(
        schedule.to_groups(range(len(lengths))), num_ranks=dp * cp, empty_span=1 if chosen.is_hybrid else cp
    )
    for name in ("samples", "offsets", "microbatch", "first_rank", "span"):
        np.testing.assert_array_equal(getattr(again, name), getattr(schedule, name))


@settings(max_examples=effort(100), deadline=None)
@given(lengths=batches, dp=st.integers(1, 5), linear=st.integers(1, 50))
def test_time_is_within_the_bound_and_never_above_first_fit(lengths, dp, linear):
    cost = CostModel(quadratic=1, linear=linear)
    array = np.array(lengths)
    scheduler = ComputeBalancedScheduler(TOKENS, dp_size=dp, cost=cost, missing_packs="fill")
    schedule = scheduler.schedule(lengths)
    time = math.fsum(slowest_per_microbatch(schedule, array, cost=cost))
    pack_costs = schedule.sum_of_packs(cost.of(array))
    assert time <= pack_costs.sum() / dp + pack_costs.max()

    packs = first_fit(array, np.arange(len(array)), capacity=TOKENS)
    if len(packs) % dp == 0:
        baseline = Schedule.of_packs(packs, [1] * len(packs), num_ranks=dp)
        assert time <= math.fsum(slowest_per_microbatch(baseline, array, cost=cost))


@settings(max_examples=effort(50), deadline=None)
@given(lengths=st.lists(st.integers(1, TOKENS), min_size=4, max_size=60), num_packs=st.integers(1, 4))
def test_heaviest_pack_is_within_three_halves_when_room_never_matters(lengths, num_packs):
    # One microbatch of num_packs ranks that each hold everything: Graham's bound applies as it is.
    scheduler = ComputeBalancedScheduler(sum(lengths), dp_size=num_packs, cost=COST)
    schedule = scheduler.schedule(lengths)
    costs = np.sort(COST.of(np.array(lengths)))[::-1]
    pair = costs[num_packs - 1] + costs[num_packs] if len(costs) > num_packs else 0
    least = max(costs.sum() / num_packs, costs[0], pair)
    heaviest = schedule.sum_of_packs(COST.of(np.array(lengths))).max()
    if schedule.num_microbatches == 1:
        assert heaviest <= (1.5 - 1 / (2 * num_packs)) * least + 1e-9


@settings(max_examples=effort(50), deadline=None)
@given(loads=st.lists(st.integers(1, 100), min_size=1, max_size=24), dp=st.integers(1, 4))
def test_no_other_order_of_the_same_packs_is_faster(loads, dp):
    loads = loads[: len(loads) // dp * dp] or [1] * dp
    packs = [[position] for position in range(len(loads))]
    arranged = arrange_packs(packs, spans=[1] * len(packs), loads=loads, num_ranks=dp)

    def time(schedule: Schedule) -> float:
        linear = CostModel(quadratic=0, linear=1)
        return math.fsum(slowest_per_microbatch(schedule, np.array(loads), cost=linear))

    shuffled = np.random.default_rng(len(loads)).permutation(len(loads)).tolist()
    other = Schedule.of_packs([packs[pack] for pack in shuffled], [1] * len(packs), num_ranks=dp)
    assert time(arranged) <= time(other)


@settings(max_examples=effort(100), deadline=None)
@given(lengths=batches, capacity=st.integers(4, TOKENS))
def test_first_fit_tree_is_first_fit(lengths, capacity):
    expected: list[list[int]] = []
    rooms: list[int] = []
    for position, length in enumerate(lengths):
        wanted = min(length, capacity)
        pack = next((index for index, room in enumerate(rooms) if room >= wanted), len(rooms))
        if pack == len(rooms):
            rooms.append(capacity)
            expected.append([])
        rooms[pack] -= wanted
        expected[pack].append(position)
    assert first_fit(np.array(lengths), np.arange(len(lengths)), capacity=capacity) == expected


def test_documented_example():
    cost = CostModel(quadratic=0, linear=1)
    groups = ComputeBalancedScheduler(8, dp_size=2, cost=cost).schedule([7, 4, 4, 1, 2, 2, 2, 2]).to_groups(range(8))
    assert groups == [[[0], [1, 6]], [[3, 4, 5], [2, 7]]]


def test_balances_compute_where_dp_balanced_balances_counts():
    lengths = [16, 2, 2, 2, 2, 2, 2, 2, 2, 16]
    array = np.array(lengths)
    quality = {
        scheduler: measure_schedule(
            balanced(scheduler, dp_size=2).schedule(lengths), array, cost=COST, tokens_per_rank=TOKENS
        )
        for scheduler in (DpBalancedScheduler, ComputeBalancedScheduler)
    }
    assert quality[ComputeBalancedScheduler].max_over_mean < quality[DpBalancedScheduler].max_over_mean


def test_a_sequence_gets_as_many_ranks_as_it_needs_and_short_ones_one():
    schedule = HybridContextParallelScheduler(4, dp_size=4, cost=CostModel(quadratic=0, linear=1)).schedule(
        [16, 3, 2, 2, 1]
    )
    assert schedule.span.tolist() == [4, 1, 1, 1, 1]
    assert schedule.to_groups(range(5)) == [[[0]] * 4, [[4], [3], [2], [1]]]


def test_few_sequences_spread_until_no_rank_is_idle():
    scheduler = HybridContextParallelScheduler(64, dp_size=8, widen_above=math.inf)
    schedule = scheduler.schedule([40, 20, 20])
    assert schedule.num_microbatches == 1
    assert sorted(schedule.span.tolist()) == [2, 2, 4]


def test_a_sequence_that_would_keep_all_ranks_waiting_is_shared():
    lengths = [60, *[20] * 6]
    shared, alone = (
        measure_schedule(
            HybridContextParallelScheduler(64, dp_size=4, cost=COST, widen_above=limit).schedule(lengths),
            np.array(lengths),
            cost=COST,
            tokens_per_rank=64,
            max_span=4,
        )
        for limit in (1.0, math.inf)
    )
    assert shared.max_over_mean < alone.max_over_mean
    assert shared.time_over_bound < alone.time_over_bound


def test_a_sequence_longer_than_all_ranks_is_an_error_unless_allowed():
    with pytest.raises(ConfigError, match="longer than the 16 tokens"):
        HybridContextParallelScheduler(4, dp_size=4).schedule([17, 3])
    alone = HybridContextParallelScheduler(4, dp_size=4, over_long="alone").schedule([17, 3, 3, 3, 3])
    assert alone.span.tolist()[0] == 4


def test_fewer_sequences_than_microbatches_are_an_error_or_filled():
    options = {"dp_size": 2, "microbatch_group_size_per_vp_stage": 2}
    with pytest.raises(ConfigError, match="leave 2 of 4 rank slots idle"):
        HybridContextParallelScheduler(8, **options).schedule([4])
    filled = HybridContextParallelScheduler(8, missing_packs="fill", **options).schedule([4])
    assert filled.num_microbatches == 2


@settings(max_examples=effort(50), deadline=None)
@given(lengths=st.lists(st.integers(1, 8 * TOKENS), min_size=1, max_size=40))
def test_hybrid_takes_lengths_that_one_rank_cannot_hold(lengths):
    schedule = HybridContextParallelScheduler(TOKENS, dp_size=4, cp_size=2, cost=COST).schedule(lengths)
    assert sorted(schedule.samples.tolist()) == list(range(len(lengths)))


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (DpBalancedScheduler, "e9fd0ae2ae416eb0"),
        (ComputeBalancedScheduler, "78220b72a2ce33f4"),
        (HybridContextParallelScheduler, "0f7f19f94ec2e4d0"),
    ],
)
def test_schedules_are_pinned(scheduler, expected):
    lengths = [1 + 7919 * position % 251 for position in range(500)]
    schedule = scheduler(128, cp_size=2, dp_size=4).schedule(lengths)
    parts = (schedule.samples, schedule.offsets, schedule.microbatch, schedule.first_rank, schedule.span)
    digest = hashlib.blake2b(b"".join(part.astype("<i8").tobytes() for part in parts), digest_size=8)
    assert digest.hexdigest() == expected


def test_span_sizes_divide_one_another():
    assert span_sizes(8) == [1, 2, 4, 8]
    assert span_sizes(12) == [1, 2, 4, 12]
    assert span_sizes(9) == [1, 3, 9]
    assert span_sizes(1) == [1]


def test_cost_is_exact_and_refuses_to_overflow():
    assert CostModel.transformer(4096) == CostModel()
    assert CostModel(quadratic=2, linear=3).of(np.array([1, 10])).tolist() == [5, 230]
    with pytest.raises(ConfigError, match="smaller weights"):
        CostModel(quadratic=1 << 50).of(np.array([1 << 20]))
    assert CostModel().of(np.array([30_000_000] + [100] * 8_191)).max() == 30_000_000 * (30_000_000 + 12 * 4096)
    with pytest.raises(ConfigError, match="cost weights"):
        CostModel(quadratic=0, linear=0)


@pytest.mark.parametrize("weights", [{"quadratic": 0.5}, {"linear": float("nan")}, {"linear": -1}], ids=str)
def test_weights_of_a_cost_are_whole_numbers(weights):
    with pytest.raises(ConfigError, match=f"{next(iter(weights))}=.*whole number of at least 0"):
        CostModel(**weights)
    with pytest.raises(ConfigError, match=r"hidden_size=1024\.5"):
        CostModel.transformer(1024.5)
    # As a 32-bit number it would wrap where costs are summed up.
    assert type(CostModel(linear=np.int32(8)).linear) is int
