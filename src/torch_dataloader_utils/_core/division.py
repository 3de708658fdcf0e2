"""Division of numbered work: over processes, and into neighbouring parts of nearly the same length."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s, Inventory

T = TypeVar("T")

Exchange = Callable[[Int64s], Int64s]
"""Sum of the arrays of all processes: arrays of one shape, with zeros where another process did the work."""


class Together(Protocol):
    """Runs this process's part of shared work and returns its result; a failure in one process raises in all."""

    def __call__(self, work: Callable[[], T]) -> T: ...


def alone(counts: Int64s) -> Int64s:
    """Return the counts unchanged: the `exchange` of a process that does all work itself."""
    return counts


def seen_by_one(inventory: Inventory) -> None:
    """Do nothing: the `check_alike` of a process that does all work itself has nothing to compare."""


def by_itself(work: Callable[[], T]) -> T:
    """Return the result of the work: the `together` of a process that does all work itself."""
    return work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of the work of one process: every count-th number from `index` on. By default, all numbers.

    exchange, together, check_alike: With a count above 1, all processes must make the same calls.
    together: Runs work that may fail before an exchange; without it, processes that did not fail would wait forever.
    check_alike: Called before row groups are divided by number; raises DataError in all processes if their inventories
        have different row groups.
    threads: Number of items that this process works on at once.

        index=1, count=3, of 8      1  4  7
    """

    index: int = 0
    count: int = 1
    exchange: Exchange = alone
    together: Together = by_itself
    check_alike: Callable[[Inventory], None] = seen_by_one
    threads: int = 1

    def of(self, total: int) -> range:
        """Return the numbers of this process in [0, total)."""
        return range(self.index, total, self.count)


def even_counts(total: int, parts: int) -> Int64s:
    """Return the length of each part, int64 [parts].

    total=11 parts=4      3 3 3 2
    """
    base, spare = divmod(total, parts)
    return base + (np.arange(parts) < spare).astype(np.int64)


def even_span(total: int, parts: int, index: int) -> tuple[int, int]:
    """Return one part as [start, stop).

    total=11 parts=4 index=1      (3, 6)
    """
    base, spare = divmod(total, parts)
    start = index * base + min(index, spare)
    return start, start + base + (index < spare)
