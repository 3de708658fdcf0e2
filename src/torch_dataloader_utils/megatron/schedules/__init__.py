"""Pack sequences of unequal length and spread the packs over data- and context-parallel ranks.

In: samples of one sequence each (`wrap_data_iterator`, `PackedLoader`), or a source and its lengths
(`PlannedPackedLoader`, without communication). Out: for each global batch an iterator of packed microbatches, their
number, Σ length and Σ length²; for each microbatch the tokens of this rank and the borders of sequences
(`get_batch_on_this_rank_for_sequence_packing`). `plan/` computes schedules, the modules here move the data.

Promises: every sequence once, no rank above its capacity, the same number of microbatches and the same schedule on
every rank, in every run. All communication is torch.distributed, gloo or NCCL. Not for: joining documents to samples of
one length (`megatron.corpora` before training, `samples` while reading), or the attention kernel that respects
`cu_seqlens`. Names are as in Megatron-Core's scheduling (`BasePackingScheduler`, `scheduler_map`).
"""

from torch_dataloader_utils.megatron.schedules.batch import (
    PackedBatch,
    PackedSeqParams,
    get_batch_on_this_rank_for_sequence_packing,
    get_thd_partitioned_indices,
)
from torch_dataloader_utils.megatron.schedules.global_batch import (
    ScheduledBatch,
    broadcast_to_pp_group,
    reroute_samples_to_dcp_ranks,
)
from torch_dataloader_utils.megatron.schedules.global_lengths import get_batch_and_global_seqlens
from torch_dataloader_utils.megatron.schedules.groups import (
    PackingGroups,
    broadcast_scalars,
    broadcast_tensor,
    create_packing_groups,
)
from torch_dataloader_utils.megatron.schedules.microbatches import build_packed_microbatches, create_data_iterator
from torch_dataloader_utils.megatron.schedules.packed_loader import PackedLoader, PackingConfig, wrap_data_iterator
from torch_dataloader_utils.megatron.schedules.plan.inputs import CostModel
from torch_dataloader_utils.megatron.schedules.plan.quality import ScheduleQuality, lower_bound, measure_schedule
from torch_dataloader_utils.megatron.schedules.plan.schedule import Schedule
from torch_dataloader_utils.megatron.schedules.planned_loader import PlannedPackedLoader, SequenceSource
from torch_dataloader_utils.megatron.schedules.samples import pad_sample
from torch_dataloader_utils.megatron.schedules.schedulers import (
    BasePackingScheduler,
    ComputeBalancedScheduler,
    DpBalancedScheduler,
    HybridContextParallelScheduler,
    scheduler_map,
)

__all__ = [
    "BasePackingScheduler",
    "ComputeBalancedScheduler",
    "CostModel",
    "DpBalancedScheduler",
    "HybridContextParallelScheduler",
    "PackedBatch",
    "PackedLoader",
    "PackedSeqParams",
    "PackingConfig",
    "PackingGroups",
    "PlannedPackedLoader",
    "Schedule",
    "ScheduleQuality",
    "ScheduledBatch",
    "SequenceSource",
    "broadcast_scalars",
    "broadcast_tensor",
    "broadcast_to_pp_group",
    "build_packed_microbatches",
    "create_data_iterator",
    "create_packing_groups",
    "get_batch_and_global_seqlens",
    "get_batch_on_this_rank_for_sequence_packing",
    "get_thd_partitioned_indices",
    "lower_bound",
    "measure_schedule",
    "pad_sample",
    "reroute_samples_to_dcp_ranks",
    "scheduler_map",
    "wrap_data_iterator",
]
