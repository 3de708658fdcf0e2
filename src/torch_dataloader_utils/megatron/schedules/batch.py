"""Get one microbatch for one process: the fields of its pipeline stage, its part of the row, shared by tensor ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from torch_dataloader_utils.errors import ConfigError, DataError
from torch_dataloader_utils.megatron.schedules.groups import (
    Group,
    PackingGroups,
    broadcast_scalars,
    broadcast_tensor,
    communication_device,
    context_group,
    first_rank,
    group_rank,
    group_size,
    known_groups,
)
from torch_dataloader_utils.megatron.schedules.microbatches import Microbatch
from torch_dataloader_utils.megatron.schedules.samples import TOKEN_FIELDS


def get_thd_partitioned_indices(
    cu_seqlens_padded: torch.Tensor, total_tokens: int, cp_size: int, cp_rank: int
) -> torch.Tensor:
    """Return the positions in the packed row of the tokens of `cp_rank`, int64 [total_tokens / cp_size].

    Positions ascend within a sequence. Every sequence is cut into 2 × cp_size chunks of equal length, and rank r takes
    chunks r and 2 × cp_size − 1 − r: under a causal mask a token attends to all earlier tokens, so a front chunk and
    its mirror at the back cost every rank the same. The order is the order of Transformer Engine's
    `thd_get_partitioned_indices`.

        cu_seqlens_padded 0 4 12, cp_size 2     rank 0: 0 3 | 4 5 10 11      rank 1: 1 2 | 6 7 8 9

    A single rank takes all tokens in order, of sequences of any length.

    No length is read back from the device, so lengths are not checked here; `packed_metadata` has padded them.

    Args:
        cu_seqlens_padded: [sequences + 1]: start of each sequence; on several ranks at multiples of 2 × cp_size.
        total_tokens: last value of `cu_seqlens_padded`.
        cp_size: number of ranks that share the row.
        cp_rank: number of this rank, in [0, cp_size).

    Raises:
        ConfigError: cp_rank not in [0, cp_size), or total_tokens not a multiple of 2 × cp_size on several ranks.
    """
    if not 0 <= cp_rank < cp_size:
        raise ConfigError(f"cp_rank is {cp_rank}; it must be in [0, {cp_size}).")
    if cp_size == 1:
        return torch.arange(total_tokens, device=cu_seqlens_padded.device)
    if total_tokens % (2 * cp_size):
        raise ConfigError(
            f"{total_tokens} packed tokens are not a multiple of {2 * cp_size} (2 × cp_size); pad every "
            "sequence to a multiple."
        )
    starts = cu_seqlens_padded[:-1].to(torch.int64)
    chunks = cu_seqlens_padded.diff().to(torch.int64) // (2 * cp_size)
    # Two runs per sequence: (start of the run, its length), then every token of every run.
    run_starts = torch.stack([starts + chunks * cp_rank, starts + chunks * (2 * cp_size - 1 - cp_rank)], dim=1)
    run_lengths = chunks.repeat_interleave(2, output_size=2 * len(chunks))
    before = run_lengths.cumsum(0) - run_lengths
    shifts = (run_starts.reshape(-1) - before).repeat_interleave(run_lengths, output_size=total_tokens // cp_size)
    return shifts + torch.arange(total_tokens // cp_size, device=shifts.device)


# Sent in place of the sizes of a microbatch if tensor rank 0 failed.
_FAILED = [-1, -1, -1, -1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedSeqParams:
    """Borders of the sequences of a packed row, in the fields that Transformer Engine's attention takes.

    The fourteen fields are the fields of Megatron-LM's main branch after megatron-core 0.16.1; release 0.16.1 has the
    first nine.

    Attributes:
        cu_seqlens_q: int32 [sequences + 1]: starts without padding, in the row over all its ranks.
        cu_seqlens_kv: equal to `cu_seqlens_q`.
        cu_seqlens_q_padded: int32 [sequences + 1]: starts with padding, the real positions of the tokens.
        cu_seqlens_kv_padded: equal to `cu_seqlens_q_padded`.
        max_seqlen_q: length of the longest padded sequence.
        max_seqlen_kv: equal to `max_seqlen_q`.
        local_cp_size: number of ranks that share this row in a hybrid schedule; None in a schedule of fixed size.
        cp_group: group of the ranks that share this row in a hybrid schedule; None if local_cp_size is None or 1.
        qkv_format: always "thd": tokens, heads, head dimension.
        total_tokens: None; a model that needs the value fills it in.
        seq_idx: None; a model that needs the value fills it in.
        tokens_per_sample: None; a model that needs the value fills it in.
        pad_between_seqs: always True: sequences may be padded.
        cp_partition_mode: always "zigzag", the order of `get_thd_partitioned_indices`.
    """

    cu_seqlens_q: torch.Tensor
    cu_seqlens_kv: torch.Tensor
    cu_seqlens_q_padded: torch.Tensor
    cu_seqlens_kv_padded: torch.Tensor
    max_seqlen_q: int
    max_seqlen_kv: int
    local_cp_size: int | None = None
    cp_group: Group = None
    qkv_format: str = "thd"
    total_tokens: int | None = None
    seq_idx: torch.Tensor | None = None
    tokens_per_sample: int | None = None
    pad_between_seqs: bool = True
    cp_partition_mode: str = "zigzag"


class PackedBatch(NamedTuple):
    """Tensors that a stage computes on, in the order in which Megatron's training loop unpacks them.

    The seven values are the values of the main branch after megatron-core 0.16.1; older loops take the first six.

    Attributes:
        tokens: int64 [1, tokens] on the first stage or with `mtp_on_this_rank`, else None.
        labels: int64 [1, tokens] on the last stage or with `mtp_on_this_rank`, else None.
        loss_mask: float32 [1, tokens] on the last stage or with `mtp_on_this_rank`, else None.
        attention_mask: None: `packed_seq_params` has the borders of sequences for the attention.
        position_ids: int64 [1, tokens] on the first stage or with `mtp_on_this_rank`, else None.
        packed_seq_params: borders of the sequences.
        padding_mask: bool [1, tokens] on every stage, True at padding; all fields are 0 at padding.
    """

    tokens: torch.Tensor | None
    labels: torch.Tensor | None
    loss_mask: torch.Tensor | None
    attention_mask: None
    position_ids: torch.Tensor | None
    packed_seq_params: PackedSeqParams
    padding_mask: torch.Tensor


def get_batch_on_this_rank_for_sequence_packing(
    data_iterator: Iterator[Microbatch] | None,
    vpp_size: int | None = None,
    mtp_on_this_rank: bool = False,
    vp_stage: int | None = None,
    groups: PackingGroups | None = None,
) -> PackedBatch:
    """Return the next microbatch; a collective call of the tensor-parallel group.

    Tensor rank 0 takes the microbatch from the wrapped iterator, cuts out the tokens of this context-parallel rank
    (`get_thd_partitioned_indices`) and sends the result to its tensor-parallel peers.

    Args:
        data_iterator: iterator that `wrap_data_iterator` returned (with virtual stages: the entry of `vp_stage`).
        vpp_size: number of virtual pipeline stages per process, or None.
        mtp_on_this_rank: whether this stage predicts several tokens and needs all four fields.
        vp_stage: number of the virtual stage that calls.
        groups: process groups; None for a single process.

    Raises:
        StopIteration: no microbatch is left (on tensor rank 0; call this function `num_microbatches` times).
        ConfigError: an iterator on another tensor rank, no iterator on rank 0, or a microbatch without the fields that
            this stage needs.
        DataError: tensor rank 0 has raised one of the errors above, or the error of its iterator.
    """
    groups = known_groups(groups)
    keys = _needed_fields(groups, vpp_size=vpp_size, mtp_on_this_rank=mtp_on_this_rank, vp_stage=vp_stage)
    try:
        part = _next_part(data_iterator, keys, groups)
    except Exception:
        # Any exception: the other tensor ranks are about to wait for rank 0.
        if group_rank(groups.tp) == 0:
            _broadcast_sizes(_FAILED, groups)
        raise
    shared = _share(part, keys, groups)
    params = _packed_seq_params(shared, groups)
    is_padding = _padding_mask(params, params.cp_group if params.local_cp_size else groups.cp)
    # A data set may pad with other values, such as labels of -100.
    rows = {key: shared[key].masked_fill(is_padding, 0).unsqueeze(0) if key in keys else None for key in TOKEN_FIELDS}
    return PackedBatch(attention_mask=None, packed_seq_params=params, padding_mask=is_padding.unsqueeze(0), **rows)


def _padding_mask(params: PackedSeqParams, group: Group) -> torch.Tensor:
    """Return the padding mask of the tokens of this context-parallel rank, bool [tokens], True at padding.

    cu_seqlens 0 3 8, padded 0 4 12      mask of the whole row: 0 0 0 1  0 0 0 0 0 1 1 1
    """
    starts, lengths = params.cu_seqlens_q_padded, params.cu_seqlens_q.diff()
    total_tokens = int(starts[-1])
    places = torch.arange(total_tokens, device=starts.device)
    ends = (starts[:-1] + lengths).repeat_interleave(starts.diff(), output_size=total_tokens)
    is_padding = places >= ends
    if group_size(group) == 1:
        return is_padding
    return is_padding[get_thd_partitioned_indices(starts, total_tokens, group_size(group), group_rank(group))]


def _next_part(data_iterator: Iterator[Microbatch] | None, keys: list[str], groups: PackingGroups) -> Microbatch | None:
    """Return `_own_part` of the next microbatch on tensor rank 0, None on other tensor ranks."""
    if (group_rank(groups.tp) == 0) != (data_iterator is not None):
        raise ConfigError(
            f"tensor-parallel rank {group_rank(groups.tp)} has {'no' if data_iterator is None else 'a'} data iterator; "
            "rank 0 has one and the others None. Pass what wrap_data_iterator gave on this rank."
        )
    return None if data_iterator is None else _own_part(next(data_iterator), keys, groups)


def _needed_fields(
    groups: PackingGroups, *, vpp_size: int | None, mtp_on_this_rank: bool, vp_stage: int | None
) -> list[str]:
    """Return the `TOKEN_FIELDS` of this stage: the first stage embeds, the last stage computes the loss."""
    is_first = group_rank(groups.pp) == 0 and vp_stage in (None, 0)
    is_last = group_rank(groups.pp) == group_size(groups.pp) - 1 and vp_stage in (None, (vpp_size or 1) - 1)
    keys = ["tokens", "position_ids"] if is_first or mtp_on_this_rank else []
    return keys + (["labels", "loss_mask"] if is_last or mtp_on_this_rank else [])


def _own_part(microbatch: Microbatch, keys: list[str], groups: PackingGroups) -> Microbatch:
    """Return the metadata of a microbatch, and the tokens of this context-parallel rank for the fields `keys`."""
    missing = [key for key in keys if key not in microbatch]
    if missing:
        raise ConfigError(
            f"the microbatch of pipeline rank {group_rank(groups.pp)} misses {missing}. Give the first and the last "
            "stage a data iterator, and pass vpp_size and vp_stage as they are."
        )
    local_cp_size = int(microbatch.get("local_cp_size", 0))
    group = context_group(groups, local_cp_size) if local_cp_size else groups.cp
    part = {key: microbatch[key] for key in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")}
    part["local_cp_size"] = torch.tensor(local_cp_size)
    if group_size(group) == 1:
        return part | {key: microbatch[key] for key in keys}
    if keys:
        total_tokens = microbatch[keys[0]].numel()
        indices = get_thd_partitioned_indices(
            microbatch["cu_seqlens_padded"], total_tokens, group_size(group), group_rank(group)
        )
        part |= {key: microbatch[key].index_select(0, indices) for key in keys}
    return part


def _packed_seq_params(shared: Microbatch, groups: PackingGroups) -> PackedSeqParams:
    local_cp_size = int(shared["local_cp_size"]) or None
    return PackedSeqParams(
        cu_seqlens_q=shared["cu_seqlens"],
        cu_seqlens_kv=shared["cu_seqlens"],
        cu_seqlens_q_padded=shared["cu_seqlens_padded"],
        cu_seqlens_kv_padded=shared["cu_seqlens_padded"],
        max_seqlen_q=int(shared["max_seqlen"]),
        max_seqlen_kv=int(shared["max_seqlen"]),
        local_cp_size=local_cp_size,
        cp_group=None if local_cp_size is None else context_group(groups, local_cp_size),
    )


def _share(part: Microbatch | None, keys: list[str], groups: PackingGroups) -> Microbatch:
    """Send `part` of tensor rank 0 to every tensor rank: sizes first, then the tensors."""
    if group_size(groups.tp) == 1 and part is not None:
        return part
    sizes = [0, 0, 0, 0]
    if part is not None:
        num_tokens = part[keys[0]].numel() if keys else 0
        sizes = [part["cu_seqlens"].numel(), num_tokens, int(part["max_seqlen"]), int(part["local_cp_size"])]
    sizes = _broadcast_sizes(sizes, groups)
    if sizes == _FAILED:
        raise DataError("tensor-parallel rank 0 could not give this microbatch; its own error says why.")
    num_offsets, num_tokens, max_seqlen, local_cp_size = sizes
    device, source = communication_device(groups), first_rank(groups.tp)
    shared = {"max_seqlen": torch.tensor(max_seqlen), "local_cp_size": torch.tensor(local_cp_size)}
    layout = {"cu_seqlens": (num_offsets, torch.int32), "cu_seqlens_padded": (num_offsets, torch.int32)}
    for key, (size, dtype) in (layout | {key: (num_tokens, TOKEN_FIELDS[key]) for key in keys}).items():
        shared[key] = torch.empty(size, dtype=dtype, device=device) if part is None else part[key].contiguous()
        broadcast_tensor(shared[key], source, groups.tp)
    return shared


def _broadcast_sizes(sizes: list[int], groups: PackingGroups) -> list[int]:
    """Return the sizes of tensor rank 0 on every tensor rank; sizes of other ranks are ignored."""
    return [int(size) for size in broadcast_scalars(sizes, groups.tp, communication_device(groups))]
