"""Levelling: moves as few row ranges as possible so that each list of units has exactly its target number of rows."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.units import Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Rows [start, stop) of the rows that leave list `donor`, numbered in the order in which they leave it."""

    donor: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows move."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """The row ranges that move between lists, by list, so that one list is levelled without looking at all others.

    given_rows: how many rows leave each donor. received: the transfers to each receiver, in order.
    """

    given_rows: dict[int, int]
    received: dict[int, list[Transfer]]

    @classmethod
    def of(cls, moves: Iterable[tuple[int, int, int]]) -> "Transfers":
        """From (donor, receiver, rows), in the order in which rows move."""
        given_rows: dict[int, int] = {}
        received: dict[int, list[Transfer]] = {}
        for donor, receiver, rows in moves:
            start = given_rows.get(donor, 0)
            given_rows[donor] = start + rows
            received.setdefault(receiver, []).append(Transfer(donor=donor, start=start, stop=start + rows))
        return cls(given_rows=given_rows, received=received)

    def __len__(self) -> int:
        return sum(map(len, self.received.values()))

    @property
    def rows(self) -> int:
        """Rows that move, over all lists."""
        return sum(self.given_rows.values())


def even_targets(rows: Int64s) -> Int64s:
    """Targets that differ by at most one row: the spare rows stay where most rows are.

        rows = 9 4 4      targets = 6 6 5       (17 rows: two lists keep a sixth one)

    Lists with most rows keep a spare row first (ties: the lowest number), so that nothing moves without need.
    """
    base, spare = divmod(int(rows.sum()), len(rows))
    targets = np.full(len(rows), base, dtype=np.int64)
    targets[np.argsort(-rows, kind="stable")[:spare]] += 1
    return targets


def plan_transfers(rows: Int64s, targets: Int64s) -> Transfers:
    """The transfers from lists above their target to lists below it; at most len(rows) - 1.

    Pairs of lists whose surplus and deficit are equal come first; the others are matched in order of their numbers.
    (To find the true minimum is a partition problem.)
    """
    surplus = {int(i): int(rows[i] - targets[i]) for i in np.flatnonzero(rows > targets)}
    deficit = {int(i): int(targets[i] - rows[i]) for i in np.flatnonzero(rows < targets)}
    moves = _exact_pairs(surplus, deficit)
    donors, receivers = deque(surplus.items()), deque(deficit.items())
    while donors and receivers:
        (donor, spare), (receiver, missing) = donors[0], receivers[0]
        moved = min(spare, missing)
        moves.append((donor, receiver, moved))
        donors[0], receivers[0] = (donor, spare - moved), (receiver, missing - moved)
        if spare == moved:
            donors.popleft()
        if missing == moved:
            receivers.popleft()
    return Transfers.of(moves)


def _exact_pairs(surplus: dict[int, int], deficit: dict[int, int]) -> list[tuple[int, int, int]]:
    """(donor, receiver, rows) of pairs whose amounts are equal; they leave both dictionaries."""
    waiting: dict[int, list[int]] = {}
    for receiver, missing in reversed(deficit.items()):
        waiting.setdefault(missing, []).append(receiver)
    pairs = []
    for donor, spare in list(surplus.items()):
        if waiting.get(spare):
            receiver = waiting[spare].pop()
            pairs.append((donor, receiver, spare))
            del surplus[donor], deficit[receiver]
    return pairs


def level_list(index: int, units_of: Callable[[int], Units], transfers: Transfers) -> Units:
    """List `index` after all transfers: what it keeps, then what it receives.

    `units_of(i)` gives list i before levelling; it is called for `index` and its donors only.

    Rows leave a list from its end: whole units, and then the beginning of the last unit that is left, so that the
    receiver decodes no more than it was given.

        units of 4, 5 rows; 2 and 5 leave      rows 3-4 of the first are kept; rows 1-2 of the second leave, then
                                               rows 3-5 of it and 1-2 of the first
    """
    parts = [_leaving(units_of(index), transfers.given_rows.get(index, 0), None)]
    parts += [
        _leaving(units_of(transfer.donor), transfer.start, transfer.stop)
        for transfer in transfers.received.get(index, ())
    ]
    return Units.concat(parts)


def _leaving(units: Units, start: int, stop: int | None) -> Units:
    """Rows [start, stop) (None: to the end) of those that leave a list, see `level_list`; in the order of the list."""
    last_first = units.take(slice(None, None, -1))
    until_stop = last_first if stop is None else last_first.split_at(stop)[0]
    return until_stop.split_at(start)[1].take(slice(None, None, -1))
