"""The entry point of a training loop: an iterator of samples in, an iterator of packed microbatches out."""

from dataclasses import dataclass
from typing import Protocol

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.packing.global_batch import ItemIterator, ScheduledBatch
from torch_dataloader_utils.packing.groups import PackingGroups, group_size, known_groups
from torch_dataloader_utils.packing.schedulers import BasePackingScheduler, scheduler_map


class PackingOptions(Protocol):
    """The options that packing reads; Megatron's model configuration has them, and so has `PackingConfig`."""

    @property
    def max_seqlen_per_dp_cp_rank(self) -> int:
        """Most tokens of one microbatch on one rank."""

    @property
    def sequence_packing_scheduler(self) -> str:
        """A name of `scheduler_map`."""

    @property
    def virtual_pipeline_model_parallel_size(self) -> int | None:
        """Virtual pipeline stages per process."""

    @property
    def microbatch_group_size_per_vp_stage(self) -> int | None:
        """With virtual stages, the number of microbatches is a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """The options of packing, under the names that Megatron Core gives them; see `PackingOptions`."""

    max_seqlen_per_dp_cp_rank: int
    sequence_packing_scheduler: str = "dp_balanced"
    virtual_pipeline_model_parallel_size: int | None = None
    microbatch_group_size_per_vp_stage: int | None = None


def wrap_data_iterator(
    data_iterator: ItemIterator,
    config: PackingOptions,
    num_microbatches: int,
    groups: PackingGroups | None = None,
    scheduler: BasePackingScheduler | None = None,
) -> ScheduledBatch:
    """The next global batch, scheduled over all ranks; a collective call, once per optimizer step.

    Takes `num_microbatches` items from `data_iterator` on every data-parallel rank and gives back
    (data_iterator, num_microbatches, seqlen_sum, seqlen_squared_sum): an iterator of packed microbatches for
    `get_batch_on_this_rank_for_sequence_packing`, how many there are, Σ length and Σ length². When the data ends
    in the middle of a global batch, what is left is one; nothing is thrown away.

    Args:
        data_iterator: samples (see `samples.read_samples`) on tensor rank 0 of the first and last pipeline stage,
            None elsewhere; with virtual pipeline stages a list with one entry per stage.
        config: the options; `PackingConfig`, or Megatron's own configuration.
        num_microbatches: items to read.
        groups: the process groups; None for a single process.
        scheduler: one with more options than `config` has; else `scheduler_map` by name.

    Raises:
        StopIteration: the data has ended; on every rank.
        ConfigError: options, iterators or lengths that do not fit.
        DataError: another process failed.
    """
    groups = known_groups(groups)
    return (scheduler or create_scheduler(config, groups)).run(
        data_iterator, num_microbatches, groups, config.virtual_pipeline_model_parallel_size
    )


def create_scheduler(config: PackingOptions, groups: PackingGroups) -> BasePackingScheduler:
    """The scheduler that `config` names, for the sizes of `groups`.

    Raises:
        ConfigError: a name that `scheduler_map` does not have, or virtual stages without a group size.
    """
    name = config.sequence_packing_scheduler
    if name not in scheduler_map:
        raise ConfigError(f"no packing scheduler {name!r}; use one of {', '.join(map(repr, scheduler_map))}.")
    has_virtual_stages = config.virtual_pipeline_model_parallel_size is not None
    if has_virtual_stages and config.microbatch_group_size_per_vp_stage is None:
        raise ConfigError(
            "virtual pipeline stages need microbatch_group_size_per_vp_stage; pass it (Megatron's default is the "
            "pipeline size)."
        )
    return scheduler_map[name](
        config.max_seqlen_per_dp_cp_rank,
        group_size(groups.cp),
        group_size(groups.dp),
        config.microbatch_group_size_per_vp_stage if has_virtual_stages else None,
    )
