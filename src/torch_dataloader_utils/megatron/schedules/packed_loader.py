"""Schedule and pack the samples of a loader, global batch by global batch, with communication between ranks."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch_dataloader_utils._core.arguments import check_fits
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.megatron.schedules.global_batch import ItemIterator, ScheduledBatch
from torch_dataloader_utils.megatron.schedules.groups import PackingGroups, group_size, known_groups
from torch_dataloader_utils.megatron.schedules.samples import Item
from torch_dataloader_utils.megatron.schedules.schedulers import BasePackingScheduler, scheduler_map


class PackingOptions(Protocol):
    """Options that packing reads, as in `PackingConfig` or in Megatron's model configuration."""

    @property
    def max_seqlen_per_dp_cp_rank(self) -> int:
        """Largest number of tokens of one microbatch on one rank."""

    @property
    def sequence_packing_scheduler(self) -> str:
        """Name of a scheduler in `scheduler_map`."""

    @property
    def virtual_pipeline_model_parallel_size(self) -> int | None:
        """Number of virtual pipeline stages per process, or None."""

    @property
    def microbatch_group_size_per_vp_stage(self) -> int | None:
        """Number that divides the number of microbatches with virtual stages, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """Options of packing, under Megatron Core's names; see `PackingOptions`."""

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
    """Return the next global batch, scheduled over all ranks; a collective call, once per optimizer step.

    Takes `num_microbatches` items from `data_iterator` on every data-parallel rank and returns
    (data_iterator, num_microbatches, seqlen_sum, seqlen_squared_sum): an iterator of packed microbatches for
    `get_batch_on_this_rank_for_sequence_packing`, the number of microbatches, Σ length and Σ length². If the data ends
    in the middle of a global batch, the rest becomes a smaller global batch; no sample is lost.

    Args:
        data_iterator: iterator of samples (see `samples.read_samples`) on tensor rank 0 of the first and last pipeline
            stage, None elsewhere; with virtual pipeline stages a list with one entry per stage.
        config: options; `PackingConfig`, or Megatron's own configuration.
        num_microbatches: number of items to read.
        groups: process groups; None for a single process.
        scheduler: scheduler with more options than `config` has; None takes the scheduler that `config` names.

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
    """Return the scheduler that `config` names, for the sizes of `groups`.

    Raises:
        ConfigError: a name that is not in `scheduler_map`, or virtual stages without a group size.
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


_STATE_VERSION = 1


class PackedLoader:
    """Loader of global batches: repeats `wrap_data_iterator` until the data ends.

    Between two global batches every sample that was read has been given, so the state of the wrapped loader is the
    whole state.

    Args:
        loader: loader of samples; None on processes that read no data.
        config: options, as for `wrap_data_iterator`.
        num_microbatches: number of items of `loader` per global batch and data-parallel rank.
        groups: process groups; None for a single process.
        scheduler: scheduler, as for `wrap_data_iterator`.
    """

    def __init__(
        self,
        loader: Iterable[Item] | None,
        config: PackingOptions,
        num_microbatches: int,
        groups: PackingGroups | None = None,
        scheduler: BasePackingScheduler | None = None,
    ) -> None:
        self._loader = loader
        self._config = config
        self._num_microbatches = num_microbatches
        self._groups = groups
        self._scheduler = scheduler

    def __iter__(self) -> Iterator[ScheduledBatch]:
        items = None if self._loader is None else iter(self._loader)
        while True:
            try:
                batch = wrap_data_iterator(items, self._config, self._num_microbatches, self._groups, self._scheduler)
            except StopIteration:
                return
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped loader (None on processes without a loader); call between global batches.

        Raises:
            ConfigError: the wrapped loader has no `state_dict`.
        """
        return {"version": _STATE_VERSION, "loader": None if self._loader is None else self._method("state_dict")()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the wrapped loader.

        Raises:
            CheckpointMismatchError: a state of another version, or of a process that read no data.
            ConfigError: the wrapped loader has no `load_state_dict`.
        """
        check_fits(state, {"version": _STATE_VERSION, "loader": None}, ("version",), problem="The state does not fit")
        if (state["loader"] is None) != (self._loader is None):
            raise CheckpointMismatchError(
                f"The state has {'no' if state['loader'] is None else 'a'} loader, this process "
                f"{'none' if self._loader is None else 'one'}. Load it on a process of the same kind."
            )
        if self._loader is not None:
            self._method("load_state_dict")(state["loader"])

    def _method(self, name: str) -> Any:
        method = getattr(self._loader, name, None)
        if method is None:
            raise ConfigError(
                f"{type(self._loader).__name__} has no {name}; wrap a loader with state (create_dataloader gives one)."
            )
        return method
