"""Long sequences on many ranks, short ones on one: the schedule `hybrid_context_parallel`."""

import heapq

import numpy as np

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.packing.plan.arrange import arrange_packs
from torch_dataloader_utils.packing.plan.cost import CostModel
from torch_dataloader_utils.packing.plan.fit import Placement, Sequences, fitting_positions, place_longest_first
from torch_dataloader_utils.packing.plan.schedule import Int64s, Schedule
from torch_dataloader_utils.packing.plan.shape import PackingShape, SchedulePolicy, alignment_of


def span_sizes(num_ranks: int) -> list[int]:
    """The numbers of ranks that may share a sequence, ascending; each divides the next and the last is all of them.

    num_ranks 8: 1 2 4 8.  12: 1 2 4 12.  9: 1 3 9.  Since they divide one another, packs laid out by falling span
    are aligned, and a rank needs one process group per size.
    """
    spans = [1]
    factor = 2
    while spans[-1] < num_ranks:
        while (num_ranks // spans[-1]) % factor == 0:
            spans.append(spans[-1] * factor)
        factor += 1
    return spans


def hybrid_schedule(
    lengths: Int64s, *, shape: PackingShape, policy: SchedulePolicy, cost: CostModel, widen_above: float = 1.0
) -> Schedule:
    """Every sequence on as few ranks as hold it, or on more where it alone would keep them all waiting.

    `dp_size` × `cp_size` ranks are one pool; a rank holds `max_seqlen_per_dp_cp_rank` tokens. A sequence on s ranks
    is padded to a multiple of 2 × s (nothing on one rank) and costs each of them 1/s. It gets the smallest size of
    `span_sizes` where it fits and costs a rank at most `widen_above` times the mean of a rank and microbatch (inf: the
    smallest where it fits, whatever it costs; sharing also costs communication, which `cost` does not know). Packs
    are then built longest first (`place_longest_first`), so that short sequences also fill up wide packs, and laid
    out by falling span and load (`arrange_packs`).

        lengths 16 3 2 2 1, 4 ranks of 4 tokens, cost = length      [16 on 4 ranks] [3 | 2 | 2 | 1]

    Where sequences are few, the costliest spread over twice the ranks until no rank is idle.

    Raises:
        ConfigError: a sequence longer than all ranks hold, or fewer sequences than microbatches, unless the
            policy allows it.
    """
    spans = span_sizes(shape.num_ranks)
    tokens = [-(-lengths // alignment_of(span)) * alignment_of(span) for span in spans]
    kept = fitting_positions(tokens[-1], capacity=shape.max_seqlen_per_dp_cp_rank * shape.num_ranks, policy=policy)
    costs = cost.of(lengths)
    lanes = _smallest_lanes(tokens, costs, kept, spans=spans, shape=shape, widen_above=widen_above)
    placement = _place(lengths, kept, costs=costs, lanes=lanes, tokens=tokens, spans=spans, shape=shape)
    pack_spans = [spans[lane] for lane in placement.lanes]
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


def _smallest_lanes(
    tokens: list[Int64s], costs: Int64s, kept: Int64s, *, spans: list[int], shape: PackingShape, widen_above: float
) -> Int64s:
    """Per position, the index of the smallest span that holds the sequence and costs a rank no more than allowed."""
    lanes = np.full(len(costs), len(spans) - 1, dtype=np.int64)
    for lane in reversed(range(len(spans))):
        lanes[tokens[lane] <= spans[lane] * shape.max_seqlen_per_dp_cp_rank] = lane
    occupied = np.take_along_axis(np.stack(tokens), lanes[None], axis=0)[0]
    num_microbatches = -(-int(occupied[kept].sum()) // (shape.max_seqlen_per_dp_cp_rank * shape.num_ranks))
    slots = num_microbatches * shape.num_ranks
    total = int(costs[kept].sum())
    for lane, span in enumerate(spans[:-1]):
        lanes[(lanes == lane) & (costs > widen_above * total * span / slots)] = lane + 1
    return lanes


def _place(
    lengths: Int64s,
    kept: Int64s,
    *,
    costs: Int64s,
    lanes: Int64s,
    tokens: list[Int64s],
    spans: list[int],
    shape: PackingShape,
) -> Placement:
    """Longest-first packs in few microbatches, the sequences widened where they leave slots free."""
    occupied = np.take_along_axis(np.stack(tokens), lanes[None], axis=0)[0, kept]
    group = shape.microbatch_multiple
    num_groups = -(-int(occupied.sum()) // (shape.max_seqlen_per_dp_cp_rank * shape.num_ranks * group))
    num_microbatches = num_groups * group
    while True:
        wide = _widen(lanes, kept, costs=costs, spans=spans, slots=num_microbatches * shape.num_ranks)
        sequences = Sequences.of(kept, lengths=lengths, costs=costs, lanes=wide, tokens=tokens)
        placement = place_longest_first(sequences, spans=spans, shape=shape, num_microbatches=num_microbatches)
        if placement.num_microbatches == num_microbatches or not placement.free_slots:
            return placement
        # Microbatches were added and stayed half empty: spread and widen over all of them from the start.
        num_microbatches = placement.num_microbatches


def _widen(lanes: Int64s, kept: Int64s, *, costs: Int64s, spans: list[int], slots: int) -> Int64s:
    """Lanes whose spans fill `slots`: the costliest sequences (per rank) take the next span while there is room."""
    wide = lanes.copy()
    free = slots - int(np.asarray(spans)[lanes[kept]].sum())
    if free <= 0:
        return wide
    # spans[-1] is a multiple of every span: the compute per rank stays a whole number.
    queue = [(-int(costs[position]) * (spans[-1] // spans[wide[position]]), position) for position in kept.tolist()]
    heapq.heapify(queue)
    while queue and free:
        load, position = heapq.heappop(queue)
        lane = int(wide[position])
        if lane + 1 < len(spans) and spans[lane + 1] - spans[lane] <= free:
            free -= spans[lane + 1] - spans[lane]
            wide[position] = lane + 1
            heapq.heappush(queue, (load * spans[lane] // spans[lane + 1], position))
    return wide
