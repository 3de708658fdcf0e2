"""Sequences moved from the rank that read them to the ranks that compute them."""

import numpy as np
import torch

from torch_dataloader_utils.packing.collectives import exchange
from torch_dataloader_utils.packing.groups import PackingGroups, communication_device, group_rank, group_size
from torch_dataloader_utils.packing.lengths import GlobalBatch
from torch_dataloader_utils.packing.plan.schedule import Int64s, Schedule
from torch_dataloader_utils.packing.samples import TOKEN_FIELDS


def reroute_samples_to_dcp_ranks(
    batch: GlobalBatch, schedule: Schedule, groups: PackingGroups
) -> dict[int, dict[str, torch.Tensor]]:
    """The sequences that this rank computes, by global id; a collective call of the data × context parallel ranks.

    Context-parallel ranks of one data-parallel rank have read the same sequences. So rank (d, c) gets everything
    from the ranks (·, c): one all-to-all per field inside the data-parallel group. Runs are in ascending order
    of id, on both sides.
    """
    device = communication_device(groups)
    cp_size, cp_rank = group_size(groups.cp), group_rank(groups.cp)
    dp_rank = group_rank(groups.dp)
    first, last = batch.offsets[dp_rank], batch.offsets[dp_rank + 1]
    wanted = schedule.samples_of_rank(group_rank(groups.dp_cp))
    sent = []
    for peer in range(group_size(groups.dp)):
        ids = schedule.samples_of_rank(peer * cp_size + cp_rank)
        sent.append(ids[(first <= ids) & (ids < last)])
    send_counts = [int(batch.padded_lengths[ids].sum()) for ids in sent]
    receive_counts = _tokens_by_source(wanted, batch)
    sizes = batch.padded_lengths[wanted].tolist()
    samples: dict[int, dict[str, torch.Tensor]] = {sample: {} for sample in wanted.tolist()}
    for field, dtype in TOKEN_FIELDS.items():
        own = [batch.local.fields[int(sample - first)][field] for ids in sent for sample in ids.tolist()]
        flat = torch.cat(own).to(device) if own else torch.empty(0, dtype=dtype, device=device)
        received = exchange(flat, send_counts=send_counts, receive_counts=receive_counts, group=groups.dp)
        for sample, values in zip(wanted.tolist(), torch.split(received, sizes), strict=True):
            samples[sample][field] = values
    return samples


def _tokens_by_source(wanted: Int64s, batch: GlobalBatch) -> list[int]:
    """Tokens of the sequences `wanted` that each data-parallel rank has read."""
    tokens = np.concatenate([[0], np.cumsum(batch.padded_lengths[wanted])])
    counts: list[int] = np.diff(tokens[np.searchsorted(wanted, batch.offsets)]).tolist()
    return counts
