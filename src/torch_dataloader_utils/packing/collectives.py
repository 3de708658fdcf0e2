"""The few collective operations of the runtime; each does nothing in a group of one."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from torch_dataloader_utils.packing.groups import Group, group_size


def broadcast_tensor(item: torch.Tensor | None, src_rank: int, group: Group) -> None:
    """Overwrites `item` with that of the process with global rank `src_rank`; nothing for None.

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
    """The values of the first rank of the group, on every rank; those of other ranks are ignored.

    int64 by default: Σ length² of a global batch passes 2^24, where float32 stops counting.
    """
    sent = torch.tensor([value or 0 for value in values], dtype=dtype, device=dev)
    broadcast_tensor(sent, first_rank(group), group)
    received: list[int | float] = sent.tolist()
    return received


def first_rank(group: Group) -> int:
    """The global rank of the first process of a group."""
    return 0 if group is None else dist.get_process_group_ranks(group)[0]


def maxima(values: Sequence[int], group: Group, device: torch.device) -> list[int]:
    """Value by value, the greatest in the group."""
    if group_size(group) == 1:
        return list(values)
    shared = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    greatest: list[int] = shared.tolist()
    return greatest


def gather_rows(rows: torch.Tensor, group: Group) -> list[torch.Tensor]:
    """The tensor of every rank of the group, in rank order; all have the same shape and dtype."""
    if group_size(group) == 1:
        return [rows]
    gathered = [torch.empty_like(rows) for _ in range(group_size(group))]
    dist.all_gather(gathered, rows, group=group)
    return gathered


def exchange(sent: torch.Tensor, *, send_counts: list[int], receive_counts: list[int], group: Group) -> torch.Tensor:
    """All-to-all of 1-D runs: run r of `sent` goes to rank r, the result holds the run of each rank in rank order."""
    if group_size(group) == 1:
        return sent
    received = sent.new_empty(sum(receive_counts))
    dist.all_to_all_single(received, sent, receive_counts, send_counts, group=group)
    return received
