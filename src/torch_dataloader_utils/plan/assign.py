"""Assigns a rank's units to its workers by LPT: the heaviest first, each to the least-loaded worker."""

import heapq

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.units import Units


def assign_units(units: Units, weights: Int64s, num_workers: int) -> list[Units]:
    """One list of units for each worker, each in the order of `units`.

    The longest-processing-time rule: heaviest unit first (equal weights: the earlier one), to the least-loaded
    worker (equal loads: the lowest number). The heaviest load is at most 4/3 - 1/(3 num_workers) of the best
    possible (Graham 1969).
    """
    owner = assign_owners(weights, [0] * num_workers)
    return [units.take(np.flatnonzero(owner == worker)) for worker in range(num_workers)]


def assign_owners(weights: Int64s, loads: list[int]) -> Int64s:
    """The worker of each unit, int64 [units], for workers that already carry `loads`."""
    owner = np.zeros(len(weights), dtype=np.int64)
    if len(loads) == 1:
        return owner
    heap = [(load, worker) for worker, load in enumerate(loads)]
    heapq.heapify(heap)
    heaviest_first = np.argsort(-weights, kind="stable")
    for unit, weight in zip(heaviest_first.tolist(), weights[heaviest_first].tolist(), strict=True):
        load, worker = heap[0]
        owner[unit] = worker
        heapq.heapreplace(heap, (load + weight, worker))
    return owner
