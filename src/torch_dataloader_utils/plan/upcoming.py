"""Foresee the row groups that a rank reads in this pass and the next epochs, and how many of the bytes a cache holds.

A plan is a pure function, so the reads of later epochs are known now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Self

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s, Inventory
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.units import RowSpace, Units, group_slices, ranges

Float64s = npt.NDArray[np.float64]

EPOCHS_AHEAD = 4
"""Number of later epochs that a cache knows the reads of. Two hosts read 15 of 16 row groups again within four."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupReads:
    """Reads of row groups, in order.

    group: number of the row group, int64 [reads]. at_bytes: projected bytes that the rank takes in before the read,
    float64 [reads]. all_bytes: projected bytes of all reads together.
    """

    group: Int64s
    at_bytes: Float64s
    all_bytes: float

    @classmethod
    def of(cls, programs: Sequence[WorkerProgram], space: RowSpace) -> Self:
        """Return the reads of these workers, which run side by side.

        Ranks have equal steps, so time is counted in rows and then scaled to bytes, because jobs that share a cache
        have rows of different sizes.
        """
        lanes = [lane for program in programs for lane in program.lanes]
        row_bytes = float(space.byte_start[-1]) / max(space.num_rows, 1) or 1.0
        all_bytes = row_bytes * sum(program.num_rows for program in programs)
        parts = [_lane_reads(lane, space) for lane in lanes if len(lane)]
        group = np.concatenate([np.zeros(0, np.int64), *(group for group, _ in parts)])
        at = np.concatenate([np.zeros(0), *(at for _, at in parts)])
        order = np.argsort(at, kind="stable")
        return cls(group=group[order], at_bytes=at[order] * all_bytes, all_bytes=all_bytes)

    def with_members(self, inventory: Inventory) -> Self:
        """Return the reads with the row groups that are read with each of them, at the same time."""
        counts = inventory.num_members(self.group)
        if counts is None:
            return self
        at_bytes = np.repeat(self.at_bytes, counts)
        return replace(self, group=ranges(self.group, counts), at_bytes=at_bytes)

    @classmethod
    def one_after_other(cls, parts: Sequence[Self]) -> Self:
        """Return the reads of several epochs, one after the other."""
        starts = np.cumsum([0.0, *(part.all_bytes for part in parts)])
        return cls(
            group=np.concatenate([part.group for part in parts]),
            at_bytes=np.concatenate([part.at_bytes + start for part, start in zip(parts, starts, strict=False)]),
            all_bytes=float(starts[-1]),
        )

    @classmethod
    def side_by_side(cls, parts: Sequence[Self]) -> Self:
        """Return the reads of several ranks at the same time."""
        at_bytes = np.concatenate([part.at_bytes for part in parts])
        order = np.argsort(at_bytes, kind="stable")
        return cls(
            group=np.concatenate([part.group for part in parts])[order],
            at_bytes=at_bytes[order],
            all_bytes=max(part.all_bytes for part in parts),
        )


def _lane_reads(lane: Units, space: RowSpace) -> tuple[Int64s, Float64s]:
    """Return the row groups of a lane, and for each the fraction of the lane's rows that comes before its first use.

    A window needs all its row groups when it begins.
    """
    slices = group_slices(lane, space.group_start[:-1], space.group_start[1:])
    rows = slices.stop - slices.start
    before = np.cumsum(rows) - rows
    first_of_unit = slices.unit.searchsorted(slices.unit)
    inside = np.where(lane.is_plain[slices.unit], before - before[first_of_unit], 0)
    unit_start = np.cumsum(lane.rows) - lane.rows
    group, first = np.unique(slices.group, return_index=True)
    at = (unit_start[slices.unit] + inside)[first]
    return group, at / max(lane.num_rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPart:
    """Bytes that a host reads in one epoch, and how many of these bytes its cache has."""

    read_bytes: int
    cached_bytes: int


class CacheForecast:
    """Simulation of a host's cache that is empty at first, by the rules of `cache/index.py`.

    To make room, the cache evicts the row group with the farthest next read. Among row groups that no known epoch
    reads, the oldest goes first. A row group that would be evicted at once is not kept.

    epochs: row groups that the ranks of a host read, in order, one array an epoch. sizes: bytes of each row group.
    most_bytes: number of bytes that the cache holds.
    """

    def __init__(self, epochs: Sequence[Int64s], sizes: Int64s, most_bytes: int) -> None:
        self._reads = np.concatenate([*epochs, np.zeros(0, np.int64)])
        self._starts = np.cumsum([0, *map(len, epochs)]).tolist()
        self._sizes = sizes
        self._room = most_bytes
        # Row group -> (index of its next read, number). Numbers rise in the order in which row groups were kept.
        self._kept: dict[int, tuple[int, int]] = {}
        self._farthest: list[tuple[int, int, int, int]] = []
        self._numbers = count()

    def parts(self) -> list[CachedPart]:
        """Return the bytes read and cached in each epoch except the last `EPOCHS_AHEAD`, which are only foreseen."""
        following = _next_reads(self._reads)
        found = []
        for epoch in range(max(0, len(self._starts) - 1 - EPOCHS_AHEAD)):
            start, stop, unknown = (self._starts[epoch + ahead] for ahead in (0, 1, 1 + EPOCHS_AHEAD))
            self._farthest = [self._rank(group, unknown) for group in self._kept]
            heapify(self._farthest)
            groups, sizes = self._reads[start:stop], self._sizes[self._reads[start:stop]]
            cached = 0
            for group, size, later in zip(groups.tolist(), sizes.tolist(), following[start:stop].tolist(), strict=True):
                if group in self._kept:
                    cached += size
                    self._keep(group, later, self._kept[group][1], unknown)
                elif self._makes_room(size, min(later, unknown)):
                    self._room -= size
                    self._keep(group, later, next(self._numbers), unknown)
            found.append(CachedPart(read_bytes=int(sizes.sum()), cached_bytes=cached))
        return found

    def _keep(self, group: int, later: int, number: int, unknown: int) -> None:
        self._kept[group] = (later, number)
        heappush(self._farthest, self._rank(group, unknown))

    def _rank(self, group: int, unknown: int) -> tuple[int, int, int, int]:
        later, number = self._kept[group]
        return -min(later, unknown), number, later, group

    def _makes_room(self, size: int, later: int) -> bool:
        """Evict row groups that are read no earlier than `later`, if that makes room enough. Return whether it does."""
        victims, room = [], self._room
        while room < size and self._farthest and -self._farthest[0][0] >= later:
            victim = heappop(self._farthest)
            _, number, when, group = victim
            # The heap still has entries of row groups that were read or evicted since.
            if self._kept.get(group) == (when, number):
                victims.append(victim)
                room += int(self._sizes[group])
        if room < size:
            for victim in victims:
                heappush(self._farthest, victim)
            return False
        for victim in victims:
            del self._kept[victim[-1]]
        self._room = room
        return True


def _next_reads(groups: Int64s) -> Int64s:
    """Return for each read the index of the next read of the same row group; the int64 maximum if there is no next."""
    order = np.argsort(groups, kind="stable")
    following = np.full(len(groups), np.iinfo(np.int64).max)
    same = groups[order[1:]] == groups[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following
