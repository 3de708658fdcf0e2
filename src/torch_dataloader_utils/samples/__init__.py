"""Makes samples of rows while they are read: packs of the documents of a list column, and sequences of a group's rows.

In: a data set, and `pack_tokens(column, sequence_length, ...)` passed as `pack=`, or `Sequences(...)` as `sequences=`.
Out: batches of tokens, positions, loss mask and document boundaries; or of [B, length] columns. The rows that plans
count are samples.

Promises: sample counts are known before data is read, so ranks take equal steps and states resume exactly; a sample is
a pure function of its row groups and the options. Not for: balancing samples of unequal length over ranks (see
`torch_dataloader_utils.megatron.schedules`), or Megatron's corpora (see `torch_dataloader_utils.megatron.corpora`).
"""

from torch_dataloader_utils.samples.attention import (
    branch_block_mask,
    document_block_mask,
    document_ids,
    flash_attn_arguments,
    flat_cu_seqlens,
    longest_document,
    model_inputs,
    position_ids,
    thd_cu_seqlens,
)
from torch_dataloader_utils.samples.conversations import Chat, Completion
from torch_dataloader_utils.samples.fill import DocumentPieces, fill_best_fit, fill_greedily
from torch_dataloader_utils.samples.preferences import Preference, branch_sums
from torch_dataloader_utils.samples.sequences import Interval, Sequences
from torch_dataloader_utils.samples.token_packing import PerDocument, PerToken, TokenPacking, pack_tokens
from torch_dataloader_utils.samples.tokenizers import TokenizerFile

__all__ = [
    "Chat",
    "Completion",
    "DocumentPieces",
    "Interval",
    "PerDocument",
    "PerToken",
    "Preference",
    "Sequences",
    "TokenPacking",
    "TokenizerFile",
    "branch_block_mask",
    "branch_sums",
    "document_block_mask",
    "document_ids",
    "fill_best_fit",
    "fill_greedily",
    "flash_attn_arguments",
    "flat_cu_seqlens",
    "longest_document",
    "model_inputs",
    "pack_tokens",
    "position_ids",
    "thd_cu_seqlens",
]
