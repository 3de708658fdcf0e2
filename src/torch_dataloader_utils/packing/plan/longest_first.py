"""Longest sequence first, onto the pack with the least compute that has room for it."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torch_dataloader_utils.packing.plan.schedule import Int64s
from torch_dataloader_utils.packing.plan.shape import PackingShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """What the placement reads, longest first: plain lists, since it goes through them one by one.

    Attributes:
        positions: positions in the global batch.
        costs: compute of each sequence on one rank.
        lanes: the smallest span (an index into the spans) that each sequence may take; never rises.
        tokens: per span, the tokens that each sequence occupies there (padded for that span).
    """

    positions: list[int]
    costs: list[int]
    lanes: list[int]
    tokens: list[list[int]]

    @classmethod
    def of(
        cls, positions: Int64s, *, lengths: Int64s, costs: Int64s, lanes: Int64s, tokens: Sequence[Int64s]
    ) -> "Sequences":
        """The sequences at `positions`: widest span first, then longest, ties by position.

        All arrays are indexed by position in the global batch.
        """
        order = positions[np.lexsort((-lengths[positions], -lanes[positions]))]
        return cls(
            positions=order.tolist(),
            costs=costs[order].tolist(),
            lanes=lanes[order].tolist(),
            tokens=[each[order].tolist() for each in tokens],
        )


@dataclass(slots=True)
class Placement:
    """Packs under construction, by index, on num_ranks × num_microbatches rank slots.

    `lanes` has the index of each pack's span, `loads` its cost per rank times the number of ranks (so that it is
    a whole number for every span), `rooms` its free tokens. `free_slots` belong to no pack yet.
    """

    num_microbatches: int
    free_slots: int
    packs: list[list[int]] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)

    def open(self, lane: int, span: int, room: int) -> int:
        """A new empty pack on `span` free slots; gives its index."""
        self.free_slots -= span
        self.packs.append([])
        self.lanes.append(lane)
        self.loads.append(0)
        self.rooms.append(room)
        return len(self.packs) - 1


@dataclass(slots=True)
class _Lane:
    """The packs of one span in two heaps, so that a full pack is looked at only when something may fit again.

    Sequences come in falling length. A pack without room for this one therefore waits in `full` until the
    sequences are as short as its room; every wait is paid for by one placement, so n placements cost n log n.
    """

    ready: list[tuple[int, int]] = field(default_factory=list)
    full: list[tuple[int, int]] = field(default_factory=list)

    def settle(self, tokens: int, placement: Placement) -> None:
        """Brings the least loaded pack with room for `tokens` to the top of `ready`, as (load, pack)."""
        ready, full, rooms = self.ready, self.full, placement.rooms
        while full and -full[0][0] >= tokens:
            _, pack = heapq.heappop(full)
            heapq.heappush(ready, (placement.loads[pack], pack))
        while ready and rooms[ready[0][1]] < tokens:
            _, pack = heapq.heappop(ready)
            heapq.heappush(full, (-rooms[pack], pack))


def place_longest_first(
    sequences: Sequences, *, spans: Sequence[int], shape: PackingShape, num_microbatches: int
) -> Placement:
    """Packs of `sequences` on at least `num_microbatches` microbatches.

    A sequence opens a pack of its smallest span while slots are free; after that it joins the pack with the least
    compute per rank among those with room, of its smallest span or a wider one: Graham's longest processing
    time rule (SIAM J. Appl. Math. 17, 1969) with capacities. Where no pack has room, a group of microbatches is
    added. Slots stay free when sequences are few.

        1 rank, 2 microbatches, 8 tokens, lengths 5 4 3 2, cost = length      5 | 4, then 5 | 4 3, then 5 2 | 4 3
    """
    num_ranks, tokens = shape.num_ranks, sequences.tokens
    placement = Placement(num_microbatches=num_microbatches, free_slots=num_microbatches * num_ranks)
    packs, lanes, loads, rooms = placement.packs, placement.lanes, placement.loads, placement.rooms
    queues = [_Lane() for _ in spans]
    for row, (position, cost, lane) in enumerate(
        zip(sequences.positions, sequences.costs, sequences.lanes, strict=True)
    ):
        pack = None
        if placement.free_slots < spans[lane]:
            pack = _least_loaded(queues, lane, row, tokens, placement)
            if pack is None:
                placement.num_microbatches += shape.microbatch_multiple
                placement.free_slots += shape.microbatch_multiple * num_ranks
        if pack is None:
            pack = placement.open(lane, spans[lane], shape.max_seqlen_per_dp_cp_rank * spans[lane])
        else:
            lane = lanes[pack]
            heapq.heappop(queues[lane].ready)
        packs[pack].append(position)
        rooms[pack] -= tokens[lane][row]
        loads[pack] += cost * (num_ranks // spans[lane])
        heapq.heappush(queues[lane].ready, (loads[pack], pack))
    return placement


def _least_loaded(
    queues: list[_Lane], lane: int, row: int, tokens: list[list[int]], placement: Placement
) -> int | None:
    """The least loaded pack with room for sequence `row` on the span of `lane` or a wider one; None without one."""
    best: tuple[int, int] | None = None
    rooms = placement.rooms
    for wider in range(lane, len(queues)):
        queue, wanted = queues[wider], tokens[wider][row]
        ready, full = queue.ready, queue.full
        # Most tops are settled already; a call for each of them would double the time of the loop.
        if (full and -full[0][0] >= wanted) or (ready and rooms[ready[0][1]] < wanted):
            queue.settle(wanted, placement)
        if ready and (best is None or ready[0] < best):
            best = ready[0]
    return None if best is None else best[1]
