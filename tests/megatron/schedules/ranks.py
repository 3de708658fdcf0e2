"""One process of the distributed test: every shape and scheduler, then every way to fail."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.megatron.schedules.sequences import Sequences, samples_of, sequence, share_of
from tests.simulated_cuda import simulated_nccl
from torch_dataloader_utils.errors import ConfigError, LoaderError
from torch_dataloader_utils.megatron.schedules import (
    DpBalancedScheduler,
    PackingConfig,
    PackingGroups,
    PlannedPackedLoader,
    create_packing_groups,
    get_batch_on_this_rank_for_sequence_packing,
    pad_sample,
    scheduler_map,
    wrap_data_iterator,
)
from torch_dataloader_utils.megatron.schedules.global_batch import stage_has_data
from torch_dataloader_utils.megatron.schedules.groups import group_rank, group_size
from torch_dataloader_utils.megatron.schedules.packed_loader import create_scheduler

LENGTHS = [9, 30, 4, 17, 5, 32, 8, 8, 3, 12, 21, 6, 6, 16, 2, 7, 28, 5, 11, 13, 4, 4, 9, 10, 26, 3, 8, 19, 5, 14, 6, 7]
CAPACITY = 48
"""Tokens of a pack on all its context-parallel ranks; no sequence is longer."""

Shapes = dict[int, list[tuple[int, int, int, int]]]
SHAPES: Shapes = {
    2: [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)],
    3: [(3, 1, 1, 1), (1, 1, 1, 3)],
    4: [(2, 2, 1, 1), (2, 1, 2, 1), (1, 2, 1, 2)],
    5: [(5, 1, 1, 1)],
    6: [(3, 2, 1, 1), (2, 1, 1, 3), (1, 3, 2, 1)],
    7: [(7, 1, 1, 1)],
    8: [(2, 2, 2, 1), (1, 2, 2, 2), (4, 2, 1, 1), (2, 4, 1, 1), (2, 2, 1, 2), (2, 1, 1, 4)],
}
"""Per number of processes: data, context, tensor, pipeline sizes."""

FEW_SHAPES: Shapes = {3: [(1, 1, 1, 3)], 4: [(2, 1, 2, 1)], 8: [(1, 2, 2, 2), (4, 2, 1, 1), (2, 2, 1, 2)]}
"""Of them, every two sizes together, and a stage between two others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One global batch as one process got it; `devices` of a batch: where its tensors were."""

    coordinates: tuple[int, int, int, int]
    facts: tuple[int, int, int]
    batches: list[dict[str, object]]
    planned_facts: tuple[int, int, int]
    planned_batches: list[dict[str, object]]
    planned_reads: list[int]


def run_rank_on_device(rank: int, folder: Path, all_shapes: Shapes) -> None:
    """The same with NCCL, simulated."""
    with simulated_nccl(seed=rank):
        run_rank(rank, folder, all_shapes)


def run_rank(rank: int, folder: Path, all_shapes: Shapes = SHAPES) -> None:
    """Joins every group of processes that has this rank, and saves what it got under `folder`."""
    torch.set_num_threads(1)
    saved: dict[str, Any] = {"results": {}}
    for world_size, shapes in all_shapes.items():
        if rank >= world_size:
            continue
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store{world_size}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=240),
        )
        for shape in shapes:
            run_shape(shape, saved)
        dist.destroy_process_group()
    torch.save(saved, folder / f"rank{rank}.pt")


def run_shape(shape: tuple[int, int, int, int], saved: dict[str, Any]) -> None:
    """Every scheduler on one shape, and the faults of two shapes; its groups are gone when it returns."""
    dp, cp, tp, pp = shape
    groups = create_packing_groups(dp_size=dp, cp_size=cp, tp_size=tp, pp_size=pp, is_hybrid=True)
    for name in scheduler_map:
        saved["results"][shape, name] = one_global_batch(groups, name)
    if shape == (2, 2, 1, 2):
        saved["failures"] = {fault.__name__: outcome_of(fault, groups) for fault in FAULTS}
    if shape == (2, 1, 2, 1):
        nothings = (iter([]), None, iter([{}]))
        saved["microbatch_failures"] = [microbatch_outcome_of(given, groups) for given in nothings]


def one_global_batch(groups: PackingGroups, scheduler_name: str) -> Result:
    """The same global batch by the communicating and by the planned path."""
    has_virtual_stages = group_size(groups.pp) == 2
    config = PackingConfig(
        max_seqlen_per_dp_cp_rank=CAPACITY // group_size(groups.cp),
        sequence_packing_scheduler=scheduler_name,
        virtual_pipeline_model_parallel_size=2 if has_virtual_stages else None,
        microbatch_group_size_per_vp_stage=2 if has_virtual_stages else None,
    )
    source = Sequences(LENGTHS)
    loader = PlannedPackedLoader(
        source,
        LENGTHS,
        create_scheduler(config, groups),
        global_batch_size=len(LENGTHS),
        groups=groups,
        virtual_pipeline_size=config.virtual_pipeline_model_parallel_size,
    )
    (planned,) = loader
    wrapped = wrap_data_iterator(own_samples(groups), config, len(LENGTHS), groups)
    return Result(
        coordinates=tuple(group_rank(group) for group in (groups.dp, groups.cp, groups.tp, groups.pp)),
        facts=wrapped[1:],
        batches=batches_of(wrapped, groups),
        planned_facts=planned[1:],
        planned_batches=batches_of(planned, groups),
        planned_reads=source.read,
    )


def own_samples(groups: PackingGroups) -> Iterator[dict[str, torch.Tensor]] | None:
    if not stage_has_data(groups):
        return None
    return samples_of(LENGTHS, dp_rank=group_rank(groups.dp), dp_size=group_size(groups.dp))


def batches_of(scheduled, groups: PackingGroups) -> list[dict[str, object]]:
    """All microbatches of this process, as plain values; with virtual stages those of one stage after the other."""
    iterators = scheduled.data_iterator if isinstance(scheduled.data_iterator, list) else [scheduled.data_iterator]
    vpp_size = len(iterators) if len(iterators) > 1 else None
    found = []
    for stage, iterator in enumerate(iterators):
        for _ in range(scheduled.num_microbatches):
            batch = get_batch_on_this_rank_for_sequence_packing(
                iterator, vpp_size, False, None if vpp_size is None else stage, groups
            )
            params = batch.packed_seq_params
            # Every token of these sequences counts, but for packs without a sequence, which have none that does.
            if batch.loss_mask is not None and batch.loss_mask.any():
                assert torch.equal(batch.padding_mask, batch.loss_mask == 0)
            tensors = {
                **{key: None if value is None else value[0] for key, value in fields(batch).items()},
                "cu_seqlens": params.cu_seqlens_q,
                "cu_seqlens_padded": params.cu_seqlens_q_padded,
            }
            found.append(
                {
                    **{key: None if value is None else value.cpu() for key, value in tensors.items()},
                    "devices": {str(value.device) for value in tensors.values() if value is not None},
                    "max_seqlen": params.max_seqlen_q,
                    "local_cp_size": params.local_cp_size,
                    "cp_group_size": group_size(params.cp_group),
                }
            )
    return found


def fields(batch) -> dict[str, torch.Tensor | None]:
    return {key: getattr(batch, key) for key in ("tokens", "labels", "loss_mask", "position_ids")}


def outcome_of(fault: Callable[[PackingGroups], Iterator[dict[str, torch.Tensor]] | None], groups) -> str:
    """How `wrap_data_iterator` ends on this process when `fault` gives the data."""
    config = PackingConfig(max_seqlen_per_dp_cp_rank=CAPACITY // 2)
    data = fault(groups) if stage_has_data(groups) else None
    scheduler = FAULTY_SCHEDULERS[fault](CAPACITY // 2, 2, 2) if fault in FAULTY_SCHEDULERS else None
    groups = None if fault is no_groups_are_given else groups
    try:
        scheduled = wrap_data_iterator(data, config, len(LENGTHS), groups, scheduler)
    except (LoaderError, StopIteration) as error:
        return f"{type(error).__name__}: {error}"
    return f"{scheduled.seqlen_sum} tokens"


def microbatch_outcome_of(given: Iterator[dict[str, torch.Tensor]] | None, groups: PackingGroups) -> str:
    """How the next microbatch ends on this process when tensor rank 0 has `given` for its iterator."""
    try:
        get_batch_on_this_rank_for_sequence_packing(given if group_rank(groups.tp) == 0 else None, groups=groups)
    except (LoaderError, StopIteration) as error:
        return f"{type(error).__name__}: {error}"
    return "a microbatch"


def one_process_cannot_read(groups: PackingGroups):
    if dist.get_rank() == 1:
        return iter([{"tokens": torch.ones(3)}])
    return own_samples(groups)


def a_sequence_is_over_long(groups: PackingGroups):
    return iter([pad_sample(sequence(0, CAPACITY + 1))])


def the_data_has_ended(groups: PackingGroups):
    return iter([])


def one_data_rank_has_ended(groups: PackingGroups):
    return own_samples(groups) if group_rank(groups.dp) == 0 else iter([])


def items_have_no_sequence_at_first(groups: PackingGroups):
    """For one global batch on data rank 0, for two on data rank 1."""
    num_empty = len(LENGTHS) * (1 + group_rank(groups.dp))
    return chain([[]] * num_empty, own_samples(groups))


def context_ranks_read_different_data(groups: PackingGroups):
    return iter([pad_sample(sequence(0, 4 + group_rank(groups.cp))), pad_sample(sequence(1, 4))])


def context_ranks_read_sequences_of_one_length(groups: PackingGroups):
    return iter([pad_sample(sequence(group_rank(groups.cp), 4)), pad_sample(sequence(2, 4))])


def stages_read_different_data(groups: PackingGroups):
    return iter([pad_sample(sequence(0, 4 + group_rank(groups.pp))), pad_sample(sequence(1, 4))])


def no_groups_are_given(groups: PackingGroups):
    return own_samples(groups)


def one_process_has_no_iterator(groups: PackingGroups):
    return None if dist.get_rank() == 1 else own_samples(groups)


def one_process_cannot_schedule(groups: PackingGroups):
    return own_samples(groups)


def one_process_schedules_differently(groups: PackingGroups):
    return own_samples(groups)


class FailsOnOneRank(DpBalancedScheduler):
    def get_groups_and_subsamples(self, sample_id_seqlens):
        if dist.get_rank() == 1:
            raise ConfigError("cannot schedule")
        return super().get_groups_and_subsamples(sample_id_seqlens)


class DependsOnTheRank(DpBalancedScheduler):
    def get_groups_and_subsamples(self, sample_id_seqlens):
        groups = super().get_groups_and_subsamples(sample_id_seqlens)
        return groups[::-1] if dist.get_rank() == 1 else groups


FAULTY_SCHEDULERS: dict[Callable[..., object], type[DpBalancedScheduler]] = {
    one_process_cannot_schedule: FailsOnOneRank,
    one_process_schedules_differently: DependsOnTheRank,
}

FAULTS = [
    one_process_has_no_iterator,
    one_process_cannot_schedule,
    one_process_schedules_differently,
    one_process_cannot_read,
    a_sequence_is_over_long,
    the_data_has_ended,
    one_data_rank_has_ended,
    items_have_no_sequence_at_first,
    context_ranks_read_different_data,
    context_ranks_read_sequences_of_one_length,
    stages_read_different_data,
    no_groups_are_given,
]

SHARE_OF_RANK_0 = sum(LENGTHS[index] for index in share_of(LENGTHS, dp_rank=0, dp_size=2))
