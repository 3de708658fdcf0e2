"""Fill samples of equal length with documents: choose the tokens of each sample.

    greedy       documents end to end, cut every L tokens: no padding, documents may be cut anywhere
    best fit     whole documents side by side while they fit; padding at the end, only documents longer than a sample
                 are cut

Pure arithmetic on document lengths. Both methods return pieces: tokens [start, stop) of a document, in the order in
which they lie in their sample.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import EpochKey, Purpose
from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

# Positions of tokens are int64; half of its range leaves room for a sample after the last document.
_MOST_TOKENS = 2.0**62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentPieces:
    """Pieces of documents, by sample and then by place in the sample; four int64 arrays of one length.

    document: Number of the piece's document. start, stop: Tokens [start, stop) of the document. sample: Number of the
    piece's sample. sample_count: Number of samples.
    """

    document: Int64s
    start: Int64s
    stop: Int64s
    sample: Int64s
    sample_count: int

    @property
    def token_counts(self) -> Int64s:
        """Tokens of each sample, int64 [sample_count]; below the capacity where the sample needs padding."""
        counts = np.zeros(self.sample_count, dtype=np.int64)
        np.add.at(counts, self.sample, self.stop - self.start)
        return counts


def count_greedy_samples(
    token_count: int, sequence_length: int, *, extra_tokens: int = 0, keep_tail: bool = False
) -> int:
    """Return the number of samples that `fill_greedily` makes of this many tokens.

    11 tokens, L=4: 2 samples, 3 with the tail; with one extra token 2 and 3 too; 9 tokens with one extra: 2 and 2
    """
    usable_tokens = max(0, token_count - extra_tokens)
    return -(-usable_tokens // sequence_length) if keep_tail else usable_tokens // sequence_length


def fill_greedily(
    lengths: npt.ArrayLike, sequence_length: int, *, extra_tokens: int = 0, keep_tail: bool = False
) -> DocumentPieces:
    """Lay documents end to end and cut them into samples of `sequence_length` + `extra_tokens` tokens.

    Sample j begins at token j·L. With extra tokens, neighbouring samples overlap by the extra tokens: labels that are
    shifted by one need one extra token. Documents without tokens have no piece. A tail that does not fill a sample is
    left out, or with `keep_tail` is a short sample.

        lengths 5 3 4, L=4          0[0:4] | 0[4:5] 1[0:3] | 2[0:4]
        with one extra token        0[0:5] | 0[4:5] 1[0:3] 2[0:1]

    Raises:
        ConfigTypeError: `lengths` is not a list of whole numbers, or another argument is not a whole number.
        ConfigError: a length is negative, the sum of lengths is 2^62 or more, L is below 1, or `extra_tokens` below 0.
    """
    tokens = _check_lengths(lengths)
    sequence_length = check_integer("sequence_length", sequence_length, least=1)
    extra_tokens = check_integer("extra_tokens", extra_tokens, least=0)
    ends = np.cumsum(tokens)
    total = int(ends[-1]) if ends.size else 0
    samples = count_greedy_samples(total, sequence_length, extra_tokens=extra_tokens, keep_tail=keep_tail)
    sample_starts = np.arange(samples, dtype=np.int64) * sequence_length
    sample_stops = np.minimum(sample_starts + sequence_length + extra_tokens, total)
    # The documents of each sample's first and last token.
    first = np.searchsorted(ends, sample_starts, side="right")
    last = np.searchsorted(ends, sample_stops - 1, side="right")
    sample, document = _expand(first, last + 1)
    begins = (ends - tokens)[document]
    start = np.maximum(sample_starts[sample] - begins, 0)
    stop = np.minimum(sample_stops[sample] - begins, tokens[document])
    kept = start < stop
    return DocumentPieces(
        document=document[kept], start=start[kept], stop=stop[kept], sample=sample[kept], sample_count=samples
    )


def fill_best_fit(lengths: npt.ArrayLike, capacity: int, *, window_documents: int) -> DocumentPieces:
    """Place documents in samples of at most `capacity` tokens, `window_documents` documents at a time.

    In a window the longest document is placed first. A document goes into the open sample where it leaves the least
    room (on ties into the older sample), or into a new sample if it fits in no open sample. Samples close with the
    window. A document longer than a sample first fills samples of its own, and its rest is placed like a document.
    Samples are numbered in the order of opening. In a sample, pieces lie in the order of placing.

        lengths 5 3 4 2, capacity 8, one window     0[0:5] 1[0:3] | 2[0:4] 3[0:2]
        length 10, capacity 4                       0[0:4] | 0[4:8] | 0[8:10]

    Raises:
        ConfigTypeError: `lengths` is not a list of whole numbers, or another argument is not a whole number.
        ConfigError: a length is negative, the sum of lengths is 2^62 or more, or capacity or window is below 1.
    """
    tokens = _check_lengths(lengths)
    capacity = check_integer("capacity", capacity, least=1)
    window_documents = check_integer("window_documents", window_documents, least=1)
    document, start, stop = _cut_long(tokens, capacity)
    sample = np.empty(len(document), dtype=np.int64)
    borders = np.searchsorted(document, np.arange(0, len(tokens) + window_documents, window_documents))
    opened = 0
    for low, high in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        order = low + np.argsort((start - stop)[low:high], kind="stable")
        placed, used = _place((stop - start)[order].tolist(), capacity)
        sample[order] = np.asarray(placed, dtype=np.int64) + opened
        opened += used
    return _longest_first(document, start, stop, sample, opened)


def _longest_first(document: Int64s, start: Int64s, stop: Int64s, sample: Int64s, sample_count: int) -> DocumentPieces:
    """Return the pieces by sample, and longest first in each sample."""
    order = np.lexsort((np.arange(len(sample)), start - stop, sample))
    return DocumentPieces(
        document=document[order], start=start[order], stop=stop[order], sample=sample[order], sample_count=sample_count
    )


def _place(
    descending_tokens: list[int], capacity: int, opened_before: int = 0, words: Sequence[int] = ()
) -> tuple[list[int], int]:
    """Return the sample of each piece, and the number of samples: by best fit, or at random for the first pieces.

    opened_before: Number of empty samples that are open at the beginning.
    words: Random numbers below 2^32 for the first pieces. Such a piece goes into any open sample that has room.
    """
    placed: list[int] = []
    # Open samples by free tokens, ascending, so that the first with enough room is the tightest. Each is one integer,
    # free tokens * 2^32 + number: integers compare twice as fast as tuples.
    free: list[int] = [(capacity << 32) + number for number in range(opened_before)]
    used = opened_before
    for tokens, word in zip_longest(descending_tokens, words, fillvalue=0):
        at = bisect_left(free, tokens << 32)
        if at < len(free):
            if word:
                at += word * (len(free) - at) >> 32
            opened = free.pop(at)
        else:
            opened = (capacity << 32) + used
            used += 1
        placed.append(opened & 0xFFFFFFFF)
        if opened >> 32 > tokens:
            insort(free, opened - (tokens << 32))
    return placed, used


# Part of the tokens that is placed by best fit, in short documents, where the other documents are placed at random.
# Less leaves more documents to chance, and may need more samples than planned.
_BEST_FIT_PARTS = (256, 16, 4)
# Largest number of samples beyond those of best fit: the number of samples of best fit, divided by this.
_MOST_SPARE = 64
TRIAL = EpochKey(0, 0, 0)
"""Key of a trial, and of a read outside of epochs."""


def fill_mixed(tokens: Int64s, capacity: int, key: EpochKey, sample_count: int) -> DocumentPieces:
    """Place documents in `sample_count` samples, other documents together for each key.

    All samples are open from the beginning. The longest document is placed first. A document goes into any sample that
    has room, at random; only the shortest documents go where they leave the least room. If a document has no room,
    a larger part of the documents is placed by least room, and at last all documents are, as by `fill_best_fit`.

    sample_count: Number from `count_mixed`. More samples are made if these documents need more, and fewer samples if
    there are fewer pieces than samples.
    """
    document, start, stop = _cut_long(tokens, capacity)
    sizes = stop - start
    sample_count = min(sample_count, len(sizes))
    order = key.permutation(len(sizes), Purpose.DOCUMENTS)
    order = order[np.argsort(-sizes[order], kind="stable")]
    words = (key.random_words(len(sizes), Purpose.PLACES) >> np.uint64(32)).tolist()
    descending = sizes[order].tolist()
    placed, used = _place_mixed(sizes[order], descending, capacity, sample_count, words)
    if used > sample_count:
        placed, used = _place(descending, capacity)
    sample = np.empty(len(sizes), dtype=np.int64)
    sample[order] = placed
    sample_count = max(used, sample_count)
    return _longest_first(document, start, stop, _fill_empty(sample, sample_count), sample_count)


def count_mixed(tokens: Int64s, capacity: int) -> int:
    """Return the number of samples for `fill_mixed`, the same for every key.

    As many as best fit makes, and up to 1.6 % more where a trial with a fixed key needs more.
    """
    document, start, stop = _cut_long(tokens, capacity)
    sizes = np.sort(stop - start)[::-1]
    descending = sizes.tolist()
    _, fewest = _place(descending, capacity)
    words = (TRIAL.random_words(len(sizes), Purpose.PLACES) >> np.uint64(32)).tolist()
    _, used = _place(descending, capacity, fewest, words[: _random_pieces(sizes, _BEST_FIT_PARTS[0])])
    return min(used, fewest + fewest // _MOST_SPARE, len(document))


def _place_mixed(
    sizes: Int64s, descending: list[int], capacity: int, sample_count: int, words: list[int]
) -> tuple[list[int], int]:
    """Return the samples of the first try that needs no more than planned, or of the last try. sizes: Descending."""
    placed: list[int] = []
    used = sample_count
    for part in _BEST_FIT_PARTS:
        placed, used = _place(descending, capacity, sample_count, words[: _random_pieces(sizes, part)])
        if used <= sample_count:
            break
    return placed, used


def _random_pieces(descending: Int64s, part: int) -> int:
    """Return the number of pieces before the shortest pieces that have one token in `part`."""
    left = np.cumsum(descending[::-1])
    return len(descending) - int(np.searchsorted(left, left[-1] // part, side="right")) if len(left) else 0


def _fill_empty(sample: Int64s, sample_count: int) -> Int64s:
    """Return the samples of the pieces with a piece in every sample: the empty ones take pieces of others.

    samples 0 0 2 2 2, sample_count=4      0 1 2 3 2
    """
    _, first = np.unique(sample, return_index=True)
    empty = np.setdiff1d(np.arange(sample_count), sample)
    others = np.setdiff1d(np.arange(len(sample)), first)
    filled = sample.copy()
    filled[others[: len(empty)]] = empty
    return filled


def _cut_long(tokens: Int64s, capacity: int) -> tuple[Int64s, Int64s, Int64s]:
    """Return (document, start, stop) of pieces of at most `capacity` tokens; documents without tokens have no piece."""
    document, part = _expand(np.zeros_like(tokens), -(-tokens // capacity))
    start = part * capacity
    return document, start, np.minimum(start + capacity, tokens[document])


def _expand(first: Int64s, stop: Int64s) -> tuple[Int64s, Int64s]:
    """Return all (i, v) with first[i] <= v < stop[i], in order."""
    counts = stop - first
    owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return owner, ranges(first, counts)


def _check_lengths(lengths: npt.ArrayLike) -> Int64s:
    given = np.asarray(lengths)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ConfigTypeError(f"lengths={lengths!r}: pass a list of whole numbers, the tokens of each document.")
    tokens = given.astype(np.int64, copy=False)
    if tokens.size and tokens.min() < 0:
        raise ConfigError(f"Document {int(tokens.argmin())} has the length {tokens.min()}: pass 0 or more tokens.")
    if tokens.sum(dtype=np.float64) >= _MOST_TOKENS:
        raise ConfigError(f"{tokens.size} documents have 2**62 tokens or more in sum. Fill fewer documents at a time.")
    return tokens
