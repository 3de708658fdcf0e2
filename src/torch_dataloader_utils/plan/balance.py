"""Balancing and assigning units.

Balancing moves as few row ranges as possible so that each list of units has exactly its target number of rows: between
ranks, between lanes, between the workers of a rank. Assigning gives chunks to workers, the heaviest first to the least
loaded.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.steps import StepSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Rows [start, stop) of those that leave list `donor`, numbered in the order in which they leave it."""

    donor: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows move."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """The row ranges that move between lists, by list, so that one list is balanced without looking at all others.

    leaving_rows: how many rows leave each donor. received: the transfers to each receiver, in order.
    """

    leaving_rows: dict[int, int]
    received: dict[int, list[Transfer]]

    @classmethod
    def of(cls, moves: Iterable[tuple[int, int, int]]) -> "Transfers":
        """From (donor, receiver, rows), in the order in which rows move."""
        leaving_rows: dict[int, int] = {}
        received: dict[int, list[Transfer]] = {}
        for donor, receiver, rows in moves:
            start = leaving_rows.get(donor, 0)
            leaving_rows[donor] = start + rows
            received.setdefault(receiver, []).append(Transfer(donor=donor, start=start, stop=start + rows))
        return cls(leaving_rows=leaving_rows, received=received)

    def __len__(self) -> int:
        return sum(map(len, self.received.values()))

    @property
    def rows(self) -> int:
        """Rows that move, over all lists."""
        return sum(self.leaving_rows.values())


def even_targets(rows: Int64s, num_groups: int = 1) -> Int64s:
    """Targets that differ by at most one row in a group of neighbouring lists: the spare rows stay where most are.

        rows = 9 4 4      targets = 6 6 5       (17 rows: two lists keep a sixth one)

    Lists with most rows keep a spare row first (ties: the lowest number), so that nothing moves without need.
    """
    groups = rows.reshape(num_groups, -1)
    base, spare = np.divmod(groups.sum(axis=1, keepdims=True), groups.shape[1])
    place = np.argsort(np.argsort(-groups, axis=1, kind="stable"), axis=1)
    targets: Int64s = (base + (place < spare)).reshape(-1)
    return targets


def plan_transfers(rows: Int64s, targets: Int64s, num_groups: int = 1) -> Transfers:
    """The transfers from lists above their target to lists below it; at most len(rows) - 1.

    num_groups: of neighbouring lists, equally many each, that rows do not leave.

    Pairs of lists whose surplus and deficit are equal come first; the others are matched in order of their numbers.
    (To find the true minimum is a partition problem.)
    """
    change, size = targets - rows, len(rows) // num_groups
    return Transfers.of(
        move for start in range(0, len(rows), size) for move in _moves(start, change[start : start + size])
    )


def _moves(first: int, change: Int64s) -> list[tuple[int, int, int]]:
    """(donor, receiver, rows) among lists from number `first` on, so that each gets `change` rows."""
    surplus = {first + int(i): -int(change[i]) for i in np.flatnonzero(change < 0)}
    deficit = {first + int(i): int(change[i]) for i in np.flatnonzero(change > 0)}
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
    return moves


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


def balanced_list(index: int, units_of: Callable[[int], Units], transfers: Transfers) -> Units:
    """List `index` after all transfers: what it keeps, then what it receives.

    `units_of(i)` gives list i before balancing; it is called for `index` and its donors only.

    Rows leave a list from its end: whole units, and then the beginning of the last unit that is left, so that the
    receiver decodes no more than it receives.

        units of 4, 5 rows; 2 and 5 leave      rows 3-4 of the first are kept; rows 1-2 of the second leave, then
                                               rows 3-5 of it and 1-2 of the first
    """
    parts = [_leaving(units_of(index), transfers.leaving_rows.get(index, 0), None)]
    parts += [
        _leaving(units_of(transfer.donor), transfer.start, transfer.stop)
        for transfer in transfers.received.get(index, ())
    ]
    return Units.concat(parts)


def _leaving(units: Units, start: int, stop: int | None) -> Units:
    """Rows [start, stop) (None: to the end) of those that leave a list (see `balanced_list`), in the list's order."""
    last_first = units.take(slice(None, None, -1))
    until_stop = last_first if stop is None else last_first.split_at(stop)[0]
    return until_stop.split_at(start)[1].take(slice(None, None, -1))


def slice_units(units: Units, index: int, num_slices: int) -> Units:
    """The units of one slice, `units[index::num_slices]`; slices are ranks, or lanes."""
    return units.take(slice(index, None, num_slices))


def rows_per_slice(units: Units, num_slices: int) -> Int64s:
    """Rows of every slice of `slice_units`, int64 [num_slices], without building the slices."""
    rows = np.zeros(num_slices, dtype=np.int64)
    np.add.at(rows, np.arange(len(units)) % num_slices, units.rows)
    return rows


def worker_order(num_workers: int, options: PlanOptions, epoch: int, rank: int) -> Sequence[int]:
    """The workers in the order in which equal loads take units: as numbered, or with `shuffle` permuted.

    The permutation is keyed by (seed, epoch, rank). Without it the same worker has the heaviest unit in every epoch.
    """
    if not options.shuffle:
        return range(num_workers)
    seed = options.seed
    order: list[int] = permutation(num_workers, seed=seed, epoch=epoch, purpose=Purpose.WORKERS, index=rank).tolist()
    return order


def balance_workers(workers: list[Units], sizes: StepSizes) -> list[Units]:
    """The workers' units, balanced so that each has exactly the rows of its own batches."""
    count = len(workers)
    rows = np.array([lane.num_rows for lane in workers], dtype=np.int64)
    targets = np.array([sizes.of_worker(worker, count).rows for worker in range(count)], dtype=np.int64)
    transfers = plan_transfers(rows, targets)
    return [balanced_list(worker, lambda i: workers[i], transfers) for worker in range(count)]


def assign_units(units: Units, weights: Int64s, order: Sequence[int]) -> list[Units]:
    """One list of units for each worker, each in the order of `units`.

    The longest-processing-time rule: heaviest unit first (equal weights: the earlier one), to the least-loaded
    worker (equal loads: the first in `order`, which has every worker once). The heaviest load is at most
    4/3 - 1/(3 num_workers) of the best possible (Graham 1969).
    """
    owner = assign_owners(weights, [0] * len(order), order)
    return [units.take(np.flatnonzero(owner == worker)) for worker in range(len(order))]


def assign_owners(weights: Int64s, loads: Sequence[int], order: Sequence[int]) -> Int64s:
    """The worker of each unit, int64 [units], for workers that already carry `loads`; see `assign_units`."""
    owner = np.zeros(len(weights), dtype=np.int64)
    if len(order) == 1:
        return owner
    heap = [(loads[worker], place, worker) for place, worker in enumerate(order)]
    heapq.heapify(heap)
    heaviest_first = np.argsort(-weights, kind="stable")
    for unit, weight in zip(heaviest_first.tolist(), weights[heaviest_first].tolist(), strict=True):
        load, place, worker = heap[0]
        owner[unit] = worker
        heapq.heapreplace(heap, (load + weight, place, worker))
    return owner
