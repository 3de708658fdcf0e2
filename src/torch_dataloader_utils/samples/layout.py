"""Lays out the documents of a packing window by its options: tokens of each document, samples, and their segments."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import EpochKey, Purpose
from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.samples.fill import (
    TRIAL,
    DocumentPieces,
    count_greedy_samples,
    count_mixed,
    fill_best_fit,
    fill_greedily,
    fill_mixed,
)
from torch_dataloader_utils.samples.token_packing import TokenPacking


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """Segments of the inputs of all samples: runs of one document or of padding that cover [0, samples * L).

    start: int64, ascending: input positions, numbered through all samples, where a segment begins.
    unpredicted: int64: input positions of documents before padding, or before a token of another document or sample.
    filled: int64 [samples]: number of leading input positions of each sample that belong to documents.
    piece: int64: numbers of the pieces that are segments, in order. A piece that is the extra token alone is a label
        and not an input, and so is no segment.
    tokens: int64, like `piece`: number of input positions of the segment that are not padding.
    """

    start: Int64s
    unpredicted: Int64s
    filled: Int64s
    piece: Int64s
    tokens: Int64s


def document_tokens(lengths: Int64s, packing: TokenPacking, where: str) -> Int64s:
    """Return the tokens that each document takes with its EOD and padding, int64 [documents].

    Documents that are empty or dropped take 0 tokens, and truncated ones a whole sample.

    where: Name of the row group, for messages.

    Raises:
        DataError: a document is longer than a sample, with over_long="error".
    """
    multiple = packing.pad_to_multiple_of
    tokens = with_eod(lengths, packing)
    tokens = tokens if multiple == 1 else -(-tokens // multiple) * multiple
    if packing.over_long == "cut":
        return tokens
    is_over = tokens > packing.sample_tokens
    if packing.over_long == "error" and is_over.any():
        raise DataError(
            f"{where}: {int(is_over.sum())} documents do not fit a sample of {packing.sample_tokens} tokens (the first "
            f'is live row {int(is_over.argmax())}, the longest has {int(tokens.max())}), and over_long="error". Raise '
            "sequence_length, or pass another over_long."
        )
    return np.where(is_over, packing.sample_tokens if packing.over_long == "truncate" else 0, tokens)


def with_eod(lengths: Int64s, packing: TokenPacking) -> Int64s:
    """Return the tokens of each document with its EOD; 0 for an empty document."""
    return lengths if packing.eod is None else lengths + (lengths > 0)


def over_long_cost(lengths: Int64s, packing: TokenPacking) -> tuple[int, int]:
    """Return the number of best-fit documents that are longer than a sample, and of their tokens that no sample has."""
    over = lengths[with_eod(lengths, packing) > packing.sample_tokens]
    match packing.over_long:
        case "truncate":
            return len(over), int((over - packing.sample_tokens).clip(min=0).sum())
        case "drop":
            return len(over), int(over.sum())
    return len(over), 0


def count_best_fit(tokens: Int64s, packing: TokenPacking) -> int:
    """Return the number of best-fit samples that `lay_out` makes of documents that take these tokens."""
    if packing.shuffle_documents:
        return count_mixed(tokens, packing.sample_tokens)
    return lay_out(tokens, packing, None, None).sample_count


def count_greedy(num_tokens: int, packing: TokenPacking) -> int:
    """Return the number of greedy samples of `num_tokens` tokens.

    L=4: 0 tokens 0 samples, 4 tokens 1, 5 tokens 2; with the extra token 1 token 0 samples, 5 tokens 1, 6 tokens 2
    """
    extra = int(packing.extra_token)
    return count_greedy_samples(num_tokens, packing.sequence_length, extra_tokens=extra, keep_tail=True)


def lay_out(tokens: Int64s, packing: TokenPacking, key: EpochKey | None, planned: int | None) -> DocumentPieces:
    """Return the pieces of all samples of one packing window, from the tokens that its documents take.

    key: Key for `shuffle_documents`; None for a read outside of epochs. The number of samples is the same for any key:
        for greedy fill it follows from the sum of tokens, and best fit makes the planned number.
    planned: Number of samples in the plan, if known.
    """
    if packing.fill == "best_fit":
        if not packing.shuffle_documents:
            return fill_best_fit(tokens, packing.sample_tokens, window_documents=max(1, len(tokens)))
        count = count_mixed(tokens, packing.sample_tokens) if planned is None else planned
        return fill_mixed(tokens, packing.sample_tokens, key or TRIAL, count)
    extra = int(packing.extra_token)
    if key is None or not packing.shuffle_documents:
        return fill_greedily(tokens, packing.sequence_length, extra_tokens=extra, keep_tail=True)
    order = key.permutation(len(tokens), Purpose.DOCUMENTS)
    pieces = fill_greedily(tokens[order], packing.sequence_length, extra_tokens=extra, keep_tail=True)
    return replace(pieces, document=order[pieces.document])


def find_segments(pieces: DocumentPieces, real: Int64s, packing: TokenPacking, num_samples: int) -> Segments:
    """Return the segments of `num_samples` samples: samples of the pieces, then samples that are all padding.

    real: int64 [documents]: tokens of each document with its EOD and without its padding.
    """
    length = packing.sequence_length
    counts = pieces.stop - pieces.start
    ends = np.cumsum(counts)
    first_piece = np.searchsorted(pieces.sample, np.arange(pieces.sample_count))
    begin = ends - counts
    begin = begin - begin[first_piece][pieces.sample]
    piece = np.flatnonzero(begin < length)
    origin, begin = pieces.sample[piece] * length, begin[piece]
    end = begin + counts[piece]
    real_end = end - np.maximum(pieces.stop - real[pieces.document], 0)[piece]
    filled = np.zeros(num_samples, dtype=np.int64)
    filled[: pieces.sample_count] = np.minimum(pieces.token_counts, length)
    padded = np.flatnonzero(filled < length)
    # Both parts are sorted, and a stable sort merges two sorted runs quickly.
    start = np.sort(np.concatenate([origin + begin, padded * length + filled[padded]]), kind="stable")
    unpredicted = ranges(origin + real_end - 1, np.maximum(np.minimum(end, length) - (real_end - 1), 0))
    tokens = np.minimum(real_end, length) - begin
    return Segments(start=start, unpredicted=unpredicted, filled=filled, piece=piece, tokens=tokens)


def segment_sizes(segments: Segments, length: int) -> Int64s:
    """Return the number of input positions of each segment, int64; the sum is samples * L."""
    return np.diff(segments.start, append=len(segments.filled) * length)


def boundaries(segments: Segments, length: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return (offsets, values) of the list column `cu_seqlens`: the begins of a sample's segments, then `length`."""
    num_samples = len(segments.filled)
    sample = segments.start // length
    counts = np.bincount(sample, minlength=num_samples)
    offsets = np.zeros(num_samples + 1, dtype=np.int32)
    np.cumsum(counts + 1, out=offsets[1:])
    values = np.full(int(offsets[-1]), length, dtype=np.int32)
    values[np.arange(len(sample)) + sample] = segments.start % length
    return offsets, values
