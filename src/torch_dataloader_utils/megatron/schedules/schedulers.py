"""Schedule a global batch from its lengths, and run the schedule: the schedulers, by class and by name."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.megatron.schedules.global_batch import ItemIterator, ScheduledBatch, run_global_batch
from torch_dataloader_utils.megatron.schedules.groups import PackingGroups
from torch_dataloader_utils.megatron.schedules.plan.algorithms import (
    compute_balanced_schedule,
    hybrid_schedule,
    next_fit_schedule,
)
from torch_dataloader_utils.megatron.schedules.plan.fit import checked_lengths
from torch_dataloader_utils.megatron.schedules.plan.inputs import CostModel, PackingShape, SchedulePolicy, alignment_of
from torch_dataloader_utils.megatron.schedules.plan.quality import check_schedule
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s, SampleGroups, Schedule
from torch_dataloader_utils.megatron.schedules.samples import REQUIRED_KEYS

SampleLengths = Sequence[tuple[int, int]]


@dataclass(eq=False)
class BasePackingScheduler(ABC):
    """Base class of schedulers, which decide which rank computes which sequences of a global batch.

    Subclasses override `get_groups_and_subsamples`. The name is Megatron-Core's: subclasses written for Megatron-Core
    work here.

    Args:
        max_seqlen_per_dp_cp_rank: largest number of tokens of one microbatch on one rank.
        cp_size: number of context-parallel ranks per data-parallel rank.
        dp_size: number of data-parallel ranks.
        microbatch_group_size_per_vp_stage: number whose multiple the number of microbatches becomes; None without
            virtual pipeline stages.
        over_long: treatment of sequences that fit no pack; see `SchedulePolicy`.
        missing_packs: treatment of ranks that would have nothing to compute; see `SchedulePolicy`.

    Raises:
        ConfigError: a size below 1 or an unknown policy.
    """

    is_hybrid: ClassVar[bool] = False
    """Whether packs differ in the number of their ranks; packs then share dp_size × cp_size ranks freely."""

    max_seqlen_per_dp_cp_rank: int
    cp_size: int = 1
    dp_size: int = 1
    microbatch_group_size_per_vp_stage: int | None = None
    over_long: Literal["error", "alone", "drop"] = field(default="error", kw_only=True)
    missing_packs: Literal["error", "fill"] = field(default="error", kw_only=True)
    shape: PackingShape = field(init=False, repr=False)
    policy: SchedulePolicy = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.shape = PackingShape(
            max_seqlen_per_dp_cp_rank=self.max_seqlen_per_dp_cp_rank,
            cp_size=self.cp_size,
            dp_size=self.dp_size,
            microbatch_group_size_per_vp_stage=self.microbatch_group_size_per_vp_stage,
        )
        self.policy = SchedulePolicy(over_long=self.over_long, missing_packs=self.missing_packs)

    @abstractmethod
    def get_groups_and_subsamples(self, sample_id_seqlens: SampleLengths) -> SampleGroups:
        """Return for each microbatch, for each rank of the data × context parallel group, the ids of its sequences.

        Must be a pure function: no communication, no randomness, the same answer on every rank. Neighbouring ranks
        with equal lists compute the sequences together.

        Args:
            sample_id_seqlens: (id, length) of each sequence of the global batch, in data-parallel rank order.
        """

    def get_required_sample_keys(self) -> list[str]:
        """Return the keys that every sample has; part of the interface of Megatron's schedulers."""
        return list(REQUIRED_KEYS)

    def schedule(self, lengths: Sequence[int] | Int64s) -> Schedule:
        """Return the checked schedule of a global batch of padded lengths; positions are ids.

        With a fixed number of context-parallel ranks, lengths count as padded to a multiple of 2 × cp_size.

        Raises:
            ConfigError: the global batch does not fit, or the scheduler broke a promise (see `check_schedule`).
            ConfigTypeError: `get_groups_and_subsamples` did not return nested lists.
        """
        checked = checked_lengths(lengths)
        multiple = 1 if self.is_hybrid else alignment_of(self.shape.cp_size)
        aligned = -(-checked // multiple) * multiple
        groups = self.get_groups_and_subsamples(list(enumerate(aligned.tolist())))
        empty_span = 1 if self.is_hybrid else self.shape.cp_size
        try:
            schedule = Schedule.of_groups(groups, num_ranks=self.shape.num_ranks, empty_span=empty_span)
        except TypeError as error:
            raise ConfigTypeError(
                f"{type(self).__name__}.get_groups_and_subsamples gave {of_type(groups)} that is not, per "
                f"microbatch and per rank, a list of ids ({error}). Return a list of lists of lists."
            ) from error
        check_schedule(schedule, aligned, shape=self.shape, policy=self.policy, is_hybrid=self.is_hybrid)
        if len(schedule.samples) < len(checked):
            warn_user(
                f"left out {len(checked) - len(schedule.samples)} of {len(checked)} sequences that fit no pack "
                '(over_long="drop")'
            )
        return schedule

    def run(
        self,
        data_iterator: ItemIterator,
        num_microbatches: int,
        groups: PackingGroups,
        virtual_pipeline_size: int | None = None,
    ) -> ScheduledBatch:
        """Read one global batch and return it scheduled; see `run_global_batch`."""
        return run_global_batch(self, data_iterator, num_microbatches, groups, virtual_pipeline_size)


class DpBalancedScheduler(BasePackingScheduler):
    """Scheduler with next fit in the original order, the same number of packs per rank; see `next_fit_schedule`."""

    def get_groups_and_subsamples(self, sample_id_seqlens: SampleLengths) -> SampleGroups:
        ids, lengths = _split(sample_id_seqlens)
        return next_fit_schedule(lengths, shape=self.shape, policy=self.policy).to_groups(ids)


@dataclass(eq=False)
class ComputeBalancedScheduler(BasePackingScheduler):
    """Scheduler with the same amount of compute on every rank of a microbatch; see `compute_balanced_schedule`.

    Takes the options of `BasePackingScheduler`, too.

    Args:
        cost: cost of a sequence; `CostModel.transformer(hidden_size)` for a model.
    """

    cost: CostModel = field(default_factory=CostModel, kw_only=True)

    def get_groups_and_subsamples(self, sample_id_seqlens: SampleLengths) -> SampleGroups:
        ids, lengths = _split(sample_id_seqlens)
        return compute_balanced_schedule(lengths, shape=self.shape, policy=self.policy, cost=self.cost).to_groups(ids)


@dataclass(eq=False)
class HybridContextParallelScheduler(BasePackingScheduler):
    """Scheduler with long sequences on many ranks and short sequences on one rank; see `hybrid_schedule`.

    Needs the groups of `create_packing_groups(..., is_hybrid=True)`. Takes the options of `BasePackingScheduler`, too.

    Args:
        cost: cost of a sequence; `CostModel.transformer(hidden_size)` for a model.
        widen_above: multiple of the mean cost of a rank; a sequence that costs a rank more takes more ranks than it
            needs.
    """

    is_hybrid: ClassVar[bool] = True

    cost: CostModel = field(default_factory=CostModel, kw_only=True)
    widen_above: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widen_above >= 1:
            raise ConfigError(
                f"widen_above is {self.widen_above}; it must be at least 1: no rank can do less than the mean."
            )

    def get_groups_and_subsamples(self, sample_id_seqlens: SampleLengths) -> SampleGroups:
        ids, lengths = _split(sample_id_seqlens)
        schedule = hybrid_schedule(
            lengths, shape=self.shape, policy=self.policy, cost=self.cost, widen_above=self.widen_above
        )
        return schedule.to_groups(ids)


scheduler_map: dict[str, type[BasePackingScheduler]] = {
    "dp_balanced": DpBalancedScheduler,
    "compute_balanced": ComputeBalancedScheduler,
    "hybrid_context_parallel": HybridContextParallelScheduler,
}
"""Schedulers by name, the value of `sequence_packing_scheduler`; add your own."""


def _split(sample_id_seqlens: SampleLengths) -> tuple[list[int], Int64s]:
    """Return ids and checked lengths."""
    ids = [sample for sample, _ in sample_id_seqlens]
    return ids, checked_lengths([length for _, length in sample_id_seqlens])
