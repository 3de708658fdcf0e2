"""How processes divide work that is numbered alike in all of them: row groups to count, to check or to measure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch_dataloader_utils._core.inventory import Int64s, Inventory

T = TypeVar("T")

Exchange = Callable[[Int64s], Int64s]
"""Adds up what all processes found: arrays of one shape, zero where another one looked."""


class Together(Protocol):
    """Does this process's part of work that all share: what it gives, or an error in all of them if one fails."""

    def __call__(self, work: Callable[[], T]) -> T: ...


def alone(counts: Int64s) -> Int64s:
    """The exchange of a process that works on everything itself."""
    return counts


def seen_by_one(inventory: Inventory) -> None:
    """The check of a process that works on everything itself: nobody else sees other data."""


def by_itself(work: Callable[[], T]) -> T:
    """The same for work: an error is nobody else's."""
    return work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One process's share of the work: every count-th number from `index` on. By default, all of it.

    exchange: with a count above 1 all processes must call it, once for each piece of work.
    together: likewise. What may fail before an exchange goes through it, or those who did not fail would wait there.
    check_alike: likewise, before the row groups of an inventory are divided: raises DataError in all of them if their
        inventories have other row groups, so that one number means two.
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
