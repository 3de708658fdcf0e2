"""Cuts [0, total) into neighbouring runs whose lengths differ by at most one, the longer ones first."""

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s


def even_counts(total: int, parts: int) -> Int64s:
    """The length of each run, int64 [parts].

    total=11 parts=4      3 3 3 2
    """
    base, spare = divmod(total, parts)
    return base + (np.arange(parts) < spare).astype(np.int64)


def even_span(total: int, parts: int, index: int) -> tuple[int, int]:
    """One run: [start, stop).

    total=11 parts=4 index=1      (3, 6)
    """
    base, spare = divmod(total, parts)
    start = index * base + min(index, spare)
    return start, start + base + (index < spare)
