"""Packs of equal compute on a fixed number of context-parallel ranks: the schedule `compute_balanced`."""

import math

import numpy as np

from torch_dataloader_utils.packing.plan.arrange import arrange_packs
from torch_dataloader_utils.packing.plan.cost import CostModel
from torch_dataloader_utils.packing.plan.fit import (
    Packs,
    Sequences,
    first_fit,
    fitting_positions,
    place_longest_first,
    split_last_packs,
)
from torch_dataloader_utils.packing.plan.measure import slowest_per_microbatch
from torch_dataloader_utils.packing.plan.schedule import Int64s, Schedule
from torch_dataloader_utils.packing.plan.shape import PackingShape, SchedulePolicy


def compute_balanced_schedule(
    lengths: Int64s, *, shape: PackingShape, policy: SchedulePolicy, cost: CostModel
) -> Schedule:
    """Few microbatches, and in each of them ranks that finish at about the same time.

    Longest sequence first onto the least loaded pack with room, then packs of like cost side by side. Let
    c₁ ≥ c₂ ≥ … be the costs, k the packs, p the greatest cost of a longest-first pack, and the time the sum over
    microbatches of the slowest rank. Then

        time ≤ Σ c / dp_size + p                                       always (see `arrange_packs`)
        p    ≤ (3/2 − 1/(2k)) × max(Σ c / k, c₁, c_k + c_{k+1})        if no sequence found the least loaded pack full

    The second line is Graham's argument: the last sequence of the costliest pack is alone there, or costs at most
    half of c_k + c_{k+1} and came to a pack at or below the mean. The time is never above that of first-fit in the
    original order, whose packs are taken where they turn out faster.

        lengths 7 4 4 1 2 2 2 2, 8 tokens, dp 2, cost = length
            dp_balanced         [7 | 44] [1222 | 2]     slowest 8 + 7
            compute_balanced    [7 | 42] [122 | 42]    slowest 7 + 6, and Σ c / dp_size is 12

    Raises:
        ConfigError: an over-long sequence, or too few sequences for the ranks, unless the policy allows it.
    """
    kept = fitting_positions(lengths, capacity=shape.pack_tokens, policy=policy)
    costs = cost.of(lengths)
    longest_first = _longest_first_packs(lengths, kept, shape=shape, policy=policy, costs=costs)
    baseline = _first_fit_packs(lengths, kept, shape=shape, policy=policy)
    schedules = [
        arrange_packs(
            packs,
            spans=[shape.cp_size] * len(packs),
            loads=[int(costs[pack].sum()) for pack in packs],
            num_ranks=shape.num_ranks,
        )
        for packs in (longest_first, baseline)
        if packs is not None
    ]
    return min(schedules, key=lambda schedule: math.fsum(slowest_per_microbatch(schedule, lengths, cost=cost)))


def _longest_first_packs(
    lengths: Int64s, kept: Int64s, *, shape: PackingShape, policy: SchedulePolicy, costs: Int64s
) -> Packs:
    """Longest-first packs in few microbatches; empty packs where sequences are few and the policy allows it."""
    lanes = np.zeros(len(lengths), dtype=np.int64)
    sequences = Sequences.of(kept, lengths=lengths, costs=costs, lanes=lanes, tokens=[lengths])
    group = shape.microbatch_multiple
    num_microbatches = -(-int(lengths[kept].sum()) // (shape.pack_tokens * shape.dp_size * group)) * group
    placement = place_longest_first(sequences, spans=[shape.cp_size], shape=shape, num_microbatches=num_microbatches)
    if placement.free_slots and placement.num_microbatches > num_microbatches:
        # Added microbatches that stayed half empty: spread over all of them from the start.
        placement = place_longest_first(
            sequences, spans=[shape.cp_size], shape=shape, num_microbatches=placement.num_microbatches
        )
    return split_last_packs(placement.packs, multiple=shape.dp_size * group, policy=policy)


def _first_fit_packs(lengths: Int64s, kept: Int64s, *, shape: PackingShape, policy: SchedulePolicy) -> Packs | None:
    """First-fit packs, as many as the ranks need; None where the sequences do not make as many."""
    packs = first_fit(lengths, kept, capacity=shape.pack_tokens)
    multiple = shape.dp_size * shape.microbatch_multiple
    if -(-len(packs) // multiple) * multiple > len(kept):
        return None
    return split_last_packs(packs, multiple=multiple, policy=policy)
