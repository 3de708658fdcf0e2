"""Batches under a token budget: which rows of a window share a batch, and in which order its batches come."""

from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.buckets import Lengths
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import Purpose, random_words
from torch_dataloader_utils._core.token_sums import fill_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """How large a batch may be; implements `_core.buckets.WindowOrder`.

    max_tokens: most of rows × padded length of the longest row. max_rows: most rows. pad_to_multiple_of: what the
        collate function rounds lengths up to. padding_free: max_tokens is the most of the sum of lengths instead.

    Every row must fit alone: see `widths`.
    """

    max_tokens: int
    max_rows: int
    pad_to_multiple_of: int = 1
    padding_free: bool = False

    def widths(self, lengths: Lengths) -> Int64s:
        """Tokens that each row takes if it is the longest of its batch; an empty row takes one multiple too.

        lengths 0 3.5 8, pad_to_multiple_of=4      4 4 8
        padding_free=True                          0 4 8
        """
        multiple = self.pad_to_multiple_of
        whole = np.asarray(lengths if lengths.dtype.kind in "iu" else np.ceil(lengths), dtype=np.int64)
        return whole if self.padding_free else np.maximum(-(-whole // multiple) * multiple, multiple)

    def first_rows(self, widths: Int64s, stop: Int64s | int) -> Int64s:
        """Where padded batches begin in rows of falling width, int64 [batches]: their first decides how many rows fit.

        stop: where the window of each row ends, beyond which its batch does not reach.

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
        """Rows of each batch of a window, int64 [batches], in the order in which `order` has them."""
        sizes = np.bincount(self.batches(-np.sort(-self.widths(lengths))))
        words = random_words(len(sizes), seed=seed, epoch=epoch, purpose=Purpose.BUCKETS, index=index)
        return sizes[np.argsort(words, kind="stable")]

    def order(self, lengths: Lengths, *, seed: int, epoch: int, index: int) -> Int64s:
        """A permutation of a window's rows, int64: its batches one after the other.

        Sort by width, longest first, equal widths in random order; give each its batch; shuffle the batches; shuffle
        inside each. A pure function of its arguments. Source of randomness: batches + 2 n words of purpose BUCKETS, in
        the order places of batches, ties, places in a batch.

            lengths 9 2 3 8 2, max_tokens=9      3 2 2 | 8 | 9      (one possible order, as lengths)
        """
        widths = self.widths(lengths)
        batch = self.batches(-np.sort(-widths))
        count = int(batch.max(initial=-1)) + 1
        total = count + 2 * len(widths)
        words = random_words(total, seed=seed, epoch=epoch, purpose=Purpose.BUCKETS, index=index)
        turns, ties, places = np.split(words, [count, count + len(widths)])
        turn = np.empty(count, dtype=np.int64)
        turn[np.argsort(turns, kind="stable")] = np.arange(count)
        by_width = np.lexsort((ties, -widths))
        return by_width[np.lexsort((places, turn[batch]))].astype(np.int64, copy=False)

    def batches(self, widths: Int64s) -> Int64s:
        """The batch of each row of a window, numbered from 0, int64 [rows]. widths: falling."""
        if self.padding_free:
            return fill_batches(widths, self.max_tokens, self.max_rows)
        first = self.first_rows(widths, len(widths))
        return np.repeat(np.arange(len(first)), np.diff(first, append=len(widths)))


def halve_largest(start: Int64s, stop: Int64s, divisor: int) -> tuple[Int64s, Int64s, Int64s]:
    """Spans [start, stop) with those that are longest halved until their number divides by `divisor`.

    Gives start, stop and of which span each is a part, int64 [parts]. Ends short of it where every span is 1 long.

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
