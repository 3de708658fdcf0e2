"""Assigns a rank's units to its workers by LPT: the heaviest first, each to the least-loaded worker."""

import heapq
from collections.abc import Sequence

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.units import Units


def worker_order(num_workers: int, options: PlanOptions, epoch: int, rank: int) -> Sequence[int]:
    """The workers in the order in which equal loads take units: as numbered, or with `shuffle` permuted.

    The permutation is keyed by (seed, epoch, rank). Without it the same worker has the heaviest unit in every epoch.
    """
    if not options.shuffle:
        return range(num_workers)
    seed = options.seed
    order: list[int] = permutation(num_workers, seed=seed, epoch=epoch, purpose=Purpose.WORKERS, index=rank).tolist()
    return order


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
