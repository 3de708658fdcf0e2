"""Orders the rows of a window by length: similar lengths share a bucket, and buckets come in random order."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import Purpose, random_words

Lengths = npt.NDArray[Any]
"""One number a row, of any real dtype; NaN counts as longest."""


class WindowOrder(Protocol):
    """How lengths order the rows of a window."""

    def order(self, lengths: Lengths, *, seed: int, epoch: int, index: int) -> Int64s:
        """A permutation of the window's rows, int64; a pure function of its arguments."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualBuckets:
    """Buckets of `bucket_rows` rows; implements `WindowOrder`."""

    bucket_rows: int

    def order(self, lengths: Lengths, *, seed: int, epoch: int, index: int) -> Int64s:
        """A permutation of a window's rows, int64: runs of `bucket_rows` rows of similar length, in random order.

        Sort by length, equal lengths in random order; cut into buckets; shuffle the buckets; shuffle inside each. The
        rows left over make one short bucket, cut at a random place among the lengths, which comes last: so every batch
        of `bucket_rows` rows is one bucket.

            lengths 5 1 4 2 9, bucket_rows=2      1 2 | 9 5 | 4      (one possible order, as lengths)

        A pure function of its arguments. Source of randomness: 2 n + buckets + 1 words of purpose BUCKETS, in the order
        ties, places in a bucket, places of buckets, the short bucket.
        """
        count = len(lengths)
        whole, rest = divmod(count, self.bucket_rows)
        num_buckets = whole + bool(rest)
        words = random_words(2 * count + num_buckets + 1, seed=seed, epoch=epoch, purpose=Purpose.BUCKETS, index=index)
        ties, places, turns, short_word = np.split(words, [count, 2 * count, 2 * count + num_buckets])
        sizes = np.full(num_buckets, self.bucket_rows, dtype=np.int64)
        turn = np.empty(num_buckets, dtype=np.int64)
        turn[np.argsort(turns, kind="stable")] = np.arange(num_buckets)
        if rest:
            short = int(short_word[0] % np.uint64(num_buckets))
            sizes[short] = rest
            turn[short] = num_buckets
        by_length = np.lexsort((ties, lengths))
        turn_of_row = np.repeat(turn, sizes)
        return by_length[np.lexsort((places, turn_of_row))].astype(np.int64, copy=False)
