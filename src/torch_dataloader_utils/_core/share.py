"""How processes divide work that is numbered alike in all of them: row groups to count, to check or to measure."""

from collections.abc import Callable
from dataclasses import dataclass

from torch_dataloader_utils._core.inventory import Int64s

Exchange = Callable[[Int64s], Int64s]
"""Adds up what all processes found: arrays of one shape, zero where another one looked."""


def alone(counts: Int64s) -> Int64s:
    """The exchange of a process that works on everything itself."""
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One process's share of the work: every count-th number from `index` on. By default, all of it.

    exchange: with a count above 1 all processes must call it, once for each piece of work.
    threads: how many numbers this process works on at once.

        index=1, count=3, of 8      1  4  7
    """

    index: int = 0
    count: int = 1
    exchange: Exchange = alone
    threads: int = 1

    def of(self, total: int) -> range:
        """The numbers in [0, total) that are this process's."""
        return range(self.index, total, self.count)
