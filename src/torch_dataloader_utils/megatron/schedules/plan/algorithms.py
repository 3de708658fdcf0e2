"""Compute the three schedules: next fit in the given order, packs of equal compute, long sequences on many ranks."""

import heapq
import math

import numpy as np

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.schedules.plan.fit import (
    OpenPacks,
    Packs,
    Sequences,
    first_fit,
    fitting_positions,
    next_fit,
    place_longest_first,
    split_last_packs,
)
from torch_dataloader_utils.megatron.schedules.plan.inputs import (
    CostModel,
    PackingShape,
    SchedulePolicy,
    alignment_of,
    span_sizes,
)
from torch_dataloader_utils.megatron.schedules.plan.quality import slowest_per_microbatch
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s, Schedule, arrange_packs


def next_fit_schedule(lengths: Int64s, *, shape: PackingShape, policy: SchedulePolicy) -> Schedule:
    """Pack sequences in order, with a new pack whenever a sequence does not fit; every pack is on `cp_size` ranks.

    This is the rule of Megatron Core's DpBalancedScheduler: it balances the number of packs, not their compute.

        lengths 3 4 5 2 6 1 7, 8 tokens a pack, dp 2    packs 01 | 23 | 45 | 6     microbatches [01, 23] [45, 6]
        lengths 3 4 5 2 6 1                             packs 01 | 23 | 45         one short: 5 moves out
                                                                                   microbatches [01, 23] [4, 5]

    Raises:
        ConfigError: an over-long sequence, or too few sequences for the ranks, unless the policy allows it.
    """
    kept = fitting_positions(lengths, capacity=shape.pack_tokens, policy=policy)
    packs = split_last_packs(
        next_fit(lengths, kept, capacity=shape.pack_tokens),
        multiple=shape.dp_size * shape.microbatch_multiple,
        policy=policy,
    )
    return Schedule.of_packs(packs, [shape.cp_size] * len(packs), num_ranks=shape.num_ranks)


