"""How good a schedule is: wasted tokens, waiting ranks, and how far it is from what any schedule must cost."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.packing.plan.cost import CostModel
from torch_dataloader_utils.packing.plan.schedule import Int64s, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleQuality:
    """Figures of one schedule.

    Attributes:
        num_microbatches: microbatches.
        padding_waste: share of token slots without a token of a sequence, when every rank's microbatch is a
            buffer of full capacity (as for CUDA graphs); 0 is best.
        max_over_mean: compute of the slowest rank of each microbatch over the mean of its ranks, both summed over
            microbatches; 1 is best.
        worst_max_over_mean: the greatest such ratio of a single microbatch; 1 is best.
        time_over_bound: summed compute of the slowest ranks over `lower_bound`; 1 is best.
    """

    num_microbatches: int
    padding_waste: float
    max_over_mean: float
    worst_max_over_mean: float
    time_over_bound: float


def measure_schedule(
    schedule: Schedule, lengths: Int64s, *, cost: CostModel, tokens_per_rank: int, max_span: int | None = None
) -> ScheduleQuality:
    """The quality of `schedule` for a global batch of `lengths`; dropped sequences count nowhere.

    Args:
        schedule: what is measured.
        lengths: tokens of the sequences.
        cost: what they cost.
        tokens_per_rank: most tokens of one microbatch on one rank.
        max_span: most ranks that may share one sequence, for `lower_bound`; None for the most that do. Of a hybrid
            schedule pass `schedule.num_ranks`: one that shares too little looks good beside what sharing as little
            must cost.
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
    """Compute of the slowest rank of each microbatch, float64 [num_microbatches]; ranks of a pack share it evenly."""
    loads = schedule.sum_of_packs(cost.of(lengths)) / schedule.span
    slowest = np.zeros(schedule.num_microbatches)
    np.maximum.at(slowest, schedule.microbatch, loads)
    return slowest


def lower_bound(lengths: Int64s, *, cost: CostModel, num_ranks: int, max_span: int) -> float:
    """Compute in which no schedule of these sequences is done: the even share of a rank, or the longest sequence.

    Args:
        lengths: tokens of the sequences.
        cost: what they cost.
        num_ranks: ranks of the data × context parallel group.
        max_span: most ranks that share one sequence.
    """
    costs = cost.of(lengths)
    return max(int(costs.sum()) / num_ranks, int(costs.max()) / max_span)
