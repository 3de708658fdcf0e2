"""Balance lists of units, and assign units to workers.

Balancing moves few row ranges between lists of units (of ranks, of lanes, or of the workers of a rank), so that each
list has exactly its target number of rows. Assigning gives the heaviest chunk first to the least loaded worker.
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
    """Rows that move from list `donor` to another list: [start, stop) of all leaving rows, in the order they leave."""

    donor: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows that move."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Row ranges that move between lists, by list: one list can be balanced without looking at all others.

    leaving_rows: number of rows that leave each donor. received: transfers to each receiver, in order.
    """

    leaving_rows: dict[int, int]
    received: dict[int, list[Transfer]]

    @classmethod
    def of(cls, moves: Iterable[tuple[int, int, int]]) -> "Transfers":
        """Return the transfers of these (donor, receiver, rows), in the order in which rows move."""
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
        """Number of rows that move, over all lists."""
        return sum(self.leaving_rows.values())


def even_targets(rows: Int64s, num_groups: int = 1) -> Int64s:
    """Return target rows of every list that differ by at most one row within a group of neighbouring lists.

        rows = 9 4 4      targets = 6 6 5       (17 rows: two lists get a sixth row)

    The lists with most rows get a spare row first (ties: the lowest number), so that no row moves without need.
    """
    groups = rows.reshape(num_groups, -1)
    base, spare = np.divmod(groups.sum(axis=1, keepdims=True), groups.shape[1])
    place = np.argsort(np.argsort(-groups, axis=1, kind="stable"), axis=1)
    targets: Int64s = (base + (place < spare)).reshape(-1)
    return targets


def plan_transfers(rows: Int64s, targets: Int64s, num_groups: int = 1) -> Transfers:
    """Return the transfers from lists above their target to lists below their target; at most len(rows) - 1.

    num_groups: number of groups of neighbouring lists, of equal size; rows never leave their group.

    Pairs of lists with equal surplus and deficit are matched first, then the other lists in order of their numbers.
    (To find the true minimum is a partition problem.)
    """
    change, size = targets - rows, len(rows) // num_groups
    return Transfers.of(
        move for start in range(0, len(rows), size) for move in _moves(start, change[start : start + size])
    )


def _moves(first: int, change: Int64s) -> list[tuple[int, int, int]]:
    """Return (donor, receiver, rows) so that list first + i gains change[i] rows (negative: loses rows)."""
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
    """Return (donor, receiver, rows) of pairs with equal amounts, and remove the pairs from both dictionaries."""
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
    """Return list `index` after all transfers: the units that it keeps, then the units that it receives.

    `units_of(i)` gives list i before balancing. It is called for `index` and its donors only.

    Rows leave a list from its end: whole units, and then the beginning of the last unit that is left, so that the
    receiver decodes no more than it receives.

        units of 4, 5 rows; 2 and 5 leave      rows 3-4 of the first unit are kept; rows 1-2 of the second unit leave,
                                               then rows 3-5 of the second and rows 1-2 of the first
    """
    parts = [_leaving(units_of(index), transfers.leaving_rows.get(index, 0), None)]
    parts += [
        _leaving(units_of(transfer.donor), transfer.start, transfer.stop)
        for transfer in transfers.received.get(index, ())
    ]
    return Units.concat(parts)


def _leaving(units: Units, start: int, stop: int | None) -> Units:
    """Return rows [start, stop) (None: to the end) of the rows that leave a list (`balanced_list`), in list order."""
    last_first = units.take(slice(None, None, -1))
    until_stop = last_first if stop is None else last_first.split_at(stop)[0]
    return until_stop.split_at(start)[1].take(slice(None, None, -1))


def slice_units(units: Units, index: int, num_slices: int) -> Units:
    """Return the units of one slice, `units[index::num_slices]`. Slices are ranks or lanes."""
    return units.take(slice(index, None, num_slices))


def rows_per_slice(units: Units, num_slices: int) -> Int64s:
    """Return the number of rows in every slice of `slice_units`, int64 [num_slices], without building the slices."""
    rows = np.zeros(num_slices, dtype=np.int64)
    np.add.at(rows, np.arange(len(units)) % num_slices, units.rows)
    return rows


def worker_order(num_workers: int, options: PlanOptions, epoch: int, rank: int) -> Sequence[int]:
    """Return the order in which workers of equal load take units: by number, or with `shuffle` permuted.

    The permutation is keyed by (seed, epoch, rank). Without the permutation, the same worker has the heaviest unit in
    every epoch.
    """
    if not options.shuffle:
        return range(num_workers)
    seed = options.seed
    order: list[int] = permutation(num_workers, seed=seed, epoch=epoch, purpose=Purpose.WORKERS, index=rank).tolist()
    return order


def balance_workers(workers: list[Units], sizes: StepSizes) -> list[Units]:
    """Return the workers' units, balanced so that each worker has exactly the rows of its own batches."""
    count = len(workers)
    rows = np.array([lane.num_rows for lane in workers], dtype=np.int64)
    targets = np.array([sizes.of_worker(worker, count).rows for worker in range(count)], dtype=np.int64)
    transfers = plan_transfers(rows, targets)
    return [balanced_list(worker, lambda i: workers[i], transfers) for worker in range(count)]


def assign_units(units: Units, weights: Int64s, order: Sequence[int]) -> list[Units]:
    """Return one list of units for each worker, each in the order of `units`.

    The longest-processing-time rule: heaviest unit first (equal weights: the earlier one), to the least-loaded
    worker (equal loads: the first in `order`, which has every worker once). The heaviest load is at most
    4/3 - 1/(3 num_workers) of the best possible (Graham 1969).
    """
    owner = assign_owners(weights, [0] * len(order), order)
    return [units.take(np.flatnonzero(owner == worker)) for worker in range(len(order))]


def assign_owners(weights: Int64s, loads: Sequence[int], order: Sequence[int]) -> Int64s:
    """Return the worker of each unit, int64 [units], for workers that already carry `loads`. See `assign_units`."""
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