def compute_balanced_schedule(
    lengths: Int64s, *, shape: PackingShape, policy: SchedulePolicy, cost: CostModel
) -> Schedule:
    """Pack sequences into few microbatches, so that the ranks of a microbatch finish at about the same time.

    The longest sequence goes first, onto the least loaded pack with room; then packs of similar cost go side by side.
    Let c₁ ≥ c₂ ≥ … be the costs, k the number of packs, p the greatest cost of a longest-first pack, and the time the
    sum over microbatches of the slowest rank. Then

        time ≤ Σ c / dp_size + p                                       always (see `arrange_packs`)
        p    ≤ (3/2 − 1/(2k)) × max(Σ c / k, c₁, c_k + c_{k+1})        if no sequence found the least loaded pack full

    The second line is Graham's argument: the last sequence of the costliest pack is alone in this pack, or costs at
    most half of c_k + c_{k+1} and came to a pack at or below the mean. First-fit packs in the original order are used
    if they are faster, so the time is never above the time of first fit.

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
    """Return longest-first packs in few microbatches; some are empty if sequences are few and the policy allows it."""
    levels = np.zeros(len(lengths), dtype=np.int64)
    sequences = Sequences.of(kept, lengths=lengths, costs=costs, levels=levels, tokens=[lengths])
    group = shape.microbatch_multiple
    num_microbatches = -(-int(lengths[kept].sum()) // (shape.pack_tokens * shape.dp_size * group)) * group
    placement = place_longest_first(sequences, spans=[shape.cp_size], shape=shape, num_microbatches=num_microbatches)
    if placement.free_slots and placement.num_microbatches > num_microbatches:
        # Added microbatches stayed half empty: spread the sequences over all microbatches from the start.
        placement = place_longest_first(
            sequences, spans=[shape.cp_size], shape=shape, num_microbatches=placement.num_microbatches
        )
    return split_last_packs(placement.packs, multiple=shape.dp_size * group, policy=policy)


def _first_fit_packs(lengths: Int64s, kept: Int64s, *, shape: PackingShape, policy: SchedulePolicy) -> Packs | None:
    """Return first-fit packs, as many as the ranks need; None if the sequences are too few for this number."""
    packs = first_fit(lengths, kept, capacity=shape.pack_tokens)
    multiple = shape.dp_size * shape.microbatch_multiple
    if -(-len(packs) // multiple) * multiple > len(kept):
        return None
    return split_last_packs(packs, multiple=multiple, policy=policy)


def hybrid_schedule(
    lengths: Int64s, *, shape: PackingShape, policy: SchedulePolicy, cost: CostModel, widen_above: float = 1.0
) -> Schedule:
    """Put every sequence on as few ranks as hold it, or on more ranks if all other ranks would wait for it.

    `dp_size` × `cp_size` ranks are one pool; a rank holds `max_seqlen_per_dp_cp_rank` tokens. A sequence on s ranks
    is padded to a multiple of 2 × s (not padded on one rank) and costs each rank 1/s of its cost. A sequence gets the
    smallest size of `span_sizes` on which it fits and costs a rank at most `widen_above` times the mean cost of a rank
    and microbatch. With `widen_above=inf` it gets the smallest size on which it fits. (Sharing also costs
    communication; `cost` does not include this cost.) Packs are then built longest first (`place_longest_first`), so
    that short sequences also fill up wide packs, and laid out by falling span and load (`arrange_packs`).

        lengths 16 3 2 2 1, 4 ranks of 4 tokens, cost = length      [16 on 4 ranks] [3 | 2 | 2 | 1]

    If sequences are few, the costliest sequences spread over the next size until no rank is idle.

    Raises:
        ConfigError: a sequence longer than all ranks hold, or fewer sequences than microbatches, unless the
            policy allows it.
    """
    spans = span_sizes(shape.num_ranks)
    tokens = [-(-lengths // alignment_of(span)) * alignment_of(span) for span in spans]
    kept = fitting_positions(tokens[-1], capacity=shape.max_seqlen_per_dp_cp_rank * shape.num_ranks, policy=policy)
    costs = cost.of(lengths)
    levels = _smallest_levels(tokens, costs, kept, spans=spans, shape=shape, widen_above=widen_above)
    placement = _place(lengths, kept, costs=costs, levels=levels, tokens=tokens, spans=spans, shape=shape)
    pack_spans = [spans[level] for level in placement.levels]
    idle = -sum(pack_spans) % (shape.num_ranks * shape.microbatch_multiple)
    if idle and policy.missing_packs == "error":
        raise ConfigError(
            f"{len(kept)} sequences leave {idle} of {idle + sum(pack_spans)} rank slots idle (sizes "
            f"{spans}, microbatches in groups of {shape.microbatch_multiple}). Use a larger global batch, or "
            'missing_packs="fill" to give the idle ranks a padding sequence without loss.'
        )
    return arrange_packs(
        placement.packs + [[] for _ in range(idle)],
        spans=pack_spans + [1] * idle,
        loads=placement.loads + [0] * idle,
        num_ranks=shape.num_ranks,
    )


def _smallest_levels(
    tokens: list[Int64s], costs: Int64s, kept: Int64s, *, spans: list[int], shape: PackingShape, widen_above: float
) -> Int64s:
    """Return for each position the index of the smallest span on which the sequence fits and is not too costly."""
    levels = np.full(len(costs), len(spans) - 1, dtype=np.int64)
    for level in reversed(range(len(spans))):
        levels[tokens[level] <= spans[level] * shape.max_seqlen_per_dp_cp_rank] = level
    occupied = np.take_along_axis(np.stack(tokens), levels[None], axis=0)[0]
    num_microbatches = -(-int(occupied[kept].sum()) // (shape.max_seqlen_per_dp_cp_rank * shape.num_ranks))
    slots = num_microbatches * shape.num_ranks
    total = int(costs[kept].sum())
    for level, span in enumerate(spans[:-1]):
        levels[(levels == level) & (costs > widen_above * total * span / slots)] = level + 1
    return levels


def _place(
    lengths: Int64s,
    kept: Int64s,
    *,
    costs: Int64s,
    levels: Int64s,
    tokens: list[Int64s],
    spans: list[int],
    shape: PackingShape,
) -> OpenPacks:
    """Place the sequences longest first in few microbatches, and widen sequences if rank slots stay free."""
    occupied = np.take_along_axis(np.stack(tokens), levels[None], axis=0)[0, kept]
    group = shape.microbatch_multiple
    num_groups = -(-int(occupied.sum()) // (shape.max_seqlen_per_dp_cp_rank * shape.num_ranks * group))
    num_microbatches = num_groups * group
    while True:
        wide = _widen(levels, kept, costs=costs, spans=spans, slots=num_microbatches * shape.num_ranks)
        sequences = Sequences.of(kept, lengths=lengths, costs=costs, levels=wide, tokens=tokens)
        placement = place_longest_first(sequences, spans=spans, shape=shape, num_microbatches=num_microbatches)
        if placement.num_microbatches == num_microbatches or not placement.free_slots:
            return placement
        # Added microbatches stayed half empty: spread and widen over all microbatches from the start.
        num_microbatches = placement.num_microbatches


def _widen(levels: Int64s, kept: Int64s, *, costs: Int64s, spans: list[int], slots: int) -> Int64s:
    """Return levels with spans that fill `slots`: the costliest sequences (per rank) take the next span if it fits."""
    wide = levels.copy()
    free = slots - int(np.asarray(spans)[levels[kept]].sum())
    if free <= 0:
        return wide
    # spans[-1] is a multiple of every span: the compute per rank stays a whole number.
    queue = [(-int(costs[position]) * (spans[-1] // spans[wide[position]]), position) for position in kept.tolist()]
    heapq.heapify(queue)
    while queue and free:
        load, position = heapq.heappop(queue)
        level = int(wide[position])
        if level + 1 < len(spans) and spans[level + 1] - spans[level] <= free:
            free -= spans[level + 1] - spans[level]
            wide[position] = level + 1
            heapq.heappush(queue, (load * spans[level] // spans[level + 1], position))
    return wide
