"""Makes the arguments of models, and the arguments and masks of attention kernels, from packed samples.

`cu_seqlens` is the field of a batch of B samples, and L is `sequence_length`. All functions treat the padding at the
end of a sample as one more document, and compute on the device of the batch. Only `longest_document` (and so
`flash_attn_arguments`) waits for the device.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.samples.named_tokenizer import BRANCHES, LABELS, NOT_TRAINED
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def flat_cu_seqlens(cu_seqlens: Ragged, sequence_length: int) -> Tensor:
    """Return the boundaries of B samples laid end to end, int32, from 0 to B * sequence_length.

    The end of one sample is the beginning of the next:

        samples [0, 3, 8] and [0, 8], sequence_length=8      0 3 8 16
    """
    ends, num_samples = cu_seqlens.values, len(cu_seqlens)
    # All boundaries of each sample but the first.
    num_ends = len(ends) - num_samples
    samples = torch.arange(num_samples, device=ends.device)
    samples = torch.repeat_interleave(samples, cu_seqlens.lengths - 1, output_size=num_ends)
    places = torch.arange(num_ends, device=ends.device) + samples + 1
    flat = ends[places] + (samples * sequence_length).to(ends.dtype)
    return torch.cat([flat.new_zeros(1), flat])


def longest_document(cu_seqlens: Ragged) -> int:
    """Return the tokens of the longest document in the samples, the max_seqlen of attention kernels."""
    ends = cu_seqlens.values
    # Between samples the difference is negative.
    return max(0, int(ends.diff().max())) if len(ends) > 1 else 0


def document_ids(cu_seqlens: Ragged, sequence_length: int) -> Tensor:
    """Return the number of each token's document in its sample, int32 [B, L].

    Numbers begin at 0 in every sample:

        [0, 3, 8]      0 0 0 1 1 1 1 1
    """
    return _begins(cu_seqlens, sequence_length).cumsum(1, dtype=torch.int32) - 1


def position_ids(cu_seqlens: Ragged, sequence_length: int) -> Tensor:
    """Return each token's place in its document, int32 [B, L].

    Equal to the field `positions`, which can then be left out of `fields`:

        [0, 3, 8]      0 1 2 0 1 2 3 4
    """
    places = torch.arange(sequence_length, dtype=torch.int32, device=cu_seqlens.values.device)
    begins = torch.where(_begins(cu_seqlens, sequence_length) > 0, places, 0)
    return places - begins.cummax(1).values


def model_inputs(batch: Mapping[str, Any]) -> TensorBatch:
    """Return the arguments of a causal language model of Hugging Face, made from a batch of packed samples.

    There are input_ids, position_ids and labels, int64 [B, L], and use_cache=False. A model that is called with
    positions, without a mask and without a cache, keeps documents apart; with a cache, which is its default outside of
    a Trainer, documents would attend to the documents before. Pass the function as `transform=` to a Trainer's loader,
    or call `model(**model_inputs(batch))`. Labels are the field `labels`, which has to be aligned, as `Chat` and
    `Completion` make it. Without this field, every token is a label that `loss_mask` lets predict:

        tokens 5 6 7 8, loss_mask True False True False      labels -100 6 -100 8

    batch: Batch of packed samples with tokens, positions, and labels or loss_mask.

    Raises:
        ConfigError: a field is missing, or the fields are not for a model that shifts labels.
    """
    if missing := [name for name in ("tokens", "positions") if name not in batch]:
        raise ConfigError(
            f"model_inputs needs {missing[0]!r} of a packed batch, and this one has {list(batch)}: pass "
            "pack=pack_tokens(...), with this name in fields= if fields are named."
        )
    tokens, positions, labels = batch["tokens"].long(), batch["positions"].long(), batch.get("labels")
    if tokens.shape != positions.shape or BRANCHES in batch:
        raise ConfigError(
            "model_inputs is for models that shift labels, as all of Hugging Face do. Leave extra_token out; for the "
            "pairs of Preference, see branch_sums."
        )
    if labels is None:
        if "loss_mask" not in batch:
            raise ConfigError(f"model_inputs needs 'labels' or 'loss_mask', and the batch has {list(batch)}.")
        is_label = torch.nn.functional.pad(batch["loss_mask"][:, :-1], (1, 0))
        labels = tokens.where(is_label, NOT_TRAINED)
    return TensorBatch({"input_ids": tokens, "position_ids": positions, LABELS: labels.long(), "use_cache": False})


def flash_attn_arguments(cu_seqlens: Ragged, sequence_length: int) -> dict[str, Any]:
    """Return the arguments of FlashAttention's `flash_attn_varlen_func` beside q, k and v [B * L, heads, width].

    The arguments are the boundaries of all documents and the longest document, for queries and for keys:

        flash_attn_varlen_func(q, k, v, causal=True, **flash_attn_arguments(batch["cu_seqlens"], 2048))
    """
    flat, longest = flat_cu_seqlens(cu_seqlens, sequence_length), longest_document(cu_seqlens)
    return {"cu_seqlens_q": flat, "cu_seqlens_k": flat, "max_seqlen_q": longest, "max_seqlen_k": longest}


def document_block_mask(
    cu_seqlens: Ragged, sequence_length: int, *, causal: bool = True, block_size: int = 128
) -> "BlockMask":
    """Return the mask of `flex_attention` for q, k, v [B, heads, L, width]: tokens attend to their own document.

    Equal to the result of `create_block_mask` for this rule, but computed from the first and last document of each
    block instead of L x L tokens.

    causal: Whether tokens attend only to earlier tokens and to themselves.
    """
    ids = document_ids(cu_seqlens, sequence_length)

    def attends(sample: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_own = ids[sample, query] == ids[sample, key]
        return is_own & (key <= query) if causal else is_own

    starts = torch.arange(0, sequence_length, block_size, device=ids.device)
    first, last = ids[:, starts], ids[:, (starts + block_size - 1).clamp(max=sequence_length - 1)]
    # Documents ascend: two blocks share one if neither ends before the other begins.
    shares = (first[:, :, None] <= last[:, None, :]) & (first[:, None, :] <= last[:, :, None])
    is_one = (first[:, :, None] == last[:, None, :]) & (first[:, None, :] == last[:, :, None])
    is_whole = starts + block_size <= sequence_length
    is_full = is_one & is_whole[:, None] & is_whole
    if causal:
        number = torch.arange(len(starts), device=ids.device)
        shares = shares & (number <= number[:, None])
        is_full = is_full & (number < number[:, None]) if block_size > 1 else is_full & shares
    return _block_mask(shares, is_full, attends, sequence_length, block_size)


def branch_block_mask(
    cu_seqlens: Ragged, branches: Tensor, sequence_length: int, *, block_size: int = 128
) -> "BlockMask":
    """Return the mask of `flex_attention` for packed pairs of `Preference`, for q, k, v [B, heads, L, width].

    Tokens attend to earlier tokens of their prompt and of their own branch, and to themselves. Equal to the result of
    `create_block_mask` for this rule, but computed from the branches of each block instead of L x L tokens.

    branches: Field `branches` of the batch, int32 [B, L].
    """
    # Branches of all documents, which ascend. The prompt of document d is 3 * d.
    own = document_ids(cu_seqlens, sequence_length) * 3 + branches

    def attends(sample: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        mine, other = own[sample, query], own[sample, key]
        return ((other == mine) | (other == mine - mine % 3)) & (key <= query)

    starts = torch.arange(0, sequence_length, block_size, device=own.device)
    ends = (starts + block_size - 1).clamp(max=sequence_length - 1)
    first, last = own[:, starts], own[:, ends]
    # Keys of each block: [B, blocks, block_size]. The last block repeats its last key.
    places = (starts[:, None] + torch.arange(block_size, device=own.device)).clamp(max=sequence_length - 1)
    keys, final = own[:, places], last[:, :, None]
    has_prompt = (keys == final - final % 3).any(2)
    has_one_branch = ((keys == final) | (keys == final - final % 3)).all(2)
    query_first, query_last = first[:, :, None], last[:, :, None]
    key_last = last[:, None, :]
    # Between a block and a later block only the last document of the one and the first of the other can be the same.
    shares = (key_last == query_first) | ((key_last // 3 == query_first // 3) & has_prompt[:, None, :])
    is_seen = (key_last % 3 == 0) | ((query_first == query_last) & (query_last == key_last))
    is_full = (first[:, None, :] // 3 == query_last // 3) & is_seen & has_one_branch[:, None, :]
    number = torch.arange(len(starts), device=own.device)
    is_earlier, is_same = number < number[:, None], number == number[:, None]
    is_whole = starts + block_size <= sequence_length
    shares = (shares & is_earlier) | is_same
    is_full = is_full & is_whole[:, None] & is_whole & (is_earlier if block_size > 1 else shares)
    return _block_mask(shares, is_full, attends, sequence_length, block_size)


def thd_cu_seqlens(cu_seqlens: Ragged, document_tokens: Ragged, sequence_length: int) -> tuple[Tensor, Tensor]:
    """Return (cu_seqlens, cu_seqlens_padded) of Transformer Engine's format THD, int32, for B samples end to end.

    For packing with `pad_to_multiple_of`. The second tensor says where documents lie and equals `flat_cu_seqlens`. The
    first tensor sums up the documents' tokens without padding. The padding of a sample is a sequence without tokens.

        cu_seqlens [0, 4, 12, 16], document_tokens [3, 8], sequence_length=16      0 3 11 11      0 4 12 16

    document_tokens: Field `document_tokens` of the batch.
    """
    padded, tokens = flat_cu_seqlens(cu_seqlens, sequence_length), document_tokens.values
    # A sample has one boundary more than it has segments.
    samples = torch.arange(len(cu_seqlens), device=tokens.device)
    before = cu_seqlens.offsets[:-1] - samples - document_tokens.offsets[:-1]
    places = torch.arange(len(tokens), device=tokens.device) + before[_samples(document_tokens)]
    real = padded.new_zeros(len(padded))
    real[places + 1] = tokens
    return real.cumsum(0, dtype=torch.int32), padded


def _samples(rows: Ragged) -> Tensor:
    """Return the number of each value's sample, int64."""
    values = rows.values
    samples = torch.arange(len(rows), device=values.device)
    return torch.repeat_interleave(samples, rows.lengths, output_size=len(values))


def _begins(cu_seqlens: Ragged, sequence_length: int) -> Tensor:
    """Return 1 where a document begins, else 0; int32 [B, L]."""
    ends, width = cu_seqlens.values, sequence_length + 1
    begins = ends.new_zeros((len(cu_seqlens), width), dtype=torch.int32)
    begins.view(-1)[ends + _samples(cu_seqlens) * width] = 1
    return begins[:, :-1]


def _block_mask(
    shares: Tensor, is_full: Tensor, attends: Callable[..., Tensor], sequence_length: int, block_size: int
) -> "BlockMask":
    """Return the mask of these blocks of queries and keys, bool [B, blocks, blocks]; full blocks need no `attends`."""
    from torch.nn.attention.flex_attention import BlockMask  # slow to import, and few need it

    return BlockMask.from_kv_blocks(
        *_numbered(shares & ~is_full),
        *_numbered(is_full),
        BLOCK_SIZE=block_size,
        mask_mod=attends,
        seq_lengths=(sequence_length, sequence_length),
    )


def _numbered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each block of queries how many blocks of keys it has, and their numbers first; int32, one head."""
    order = torch.argsort(blocks.to(torch.uint8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None]
