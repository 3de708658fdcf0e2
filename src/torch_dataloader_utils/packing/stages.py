"""Pipeline stages: the middle ones learn where sequences begin; first and last must have read the same."""

import hashlib
from typing import NamedTuple

import torch

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.packing.collectives import broadcast_scalars, broadcast_tensor, first_rank
from torch_dataloader_utils.packing.groups import PackingGroups, communication_device, group_rank, group_size
from torch_dataloader_utils.packing.microbatches import Microbatch


class StageBatch(NamedTuple):
    """The microbatches of one stage, and Σ length and Σ length² of the whole global batch."""

    microbatches: list[Microbatch]
    seqlen_sum: int
    seqlen_squared_sum: int


def broadcast_to_pp_group(own: StageBatch | None, groups: PackingGroups) -> StageBatch:
    """The batch of this stage; a collective call of the pipeline group (on tensor rank 0).

    First and last stage give theirs and get it back; the stages between give None and get the statistics and the
    metadata of the first, everything but the `TOKEN_FIELDS`. It travels as one int64 tensor: number of
    microbatches, Σ length, Σ length², then per microbatch the size of `cu_seqlens`, `max_seqlen`, `local_cp_size`
    (0 if there is none), `cu_seqlens`, `cu_seqlens_padded`.

    Raises:
        ConfigError: the first stage has no batch.
    """
    is_source = group_rank(groups.pp) == 0
    if is_source and own is None:
        raise ConfigError("the first pipeline stage has no batch to share; give it a data iterator.")
    if own is not None and group_size(groups.pp) <= 2:
        return own
    device = communication_device(groups)
    encoded = torch.empty(0, dtype=torch.int64) if own is None else _encode(own)
    (count,) = broadcast_scalars([encoded.numel()], groups.pp, device)
    shared = encoded.to(device) if is_source else torch.empty(int(count), dtype=torch.int64, device=device)
    broadcast_tensor(shared, first_rank(groups.pp), groups.pp)
    return _decode(shared.cpu(), device) if own is None else own


def digest_of(batch: StageBatch) -> int:
    """A digest of 56 bits (never negative): equal on stages that have scheduled sequences of the same lengths."""
    return int.from_bytes(hashlib.blake2b(_encode(batch).numpy().tobytes(), digest_size=7).digest())


def _encode(batch: StageBatch) -> torch.Tensor:
    parts = [torch.tensor([len(batch.microbatches), batch.seqlen_sum, batch.seqlen_squared_sum])]
    for facts in batch.microbatches:
        local_cp_size = int(facts["local_cp_size"]) if "local_cp_size" in facts else 0
        header = [facts["cu_seqlens"].numel(), int(facts["max_seqlen"]), local_cp_size]
        parts += [torch.tensor(header), facts["cu_seqlens"].cpu(), facts["cu_seqlens_padded"].cpu()]
    return torch.cat([part.to(torch.int64) for part in parts])


def _decode(encoded: torch.Tensor, device: torch.device) -> StageBatch:
    num_microbatches, seqlen_sum, seqlen_squared_sum = encoded[:3].tolist()
    numbers = encoded[3:].to(torch.int32)
    microbatches = []
    for _ in range(num_microbatches):
        size, max_seqlen, local_cp_size = numbers[:3].tolist()
        bounds = numbers[3 : 3 + 2 * size].to(device)
        numbers = numbers[3 + 2 * size :]
        facts = {
            "cu_seqlens": bounds[:size],
            "cu_seqlens_padded": bounds[size:],
            "max_seqlen": torch.tensor(max_seqlen, dtype=torch.int32, device=device),
        }
        if local_cp_size:
            facts["local_cp_size"] = torch.tensor(local_cp_size, dtype=torch.int32, device=device)
        microbatches.append(facts)
    return StageBatch(microbatches, seqlen_sum, seqlen_squared_sum)
