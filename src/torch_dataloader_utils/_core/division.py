"""Numbered work divided: over processes, and into neighbouring parts of nearly the same length."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s, Inventory

T = TypeVar("T")

Exchange = Callable[[Int64s], Int64s]
"""The sum of the arrays of all processes: of one shape each, zero where another process did the work."""


class Together(Protocol):
    """Runs this process's part of shared work and returns its result; if it fails in one process, it raises in all."""

    def __call__(self, work: Callable[[], T]) -> T: ...


def alone(counts: Int64s) -> Int64s:
    """The exchange of a process that works on everything itself."""
    return counts


def seen_by_one(inventory: Inventory) -> None:
    """The `check_alike` of a process that works on everything itself: nothing to compare."""


def by_itself(work: Callable[[], T]) -> T:
    """The `together` of a process that works on everything itself."""
    return work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One process's share of the work: every count-th number from `index` on. By default, all of it.

    exchange, together, check_alike: with a count above 1, all processes must make the same calls.
    together: runs what may fail before an exchange; otherwise processes that did not fail would wait there for ever.
    check_alike: called before row groups are divided by number; raises DataError in all processes if their inventories
        have different row groups.
    threads: how many numbers this process works on at once.

        index=1, count=3, of 8      1  4  7
    """

    index: int = 0
    count: int = 1
    exchange: Exchange = alone
    together: Together = by_itself
    check_alike: Callable[[Inventory], None] = seen_by_one
    threads: int = 1

    def of(self, total: int) -> range:
        """The numbers in [0, total) that are this process's."""
        return range(self.index, total, self.count)


def even_counts(total: int, parts: int) -> Int64s:
    """The length of each part, int64 [parts].

    total=11 parts=4      3 3 3 2
    """
    base, spare = divmod(total, parts)
    return base + (np.arange(parts) < spare).astype(np.int64)


def even_span(total: int, parts: int, index: int) -> tuple[int, int]:
    """One part: [start, stop).

    total=11 parts=4 index=1      (3, 6)
    """
    base, spare = divmod(total, parts)
    start = index * base + min(index, spare)
    return start, start + base + (index < spare)
