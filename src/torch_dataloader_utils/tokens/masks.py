"""The tensors that go with the tokens of a sample: attention mask, positions, document borders. No I/O.

Source: the left-to-right masks of Megatron-Core's GPT data set.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def number_documents(tokens: Tensor, eod: int) -> Tensor:
    """The document of each token in its sample, int64 [L]: an end-of-document token closes its own document.

    tokens 4 0 5 6 0 7 with eod 0: documents 0 0 1 1 1 2
    """
    ends = (tokens == eod).long()
    return torch.cumsum(ends, dim=0) - ends


def build_attention_mask(sequence_length: int, documents: Tensor | None = None) -> Tensor:
    """Bool [1, L, L], True where a row may not look: at later tokens, and at other documents if these are given."""
    row = torch.arange(sequence_length)
    hidden = row[None, :] > row[:, None]
    if documents is not None:
        hidden |= documents[None, :] != documents[:, None]
    return hidden[None]


def build_position_ids(sequence_length: int, documents: Tensor | None = None) -> Tensor:
    """Int64 [L]: 0, 1, 2, …; from 0 again in each document if these are given.

    documents 0 0 1 1 1 2: positions 0 1 0 1 2 0
    """
    positions = torch.arange(sequence_length)
    if documents is None or sequence_length == 0:
        return positions
    starts = torch.searchsorted(documents, documents, side="left")
    return positions - starts


def build_document_borders(part_tokens: Sequence[int], sequence_length: int) -> tuple[Tensor, int]:
    """Cumulative lengths of the documents in a sample, int32 [L + 1] filled up with L, and the longest document.

    `part_tokens` are the tokens of each document in the sample, in order; padding belongs to the last one. Empty
    parts make no document.

        parts 3 2, L=5    cu_seqlens 0 3 5 5 5 5, longest 3
        parts 2, L=4      cu_seqlens 0 4 4 4 4, longest 4 (two tokens of padding)
    """
    borders = [0]
    for tokens in part_tokens:
        if tokens > 0 and borders[-1] < sequence_length:
            borders.append(min(borders[-1] + tokens, sequence_length))
    # Padding is part of the last document; a sample of padding only is one document.
    borders[max(1, len(borders) - 1) :] = [sequence_length]
    filled = torch.full((sequence_length + 1,), sequence_length, dtype=torch.int32)
    filled[: len(borders)] = torch.tensor(borders, dtype=torch.int32)
    return filled, int(torch.diff(filled).max()) if sequence_length else 0
