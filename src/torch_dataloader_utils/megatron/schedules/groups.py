"""Hold the process groups of a job in one value, and call the few collective operations in the groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.schedules.plan.inputs import PackingShape, span_sizes

Group = dist.ProcessGroup | None
"""Process group; None is a group of this process alone and needs no torch.distributed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingGroups:
    """Groups of this process. Any object with the same attributes works too, for example Megatron's collection.

    Attributes:
        dp: data-parallel group: same context, tensor and pipeline rank.
        cp: context-parallel group.
        tp: tensor-parallel group; rank 0 reads data.
        pp: pipeline-parallel group; the first and the last rank read data.
        dp_cp: data × context parallel group, with the context rank running fastest.
        hybrid_cp: for each size, the group of neighbours in dp_cp that share a sequence; only for hybrid schedules.
    """

    dp: Group = None
    cp: Group = None
    tp: Group = None
    pp: Group = None
    dp_cp: Group = None
    hybrid_cp: Mapping[int, Group] = field(default_factory=dict)


def create_packing_groups(
    *, dp_size: int = 1, cp_size: int = 1, tp_size: int = 1, pp_size: int = 1, is_hybrid: bool = False
) -> PackingGroups:
    """Make the groups of this process in a job of dp × cp × tp × pp processes; a collective call.

    Ranks run tensor fastest, then context, data, pipeline: rank = t + tp × (c + cp × (d + dp × p)), the default
    order of Megatron Core. `is_hybrid` also makes the groups of hybrid schedules.

    Raises:
        ConfigError: the sizes do not multiply to the number of processes.
    """
    sizes = (pp_size, dp_size, cp_size, tp_size)
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    grid = torch.arange(world_size)
    if torch.tensor(sizes).prod() != world_size:
        raise ConfigError(
            f"dp {dp_size} × cp {cp_size} × tp {tp_size} × pp {pp_size} is not the number of processes, {world_size}. "
            "Choose sizes that multiply to it, and initialize torch.distributed first."
        )
    grid = grid.reshape(sizes)
    dp_cp_rows = grid.permute(0, 3, 1, 2).reshape(-1, dp_size * cp_size)
    hybrid_sizes = span_sizes(dp_size * cp_size) if is_hybrid else []
    return PackingGroups(
        dp=_own_group(grid.permute(0, 2, 3, 1).reshape(-1, dp_size)),
        cp=_own_group(grid.permute(0, 1, 3, 2).reshape(-1, cp_size)),
        tp=_own_group(grid.reshape(-1, tp_size)),
        pp=_own_group(grid.permute(1, 2, 3, 0).reshape(-1, pp_size)),
        dp_cp=_own_group(dp_cp_rows),
        hybrid_cp={size: _own_group(dp_cp_rows.reshape(-1, size)) for size in hybrid_sizes},
    )


def _own_group(rows: torch.Tensor) -> Group:
    """Return the group of the row with this process. All processes make all groups, in the same order."""
    if rows.shape[1] == 1:
        return None
    own: Group = None
    for row in rows.tolist():
        group = dist.new_group(row)
        if dist.get_rank() in row:
            own = group
    return own


def group_size(group: Group) -> int:
    """Return the number of processes in a group."""
    return 1 if group is None else group.size()


def group_rank(group: Group) -> int:
    """Return the rank of this process in a group."""
    return 0 if group is None else group.rank()


def known_groups(groups: PackingGroups | None) -> PackingGroups:
    """Return `groups`, or the groups of a single process.

    Raises:
        ConfigError: no groups in a job of several processes.
    """
    if groups is None and dist.is_initialized() and dist.get_world_size() > 1:
        raise ConfigError(
            f"{dist.get_world_size()} processes and no groups; pass create_packing_groups(dp_size=…, cp_size=…, …)."
        )
    return groups or PackingGroups()


