"""Levelling: moving the fewest row ranges so that every list of units has exactly its target of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.units import Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """`rows` rows that list `donor` gives to list `receiver`."""

    donor: int
    receiver: int
    rows: int


def even_targets(rows: Int64s) -> Int64s:
    """Targets that differ by at most one row: the spare rows stay where most rows are.

        rows = 9 4 4      targets = 6 6 5       (17 rows: two lists keep a sixth one)

    Lists with most rows keep a spare row first (ties: the lowest number), so that nothing moves without need.
    """
    base, spare = divmod(int(rows.sum()), len(rows))
    targets = np.full(len(rows), base, dtype=np.int64)
    targets[np.argsort(-rows, kind="stable")[:spare]] += 1
    return targets


def plan_transfers(rows: Int64s, targets: Int64s) -> list[Transfer]:
    """Who gives how many rows to whom; at most one transfer fewer than there are lists.

    Lists that must lose what another one misses to the row are paired first; the others are matched in order of
    their numbers. (The true minimum is a partition problem; this stays within len(rows) - 1.)
    """
    surplus = {int(i): int(rows[i] - targets[i]) for i in np.flatnonzero(rows > targets)}
    deficit = {int(i): int(targets[i] - rows[i]) for i in np.flatnonzero(rows < targets)}
    transfers = _exact_pairs(surplus, deficit)
    donors, receivers = list(surplus.items()), list(deficit.items())
    while donors and receivers:
        (donor, spare), (receiver, missing) = donors[0], receivers[0]
        moved = min(spare, missing)
        transfers.append(Transfer(donor=donor, receiver=receiver, rows=moved))
        donors[0], receivers[0] = (donor, spare - moved), (receiver, missing - moved)
        if spare == moved:
            donors.pop(0)
        if missing == moved:
            receivers.pop(0)
    return transfers


def _exact_pairs(surplus: dict[int, int], deficit: dict[int, int]) -> list[Transfer]:
    """Pairs whose amounts are equal; they leave both dictionaries."""
    waiting: dict[int, list[int]] = {}
    for receiver, missing in reversed(deficit.items()):
        waiting.setdefault(missing, []).append(receiver)
    pairs = []
    for donor, spare in list(surplus.items()):
        if waiting.get(spare):
            receiver = waiting[spare].pop()
            pairs.append(Transfer(donor=donor, receiver=receiver, rows=spare))
            del surplus[donor], deficit[receiver]
    return pairs


def level_list(index: int, units_of: Callable[[int], Units], transfers: Sequence[Transfer]) -> Units:
    """List `index` after all transfers: what it keeps, then what it receives.

    `units_of(i)` gives list i before levelling; only `index` and its donors are asked for.

    Rows leave a list from its end: whole units, and then the beginning of the last unit that is left, so that whoever
    receives it decodes no more than it was given.

        units of 4, 5 rows; 2 and 5 leave      rows 3-4 of the first are kept; rows 1-2 of the second leave, then
                                               rows 3-5 of it and 1-2 of the first
    """
    gone = sum(transfer.rows for transfer in transfers if transfer.donor == index)
    parts = [_leaving(units_of(index), gone, None)]
    for position, transfer in enumerate(transfers):
        if transfer.receiver == index:
            before = sum(earlier.rows for earlier in transfers[:position] if earlier.donor == transfer.donor)
            parts.append(_leaving(units_of(transfer.donor), before, before + transfer.rows))
    return Units.concat(parts)


def _leaving(units: Units, start: int, stop: int | None) -> Units:
    """Rows [start, stop) in the order in which rows leave a list, None for all the rest; units in the list's order."""
    last_first = units.take(slice(None, None, -1))
    until_stop = last_first if stop is None else last_first.split_at(stop)[0]
    return until_stop.split_at(start)[1].take(slice(None, None, -1))
