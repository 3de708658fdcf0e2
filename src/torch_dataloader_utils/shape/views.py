"""Views of consecutive rows, a few batches at once.

Of all columns together they should stay below the 700 new objects that start Python's garbage collector, which walks
over every one: 51 columns cut for a whole row group cost the trainer's thread twice as much as cut by eight.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat

import torch
from torch import Tensor

_AT_ONCE = 8


def split_rows(values: Tensor, rows: int) -> Iterator[Tensor]:
    """Views of `rows` rows, the last one shorter if it must be.

    Without a Python frame a view. `unsafe_` is about autograd, which decoded data has none of (a fifth faster).
    """
    parts = torch.unsafe_split(values, rows * _AT_ONCE)
    return chain.from_iterable(map(torch.unsafe_split, parts, repeat(rows)))


def in_lots(rows: Sequence[int]) -> list[Sequence[int]]:
    """Row counts of batches, as many together as should be cut at once."""
    return [rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE)]
