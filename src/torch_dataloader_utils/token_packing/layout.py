"""Computes where every token of a row group goes: from lengths of documents to pieces of samples.

lengths 5 3 4, L=4         samples 0[0:4] | 0[4:5] 1[0:3] | 2[0:4]
segments of the inputs             0..3   |   0    1..3   | 0..3
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.token_packing.arrow_views import new_array
from torch_dataloader_utils.token_packing.options import TokenPacking
from torch_dataloader_utils.tokens.fill import Pieces, count_greedy_samples, fill_best_fit, fill_greedily


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """The inputs of all samples, cut into runs of one document or of padding; together they cover [0, samples * L).

    start: input positions, numbered through all samples, at which a run begins; ascending int64.
    unpredicted: input positions with tokens whose next token is of another document or sample; int64.
    filled: input positions of each sample that hold tokens, the first ones; int64 [samples].
    """

    start: Int64s
    unpredicted: Int64s
    filled: Int64s


def document_tokens(lengths: Int64s, packing: TokenPacking, where: str) -> Int64s:
    """Tokens that each document takes, with its EOD; 0 for one that is empty or dropped. int64 [documents].

    where: the row group, for messages.

    Raises:
        DataError: a document is longer than a sample, with over_long="error".
    """
    tokens = lengths if packing.eod is None else lengths + (lengths > 0)
    if packing.over_long == "cut":
        return tokens
    is_over = tokens > packing.sample_tokens
    if packing.over_long == "error" and is_over.any():
        longest = int(tokens.max())
        raise DataError(
            f"{where}: {int(is_over.sum())} documents do not fit a sample of {packing.sample_tokens} tokens (the "
            f'longest has {longest}), and over_long="error". Raise sequence_length, or pass over_long="cut" or "drop".'
        )
    return np.where(is_over, 0, tokens)


def count_samples(tokens: Int64s, packing: TokenPacking) -> int:
    """How many samples `lay_out` gives for documents that take up so many tokens."""
    if packing.fill == "best_fit":
        return lay_out(tokens, packing).sample_count
    return count_greedy(int(tokens.sum()), packing)


def count_greedy(num_tokens: int, packing: TokenPacking) -> int:
    """Samples of so many tokens end to end.

    L=4: 0 tokens 0 samples, 4 tokens 1, 5 tokens 2; with the extra token 1 token 0 samples, 5 tokens 1, 6 tokens 2
    """
    extra = int(packing.extra_token)
    return count_greedy_samples(num_tokens, packing.sequence_length, extra_tokens=extra, keeps_tail=True)


def lay_out(tokens: Int64s, packing: TokenPacking) -> Pieces:
    """The pieces of all samples of one row group, from the tokens that its documents take up."""
    if packing.fill == "greedy":
        extra = int(packing.extra_token)
        return fill_greedily(tokens, packing.sequence_length, extra_tokens=extra, keeps_tail=True)
    return fill_best_fit(tokens, packing.sample_tokens, window_documents=max(1, len(tokens)))


def find_segments(pieces: Pieces, packing: TokenPacking, num_samples: int) -> Segments:
    """The segments of `num_samples` samples: those of the pieces, then samples that are all padding."""
    length = packing.sequence_length
    counts = pieces.stop - pieces.start
    ends = np.cumsum(counts)
    first_piece = np.searchsorted(pieces.sample, np.arange(pieces.sample_count))
    begin = ends - counts
    begin = begin - begin[first_piece][pieces.sample]
    end = begin + counts
    # A piece may be the extra token alone, which is a label and no input.
    is_input = begin < length
    origin, begin, end = pieces.sample[is_input] * length, begin[is_input], end[is_input]
    filled = np.zeros(num_samples, dtype=np.int64)
    filled[: pieces.sample_count] = np.minimum(pieces.token_counts, length)
    padded = np.flatnonzero(filled < length)
    # Padding of a sample begins after its last piece, so that sorting merges two sorted runs.
    start = np.sort(np.concatenate([origin + begin, padded * length + filled[padded]]), kind="stable")
    return Segments(start=start, unpredicted=(origin + end - 1)[end <= length], filled=filled)


def segment_sizes(segments: Segments, length: int) -> Int64s:
    """Input positions of each segment, int64; together samples * L."""
    return np.diff(segments.start, append=len(segments.filled) * length)


def prediction_mask(segments: Segments, length: int) -> npt.NDArray[np.bool_]:
    """Whether the next token is in the sample and of the same document, bool [samples, length]."""
    mask = new_array((len(segments.filled), length), np.dtype(np.bool_))
    mask.fill(True)
    mask.reshape(-1)[segments.unpredicted] = False
    padded = np.flatnonzero(segments.filled < length)
    mask[padded] &= np.arange(length) < segments.filled[padded, None]
    return mask


def boundaries(segments: Segments, length: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(offsets, values) of the list column `cu_seqlens`: for each sample its segments' begins, then `length`."""
    num_samples = len(segments.filled)
    sample = segments.start // length
    counts = np.bincount(sample, minlength=num_samples)
    offsets = np.zeros(num_samples + 1, dtype=np.int32)
    np.cumsum(counts + 1, out=offsets[1:])
    values = np.full(int(offsets[-1]), length, dtype=np.int32)
    values[np.arange(len(sample)) + sample] = segments.start % length
    return offsets, values
