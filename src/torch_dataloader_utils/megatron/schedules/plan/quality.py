"""Measure the quality of a schedule (wasted tokens, waiting ranks), and check that every sequence comes once."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.schedules.plan.inputs import (
    CostModel,
    PackingShape,
    SchedulePolicy,
    alignment_of,
    span_sizes,
)
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleQuality:
    """Figures of one schedule.

    Attributes:
        num_microbatches: number of microbatches.
        padding_waste: share of token slots without a token of a sequence, if every rank's microbatch is a
            buffer of full capacity (as for CUDA graphs); 0 is best.
        max_over_mean: ratio of the compute of the slowest rank of each microbatch to the mean of its ranks, both
            summed over microbatches; 1 is best.
        worst_max_over_mean: greatest ratio of the slowest rank to the mean in a single microbatch; 1 is best.
        time_over_bound: ratio of the summed compute of the slowest ranks to `lower_bound`; 1 is best.
    """

    num_microbatches: int
    padding_waste: float
    max_over_mean: float
    worst_max_over_mean: float
    time_over_bound: float


def measure_schedule(
    schedule: Schedule, lengths: Int64s, *, cost: CostModel, tokens_per_rank: int, max_span: int | None = None
) -> ScheduleQuality:
    """Return the quality of `schedule` for a global batch of `lengths`; dropped sequences do not count.

    Args:
        schedule: schedule to measure.
        lengths: number of tokens of each sequence of the global batch.
        cost: cost of a sequence.
        tokens_per_rank: largest number of tokens of one microbatch on one rank.
        max_span: largest number of ranks that may share one sequence, for `lower_bound`; None for the widest span of
            the schedule. Pass `schedule.num_ranks` for a hybrid schedule: a schedule that shares too little looks good
            beside the bound for as little sharing.
    """
    slowest = slowest_per_microbatch(schedule, lengths, cost=cost)
    pack_costs = schedule.sum_of_packs(cost.of(lengths)).astype(np.float64)
    means = np.bincount(schedule.microbatch, weights=pack_costs) / schedule.num_ranks
    busy = means > 0
    scheduled = lengths[schedule.samples]
    widest = int(schedule.span.max()) if max_span is None else max_span
    bound = lower_bound(scheduled, cost=cost, num_ranks=schedule.num_ranks, max_span=widest)
    return ScheduleQuality(
        num_microbatches=schedule.num_microbatches,
        padding_waste=1 - int(scheduled.sum()) / (schedule.num_microbatches * schedule.num_ranks * tokens_per_rank),
        max_over_mean=math.fsum(slowest) / math.fsum(means),
        worst_max_over_mean=float((slowest[busy] / means[busy]).max()),
        time_over_bound=math.fsum(slowest) / bound,
    )


def slowest_per_microbatch(schedule: Schedule, lengths: Int64s, *, cost: CostModel) -> npt.NDArray[np.float64]:
    """Return the compute of the slowest rank of each microbatch, float64 [num_microbatches].

    The ranks of a pack share its compute evenly.
    """
    loads = schedule.sum_of_packs(cost.of(lengths)) / schedule.span
    slowest = np.zeros(schedule.num_microbatches)
    np.maximum.at(slowest, schedule.microbatch, loads)
    return slowest


def lower_bound(lengths: Int64s, *, cost: CostModel, num_ranks: int, max_span: int) -> float:
    """Return a lower bound on the time of any schedule: the even share of a rank, or the longest sequence.

    Args:
        lengths: number of tokens of each sequence.
        cost: cost of a sequence.
        num_ranks: number of ranks of the data × context parallel group.
        max_span: largest number of ranks that share one sequence.
    """
    costs = cost.of(lengths)
    return max(int(costs.sum()) / num_ranks, int(costs.max()) / max_span)


def check_schedule(
    schedule: Schedule, lengths: Int64s, *, shape: PackingShape, policy: SchedulePolicy, is_hybrid: bool
) -> None:
    """Raise unless every sequence comes once, no pack is above its capacity, and every rank has work.

    The policy may allow exceptions. Packs have `cp_size` ranks, in a hybrid schedule a size of `span_sizes`, and begin
    at a multiple of their size.

    Raises:
        ConfigError: the schedule breaks a rule; the message names the rule and the first sequence or pack.
    """
    spans = span_sizes(shape.num_ranks) if is_hybrid else [shape.cp_size]
    multiple = alignment_of(spans[-1])
    longest = spans[-1] * shape.max_seqlen_per_dp_cp_rank // multiple * multiple
    _check_each_once(schedule, lengths, longest=longest, policy=policy)
    _check_spans(schedule, spans=spans)
    counts = np.diff(schedule.offsets)
    if policy.missing_packs == "error" and (counts == 0).any():
        pack = int(counts.argmin())
        raise ConfigError(
            f"microbatch {int(schedule.microbatch[pack])} gives rank {int(schedule.first_rank[pack])} no sequence. "
            'Use a larger global batch, or missing_packs="fill" to schedule empty packs on purpose.'
        )
    tokens = np.concatenate([[0], np.cumsum(occupied_tokens(schedule, lengths))])[schedule.offsets]
    over = np.diff(tokens) > schedule.span * shape.max_seqlen_per_dp_cp_rank
    if policy.over_long == "alone":
        over &= counts > 1
    if over.any():
        pack = int(over.argmax())
        raise ConfigError(
            f"the pack of rank {int(schedule.first_rank[pack])} in microbatch {int(schedule.microbatch[pack])} has "
            f"{int(np.diff(tokens)[pack])} tokens (padded for {int(schedule.span[pack])} ranks) where "
            f"{int(schedule.span[pack]) * shape.max_seqlen_per_dp_cp_rank} fit. Correct the scheduler."
        )
    if schedule.num_microbatches % shape.microbatch_multiple:
        raise ConfigError(
            f"{schedule.num_microbatches} microbatches are not a multiple of microbatch_group_size_per_vp_stage="
            f"{shape.microbatch_multiple}. Correct the scheduler."
        )


def occupied_tokens(schedule: Schedule, lengths: Int64s) -> Int64s:
    """Return the number of tokens of each of `schedule.samples`, padded for the ranks of its pack, int64."""
    alignments = np.array([alignment_of(span) for span in schedule.span.tolist()])
    multiples = np.repeat(alignments, np.diff(schedule.offsets))
    occupied: Int64s = -(-lengths[schedule.samples] // multiples) * multiples
    return occupied


def _check_each_once(schedule: Schedule, lengths: Int64s, *, longest: int, policy: SchedulePolicy) -> None:
    unknown = (schedule.samples < 0) | (schedule.samples >= len(lengths))
    if unknown.any():
        raise ConfigError(
            f"the schedule names sequence {int(schedule.samples[unknown][0])}; the global batch has {len(lengths)}. "
            "Return the ids that get_groups_and_subsamples was given."
        )
    times = np.bincount(schedule.samples, minlength=len(lengths))
    wrong = times > 1 if policy.over_long == "drop" else times != 1
    if wrong.any():
        position = int(wrong.argmax())
        raise ConfigError(
            f"the schedule has sequence {position} in {int(times[position])} packs instead of 1. Correct the scheduler."
        )
    lost = (times == 0) & (lengths <= longest)
    if lost.any():
        raise ConfigError(f"the schedule leaves out sequence {int(lost.argmax())}, which fits. Correct the scheduler.")


def _check_spans(schedule: Schedule, *, spans: list[int]) -> None:
    wrong = ~np.isin(schedule.span, spans) | (schedule.first_rank % schedule.span != 0)
    if wrong.any():
        pack = int(wrong.argmax())
        raise ConfigError(
            f"{int(schedule.span[pack])} ranks from rank {int(schedule.first_rank[pack])} of microbatch "
            f"{int(schedule.microbatch[pack])} have the same sequences; a pack has "
            f"{' or '.join(map(str, spans))} ranks and begins at a multiple of this number. "
            "Give all context-parallel ranks of a data-parallel rank equal lists."
        )
