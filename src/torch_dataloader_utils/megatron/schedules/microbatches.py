"""Build packed microbatches: the sequences of a pack in one row, their borders, and iterators for the training loop."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch.nn.functional import pad

from torch_dataloader_utils.megatron.schedules.groups import PackingGroups, group_rank, group_size
from torch_dataloader_utils.megatron.schedules.plan.inputs import alignment_of
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s, Schedule
from torch_dataloader_utils.megatron.schedules.samples import TOKEN_FIELDS

Microbatch = dict[str, torch.Tensor]

METADATA_KEYS = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size")

# Length of the padding sequence of an empty pack: one token is enough, but attention kernels prefer an even number.
_PADDING_SEQUENCE_TOKENS = 2


def build_packed_microbatches(
    samples: Mapping[int, Mapping[str, torch.Tensor]], metadata: list[Microbatch], schedule: Schedule, dcp_rank: int
) -> list[Microbatch]:
    """Return `metadata` with the `TOKEN_FIELDS` of each microbatch of one rank, each of shape [tokens of the pack].

    Every sequence is padded with zeros (so with loss mask 0) to its span in `cu_seqlens_padded`. All ranks of a
    pack hold the whole row; `get_batch_on_this_rank_for_sequence_packing` takes this rank's part of the row.

    Args:
        samples: sequences that this rank takes part in, by position.
        metadata: result of `packed_metadata` for this rank.
        schedule: schedule of the global batch.
        dcp_rank: rank of this process in the data × context parallel group.
    """
    microbatches = []
    for facts, pack in zip(metadata, schedule.packs_of_rank(dcp_rank).tolist(), strict=True):
        members = [samples[position] for position in schedule.samples_of_pack(pack).tolist()]
        sizes = facts["cu_seqlens_padded"].diff().tolist()
        device = facts["cu_seqlens"].device
        fields = {key: _packed_row(members, sizes, key, dtype, device) for key, dtype in TOKEN_FIELDS.items()}
        microbatches.append(fields | facts)
    return microbatches


def packed_metadata(
    schedule: Schedule,
    dcp_rank: int,
    *,
    original_lengths: Int64s,
    padded_lengths: Int64s,
    device: torch.device,
    is_hybrid: bool = False,
) -> list[Microbatch]:
    """Return each microbatch of one rank without tokens, as a pipeline stage without data needs it.

    Keys of a microbatch: `cu_seqlens` and `cu_seqlens_padded` (int32 [sequences + 1], starts at 0, in tokens of the
    whole pack over all its ranks), `max_seqlen` (int32 scalar, padded), and with `is_hybrid` `local_cp_size` (int32
    scalar, number of ranks of the pack). On several ranks, sequences are padded to a multiple of 2 × ranks of the
    pack. An empty pack gets one padding sequence.

        lengths 3 and 5 on 2 ranks      cu_seqlens 0 3 8    cu_seqlens_padded 0 4 12    max_seqlen 8
    """
    metadata = []
    for pack in schedule.packs_of_rank(dcp_rank).tolist():
        span = int(schedule.span[pack])
        multiple = alignment_of(span)
        members = schedule.samples_of_pack(pack)
        originals, padded = original_lengths[members], padded_lengths[members]
        if not len(members):
            originals = padded = np.array([_PADDING_SEQUENCE_TOKENS])
        padded = -(-padded // multiple) * multiple
        facts = {
            "cu_seqlens": _offsets(originals, device),
            "cu_seqlens_padded": _offsets(padded, device),
            "max_seqlen": torch.tensor(int(padded.max()), dtype=torch.int32, device=device),
        }
        if is_hybrid:
            facts["local_cp_size"] = torch.tensor(span, dtype=torch.int32, device=device)
        metadata.append(facts)
    return metadata


def _offsets(lengths: Int64s, device: torch.device) -> torch.Tensor:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return torch.from_numpy(starts).to(device)


def _packed_row(
    members: list[Mapping[str, torch.Tensor]], sizes: list[int], key: str, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return one field of all sequences of a pack in a row, each padded to its size; zeros for an empty pack."""
    if not members:
        return torch.zeros(sum(sizes), dtype=dtype, device=device)
    padded = [pad(member[key], (0, size - member[key].numel())) for member, size in zip(members, sizes, strict=True)]
    return torch.cat(padded).to(device)


DataIterator = Iterator[Microbatch] | None | list[Iterator[Microbatch] | None]
"""Iterator over microbatches: None on every tensor rank but 0; with virtual pipeline stages a list of one per stage."""


def create_data_iterator(
    microbatches: list[Microbatch], groups: PackingGroups, virtual_pipeline_size: int | None = None
) -> DataIterator:
    """Return the iterator of this process over its packed microbatches.

    With virtual pipeline stages a process holds several stages, and each stage goes through all microbatches. Only the
    first stage of the first process and the last stage of the last process get tokens; other stages get metadata.

        pp 2, virtual 2      process 0: [tokens, metadata]     process 1: [metadata, tokens]
    """
    has_data = group_rank(groups.tp) == 0
    if virtual_pipeline_size is None or virtual_pipeline_size == 1:
        return iter(microbatches) if has_data else None
    if not has_data:
        return [None] * virtual_pipeline_size
    pp_rank, pp_size = group_rank(groups.pp), group_size(groups.pp)
    metadata = [{key: each[key] for key in METADATA_KEYS if key in each} for each in microbatches]
    needs_tokens = [
        (pp_rank == 0 and stage == 0) or (pp_rank == pp_size - 1 and stage == virtual_pipeline_size - 1)
        for stage in range(virtual_pipeline_size)
    ]
    return [iter(microbatches if needed else metadata) for needed in needs_tokens]
