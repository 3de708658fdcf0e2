"""Which rows of a window share a batch, and in which order: by buckets of length, under a budget of tokens."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import Purpose, random_words

# float64 counts exactly up to this number, and rounds no larger sum below it; sums of int64 could wrap around below 0.
_MOST_TOKENS = 2**53
# This many of the shortest rows for each batch are kept to fill gaps. Batches become 1.3 % fuller where 8 rows fill a
# batch, and 0.2 % where 30 rows do; planning takes up to twice as long.
_GAP_ROWS = 2


def fill_batches(lengths: Int64s, max_tokens: int, max_rows: int) -> Int64s:
    """Return the batch of each row, numbered from 0, int64 [rows].

    The number of batches is the least that the sum of lengths, or the number of rows, needs. Rows are assigned to
    batches forwards and backwards in turn (0 1 2, then 2 1 0), so that each batch has rows of all lengths, and a batch
    keeps its first rows that fit. The other rows, and the shortest, go to the batch with most room, longest first; if
    no batch has enough room, to a new batch.

    lengths: Falling, none above max_tokens.

        lengths 9 8 5 4 3 2 2 1, max_tokens=17      0 1 1 0 0 1 1 0      as 9 4 3 1 | 8 5 2 2
    """
    count = len(lengths)
    num_batches = max(-(-int(lengths.sum()) // max_tokens), -(-count // max_rows), 1)
    ranks = np.arange(-(-count // num_batches) * num_batches).reshape(-1, num_batches)
    ranks[1::2] = ranks[1::2, ::-1]
    padded = np.zeros(ranks.size)
    padded[:count] = lengths
    by_batch = padded[ranks]
    fits = np.cumsum(by_batch, axis=0) <= min(max_tokens, _MOST_TOKENS)
    fits &= ranks < count - _GAP_ROWS * num_batches
    batch = np.empty(ranks.size, dtype=np.int64)
    batch[ranks] = np.where(fits, np.arange(num_batches), -1)
    batch = batch[:count]
    left = np.flatnonzero(batch < 0)
    tokens = np.where(fits, by_batch, 0).sum(axis=0).astype(np.int64)
    begun = list(zip(tokens.tolist(), fits.sum(axis=0).tolist(), range(num_batches), strict=True))
    batch[left] = _place(lengths[left].tolist(), begun, max_tokens, max_rows)
    return batch


def _place(lengths: list[int], batches: list[tuple[int, int, int]], max_tokens: int, max_rows: int) -> list[int]:
    """Return the batch of each of these rows: the batch with the fewest tokens; among equals, with the fewest rows.

    batches: (tokens, rows, number) of the present batches, each with fewer rows than max_rows; changed in place.
    """
    placed, num_batches = [], len(batches)
    heapify(batches)
    for length in lengths:
        if not batches or batches[0][0] + length > max_tokens:
            heappush(batches, (0, 0, num_batches))
            num_batches += 1
        tokens, rows, batch = batches[0]
        if rows + 1 < max_rows:
            heapreplace(batches, (tokens + length, rows + 1, batch))
        else:
            heappop(batches)
        placed.append(batch)
    return placed


Lengths = npt.NDArray[Any]
"""One number a row, of any real dtype; NaN counts as longest."""


class WindowOrder(Protocol):
    """Rule that orders the rows of a window by their lengths."""

    def order(self, lengths: Lengths, *, seed: int, epoch: int, index: int) -> Int64s:
        """Return a permutation of the window's rows, int64; a pure function of its arguments."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualBuckets:
    """Buckets of `bucket_rows` rows; implements `WindowOrder`."""

    bucket_rows: int

    def order(self, lengths: Lengths, *, seed: int, epoch: int, index: int) -> Int64s:
        """Return a permutation of a window's rows, int64: buckets of rows of similar length, in random order.

        Sort by length, equal lengths in random order; cut into buckets of `bucket_rows` rows; shuffle the buckets;
        shuffle inside each bucket. The remaining rows make one short bucket, cut at a random place among the
        lengths. The short bucket comes last, so that every batch of `bucket_rows` rows is one bucket.

            lengths 5 1 4 2 9, bucket_rows=2      1 2 | 9 5 | 4      (one possible order, as lengths)

        A pure function of its arguments. Source of randomness: 2 n + buckets + 1 words of purpose BUCKETS, in the order
        ties, places in a bucket, places of buckets, the short bucket.
        """
        count = len(lengths)
        whole, rest = divmod(count, self.bucket_rows)
        num_buckets = whole + bool(rest)
        words = random_words(2 * count + num_buckets + 1, seed=seed, epoch=epoch, purpose=Purpose.BUCKETS, index=index)
        ties, places, bucket_words, short_word = np.split(words, [count, 2 * count, 2 * count + num_buckets])
        sizes = np.full(num_buckets, self.bucket_rows, dtype=np.int64)
        place_of_bucket = np.empty(num_buckets, dtype=np.int64)
        place_of_bucket[np.argsort(bucket_words, kind="stable")] = np.arange(num_buckets)
        if rest:
            short = int(short_word[0] % np.uint64(num_buckets))
            sizes[short] = rest
            place_of_bucket[short] = num_buckets
        by_length = np.lexsort((ties, lengths))
        bucket_place = np.repeat(place_of_bucket, sizes)
        return by_length[np.lexsort((places, bucket_place))].astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """How large a batch may be; implements `WindowOrder`.

    max_tokens: Upper limit for rows × padded length of the longest row. max_rows: Upper limit for rows.
    pad_to_multiple_of: Multiple to which the collate function rounds lengths up.
    padding_free: Let max_tokens limit the sum of lengths instead.

    Every row must fit alone: see `widths`.
    """

    max_tokens: int
    max_rows: int
    pad_to_multiple_of: int = 1
    padding_free: bool = False

    def widths(self, lengths: Lengths) -> Int64s:
        """Return the tokens of each row if it is the longest of its batch; an empty row takes one multiple too.

        lengths 0 3.5 8, pad_to_multiple_of=4      4 4 8
        padding_free=True                          0 4 8
        """
        multiple = self.pad_to_multiple_of
        whole = np.asarray(lengths if lengths.dtype.kind in "iu" else np.ceil(lengths), dtype=np.int64)
        return whole if self.padding_free else np.maximum(-(-whole // multiple) * multiple, multiple)

    def first_rows(self, widths: Int64s, stop: Int64s | int) -> Int64s:
        """Return the first row of each padded batch, int64 [batches], in rows of falling width.

        The width of the first row decides how many rows fit.

        stop: End of the window of each row; a batch does not reach beyond this end.

            widths 9 8 3 2 2, max_tokens=9      0 1 2      as 9 | 8 | 3 2 2
        """
        count = len(widths)
        rows = np.clip(self.max_tokens // widths, 1, self.max_rows)
        following = np.minimum(np.arange(count) + rows, stop).tolist()
        first, row = [], 0
        while row < count:
            first.append(row)
            row = following[row]
        return np.array(first, dtype=np.int64)

    def batch_rows(self, lengths: Lengths, *, seed: int, epoch: int, index: int) -> Int64s:
        """Return the rows of each batch of a window, int64 [batches], in the order of the batches in `order`."""
        sizes = np.bincount(self.batches(-np.sort(-self.widths(lengths))))
        words = random_words(len(sizes), seed=seed, epoch=epoch, purpose=Purpose.BUCKETS, index=index)
        return sizes[np.argsort(words, kind="stable")]

    def order(self, lengths: Lengths, *, seed: int, epoch: int, index: int) -> Int64s:
        """Return a permutation of a window's rows, int64: its batches one after the other.

        Sort by width, longest first, equal widths in random order; give each row its batch; shuffle the batches;
        shuffle inside each batch. A pure function of its arguments. Source of randomness: batches + 2 n words of
        purpose BUCKETS, in the order places of batches, ties, places in a batch.

            lengths 9 2 3 8 2, max_tokens=9      3 2 2 | 8 | 9      (one possible order, as lengths)
        """
        widths = self.widths(lengths)
        batch = self.batches(-np.sort(-widths))
        count = int(batch.max(initial=-1)) + 1
        total = count + 2 * len(widths)
        words = random_words(total, seed=seed, epoch=epoch, purpose=Purpose.BUCKETS, index=index)
        batch_words, ties, places = np.split(words, [count, count + len(widths)])
        place_of_batch = np.empty(count, dtype=np.int64)
        place_of_batch[np.argsort(batch_words, kind="stable")] = np.arange(count)
        by_width = np.lexsort((ties, -widths))
        return by_width[np.lexsort((places, place_of_batch[batch]))].astype(np.int64, copy=False)

    def batches(self, widths: Int64s) -> Int64s:
        """Return the batch of each row of a window, numbered from 0, int64 [rows]. widths: Falling."""
        if self.padding_free:
            return fill_batches(widths, self.max_tokens, self.max_rows)
        first = self.first_rows(widths, len(widths))
        return np.repeat(np.arange(len(first)), np.diff(first, append=len(widths)))


def halve_largest(start: Int64s, stop: Int64s, divisor: int) -> tuple[Int64s, Int64s, Int64s]:
    """Halve the longest spans [start, stop) until their number is a multiple of `divisor`.

    Returns start, stop and the original span of each part, int64 [parts]. The number may fall short of a multiple if
    every span has length 1.

        rows 5 2 1, divisor=2      2 3 2 1
    """
    part_of = np.arange(len(start))
    while missing := -len(start) % divisor:
        longest = np.argsort(start - stop, kind="stable")[:missing]
        halved = np.sort(longest[stop[longest] - start[longest] > 1])
        if len(halved) == 0:
            break
        middle = (start[halved] + stop[halved]) // 2
        start, stop = np.insert(start, halved + 1, middle), np.insert(stop, halved, middle)
        part_of = np.insert(part_of, halved, part_of[halved])
    return start, stop, part_of