def check_groups(groups: PackingGroups, *, shape: PackingShape) -> None:
    """Raise unless the groups have the sizes of `shape`, and dp_cp runs over context-parallel ranks fastest.

    Raises:
        ConfigError: sizes or ranks that do not fit each other.
    """
    sizes = (group_size(groups.dp), group_size(groups.cp), group_size(groups.dp_cp))
    if sizes != (shape.dp_size, shape.cp_size, shape.num_ranks):
        raise ConfigError(
            f"the dp, cp and dp_cp groups have {sizes} ranks, the scheduler is for "
            f"{(shape.dp_size, shape.cp_size, shape.num_ranks)}. Make the scheduler with the sizes of the groups."
        )
    position = group_rank(groups.dp) * shape.cp_size + group_rank(groups.cp)
    if group_rank(groups.dp_cp) != position:
        raise ConfigError(
            f"this process is rank {group_rank(groups.dp_cp)} of the dp_cp group where its dp and cp ranks give "
            f"{position}. Order dp_cp with the context-parallel rank running fastest (create_packing_groups does)."
        )


def context_group(groups: PackingGroups, size: int) -> Group:
    """Return the group of `size` neighbouring ranks that share a hybrid pack with this process.

    Raises:
        ConfigError: no group of this size was made.
    """
    if size == 1:
        return None
    # Megatron's collection of groups lacks this attribute: hybrid schedules need `PackingGroups`.
    hybrid: Mapping[int, Group] = getattr(groups, "hybrid_cp", {})
    if size not in hybrid:
        raise ConfigError(
            f"no context-parallel group of {size} ranks (there are {sorted(hybrid)}). "
            "Make the groups with create_packing_groups(..., is_hybrid=True)."
        )
    return hybrid[size]


def communication_device(groups: PackingGroups) -> torch.device:
    """Return the device that tensors are sent from: the current CUDA device if a group uses NCCL, else the CPU."""
    if not dist.is_initialized():
        return torch.device("cpu")
    # The backend of each device, such as "cpu:gloo,cuda:nccl", torch's choice on a machine with a GPU.
    backends = [dist.get_backend_config(group) for group in (groups.dp_cp, groups.tp, groups.pp)]
    has_nccl = any("nccl" in each for each in backends)
    return torch.device("cuda", torch.cuda.current_device()) if has_nccl else torch.device("cpu")


def broadcast_tensor(item: torch.Tensor | None, src_rank: int, group: Group) -> None:
    """Overwrite `item` with the tensor of the process with global rank `src_rank`; do nothing for None.

    Shape and dtype must be the same on all ranks of the group.
    """
    if item is not None and group_size(group) > 1:
        dist.broadcast(item, src_rank, group=group)


def broadcast_scalars(
    values: Sequence[int | float | None],
    group: Group,
    dev: torch.device,
    dtype: torch.dtype = torch.int64,
) -> list[int | float]:
    """Return the values of the first rank of the group, on every rank; values of other ranks are ignored.

    The dtype is int64 by default: Σ length² of a global batch passes 2^24, and float32 is not exact above 2^24.
    """
    sent = torch.tensor([value or 0 for value in values], dtype=dtype, device=dev)
    broadcast_tensor(sent, first_rank(group), group)
    received: list[int | float] = sent.tolist()
    return received


def first_rank(group: Group) -> int:
    """Return the global rank of the first process of a group."""
    return 0 if group is None else dist.get_process_group_ranks(group)[0]


def maxima(values: Sequence[int], group: Group, device: torch.device) -> list[int]:
    """Return for each value the greatest in the group."""
    if group_size(group) == 1:
        return list(values)
    shared = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    greatest: list[int] = shared.tolist()
    return greatest


def gather_rows(rows: torch.Tensor, group: Group) -> list[torch.Tensor]:
    """Return the tensor of every rank of the group, in rank order. All have the same shape and dtype."""
    if group_size(group) == 1:
        return [rows]
    gathered = [torch.empty_like(rows) for _ in range(group_size(group))]
    dist.all_gather(gathered, rows, group=group)
    return gathered


def exchange(sent: torch.Tensor, *, send_counts: list[int], receive_counts: list[int], group: Group) -> torch.Tensor:
    """Exchange 1-D runs all-to-all: run r of `sent` goes to rank r, the result has one run per rank in rank order."""
    if group_size(group) == 1:
        return sent
    received = sent.new_empty(sum(receive_counts))
    dist.all_to_all_single(received, sent, receive_counts, send_counts, group=group)
    return received
