"""Batches limited by the sum of their rows' lengths: which rows of a window share one. Pure arithmetic."""

from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s

# float64 counts to here exactly, and no larger sum is rounded to less; sums of int64 could begin anew below 0.
_MOST_TOKENS = 2**53
# Of the shortest rows, so many for each batch fill gaps. That makes batches 1.3 % fuller where 8 rows fill one, and
# 0.2 % where 30 do; planning takes up to twice as long.
_GAP_ROWS = 2


def fill_batches(lengths: Int64s, max_tokens: int, max_rows: int) -> Int64s:
    """The batch of each row, numbered from 0, int64 [rows].

    There are as many batches as the sum of lengths, or the rows, need at least. Rows are dealt to them there and back,
    so that each has rows of all lengths. A batch keeps the first that fit. The others, and the shortest, go to the
    batch with most room, longest first, or where that is too little to a new one.

    lengths: falling, none above max_tokens.

        lengths 9 8 5 4 3 2 2 1, max_tokens=17      0 1 1 0 0 1 1 0      as 9 4 3 1 | 8 5 2 2
    """
    count = len(lengths)
    num_batches = max(-(-int(lengths.sum()) // max_tokens), -(-count // max_rows), 1)
    ranks = np.arange(-(-count // num_batches) * num_batches).reshape(-1, num_batches)
    ranks[1::2] = ranks[1::2, ::-1]
    padded = np.zeros(ranks.size)
    padded[:count] = lengths
    dealt = padded[ranks]
    fits = np.cumsum(dealt, axis=0) <= min(max_tokens, _MOST_TOKENS)
    fits &= ranks < count - _GAP_ROWS * num_batches
    batch = np.empty(ranks.size, dtype=np.int64)
    batch[ranks] = np.where(fits, np.arange(num_batches), -1)
    batch = batch[:count]
    left = np.flatnonzero(batch < 0)
    tokens = np.where(fits, dealt, 0).sum(axis=0).astype(np.int64)
    begun = list(zip(tokens.tolist(), fits.sum(axis=0).tolist(), range(num_batches), strict=True))
    batch[left] = _place(lengths[left].tolist(), begun, max_tokens, max_rows)
    return batch


def _place(lengths: list[int], batches: list[tuple[int, int, int]], max_tokens: int, max_rows: int) -> list[int]:
    """The batch of each of these rows: the one with the fewest tokens, and of those with the fewest rows.

    batches: (tokens, rows, number) of those there are, each with fewer rows than max_rows; changed in place.
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
