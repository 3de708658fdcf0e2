"""Fit sequences into packs: first fit, next fit, longest first; and check that each sequence can fit at all."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.megatron.schedules.plan.inputs import PackingShape, SchedulePolicy
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s


def checked_lengths(lengths: Sequence[int] | Int64s) -> Int64s:
    """Return the lengths as int64 [n].

    Raises:
        ConfigTypeError: lengths that are not a list of integers. ConfigError: no sequence, or a length below 1.
    """
    given = np.asarray(lengths)
    if given.size and given.dtype.kind not in "iu":
        raise ConfigTypeError(f"lengths are {given.dtype}: pass whole numbers of tokens.")
    if given.ndim != 1:
        raise ConfigTypeError(f"lengths have the shape {given.shape}: pass one number of tokens for each sequence.")
    checked = given.astype(np.int64)
    if not len(checked):
        raise ConfigError("the global batch has no sequence; a schedule needs at least one.")
    if checked.min() < 1:
        position = int(checked.argmin())
        raise ConfigError(
            f"sequence {position} has length {int(checked[position])}; lengths are at least 1 token. "
            "Leave empty sequences out before scheduling."
        )
    return checked


def fitting_positions(lengths: Int64s, *, capacity: int, policy: SchedulePolicy) -> Int64s:
    """Return the positions to schedule, ascending: all, or with over_long="drop" the sequences within `capacity`.

    Raises:
        ConfigError: a sequence above `capacity` with over_long="error", or nothing left to schedule.
    """
    over = np.flatnonzero(lengths > capacity)
    if not len(over) or policy.over_long == "alone":
        return np.arange(len(lengths))
    if policy.over_long == "error":
        raise ConfigError(
            f"{len(over)} of {len(lengths)} sequences are longer than the {capacity} tokens of a pack "
            f"(first: sequence {int(over[0])} with {int(lengths[over[0]])} tokens). Raise max_seqlen_per_dp_cp_rank "
            'or the number of context-parallel ranks, cut the sequences, or set over_long="alone" or "drop".'
        )
    if len(over) == len(lengths):
        raise ConfigError(
            f"all {len(lengths)} sequences are longer than the {capacity} tokens of a pack; none is left. "
            "Raise max_seqlen_per_dp_cp_rank, or cut the sequences."
        )
    return np.flatnonzero(lengths <= capacity)


def first_fit(lengths: Int64s, positions: Int64s, *, capacity: int) -> list[list[int]]:
    """Pack `positions` in order, each into the first pack with room; a sequence above `capacity` is alone.

    A tournament tree over the packs finds the first pack in log n: every node has the most room of its packs.

        lengths 5 4 3 6 2, capacity 8       5 3 | 4 2 | 6
    """
    # First fit leaves at most one pack half empty, so twice the tokens (at most `capacity` for each sequence) bound
    # the number of packs.
    listed = lengths[positions].tolist()
    total = sum(min(length, capacity) for length in listed)
    leaves = 1 << (2 * total // capacity + 1).bit_length()
    rooms = [capacity] * (2 * leaves)
    packs: list[list[int]] = []
    for position, length in zip(positions.tolist(), listed, strict=True):
        wanted = min(length, capacity)
        node = 1
        while node < leaves:
            node *= 2
            if rooms[node] < wanted:
                node += 1
        if node - leaves == len(packs):
            packs.append([])
        packs[node - leaves].append(position)
        rooms[node] -= wanted
        while node > 1:
            node //= 2
            left, right = rooms[2 * node], rooms[2 * node + 1]
            most = left if left >= right else right  # max() takes twice as long
            if most == rooms[node]:
                break
            rooms[node] = most
    return packs


Packs = list[list[int]]


def next_fit(lengths: Int64s, positions: Int64s, *, capacity: int) -> Packs:
    """Pack `positions` into runs with lengths that sum to at most `capacity`; a longer sequence is alone."""
    ends = np.cumsum(lengths[positions])
    listed = positions.tolist()
    packs: Packs = []
    start = 0
    while start < len(listed):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + capacity, side="right")), start + 1)
        packs.append(listed[start:stop])
        start = stop
    return packs


def split_last_packs(packs: Packs, *, multiple: int, policy: SchedulePolicy) -> Packs:
    """Raise the number of packs to the next multiple: the last sequences of the last packs get their own packs.

    A pack gives its last sequence, then its last but one, until one sequence is left; then the pack before gives.
    Moved sequences stand at the end, in the order of moving.

    Raises:
        ConfigError: every pack holds one sequence and the multiple is not reached (policy "error").
    """
    missing = -len(packs) % multiple
    if not missing:
        return packs
    kept = [list(pack) for pack in packs]
    moved: Packs = []
    for pack in reversed(kept):
        while len(pack) > 1 and len(moved) < missing:
            moved.append([pack.pop()])
    if len(moved) < missing and policy.missing_packs == "error":
        raise ConfigError(
            f"{sum(map(len, packs))} sequences make at most {len(packs) + len(moved)} packs; the ranks need a multiple "
            f"of {multiple} (dp_size × microbatch_group_size_per_vp_stage). Use a larger global batch, or "
            'missing_packs="fill" to give the idle ranks a padding sequence without loss.'
        )
    return kept + moved + [[] for _ in range(missing - len(moved))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Sequences to place, longest first, as plain lists, since sequences are placed one by one.

    Attributes:
        positions: positions in the global batch.
        costs: compute of each sequence on one rank.
        levels: smallest span of each sequence, as an index into the spans; never rises.
        tokens: for each span, the number of tokens of each sequence, padded for this span.
    """

    positions: list[int]
    costs: list[int]
    levels: list[int]
    tokens: list[list[int]]

    @classmethod
    def of(
        cls, positions: Int64s, *, lengths: Int64s, costs: Int64s, levels: Int64s, tokens: Sequence[Int64s]
    ) -> "Sequences":
        """Return the sequences at `positions`: widest span first, then longest, ties by position.

        All arrays are indexed by position in the global batch.
        """
        order = positions[np.lexsort((-lengths[positions], -levels[positions]))]
        return cls(
            positions=order.tolist(),
            costs=costs[order].tolist(),
            levels=levels[order].tolist(),
            tokens=[each[order].tolist() for each in tokens],
        )


@dataclass(slots=True)
class OpenPacks:
    """Packs under construction, by index, on num_ranks × num_microbatches rank slots.

    Attributes:
        num_microbatches: number of microbatches so far.
        free_slots: number of rank slots without a pack.
        packs: positions of the sequences of each pack.
        levels: index of the span of each pack.
        loads: cost per rank of each pack, times the number of all ranks, so that it is a whole number for every span.
        rooms: number of free tokens of each pack.
    """

    num_microbatches: int
    free_slots: int
    packs: list[list[int]] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)

    def open(self, level: int, span: int, room: int) -> int:
        """Open an empty pack on `span` free slots. Return the index of the pack."""
        self.free_slots -= span
        self.packs.append([])
        self.levels.append(level)
        self.loads.append(0)
        self.rooms.append(room)
        return len(self.packs) - 1


@dataclass(slots=True)
class _Level:
    """Packs of one span in two heaps, so that a full pack is visited only when a sequence may fit again.

    Sequences come in falling length. A pack without room for the present sequence therefore waits in `full` until
    sequences are as short as its room. A placement causes at most one wait, so n placements cost n log n.
    """

    ready: list[tuple[int, int]] = field(default_factory=list)
    full: list[tuple[int, int]] = field(default_factory=list)

    def settle(self, tokens: int, placement: OpenPacks) -> None:
        """Bring the least loaded pack with room for `tokens` to the top of `ready`, as (load, pack)."""
        ready, full, rooms = self.ready, self.full, placement.rooms
        while full and -full[0][0] >= tokens:
            _, pack = heapq.heappop(full)
            heapq.heappush(ready, (placement.loads[pack], pack))
        while ready and rooms[ready[0][1]] < tokens:
            _, pack = heapq.heappop(ready)
            heapq.heappush(full, (-rooms[pack], pack))


def place_longest_first(
    sequences: Sequences, *, spans: Sequence[int], shape: PackingShape, num_microbatches: int
) -> OpenPacks:
    """Place `sequences` into packs on at least `num_microbatches` microbatches.

    A sequence opens a pack of its smallest span while slots are free. Later sequences join the pack with the least
    compute per rank among all packs with room, of the smallest span of the sequence or a wider span: Graham's longest
    processing time rule (SIAM J. Appl. Math. 17, 1969) with capacities. If no pack has room, a group of microbatches
    is added. Slots stay free if sequences are few.

        1 rank, 2 microbatches, 8 tokens, lengths 5 4 3 2, cost = length      5 | 4, then 5 | 4 3, then 5 2 | 4 3
    """
    num_ranks, tokens = shape.num_ranks, sequences.tokens
    placement = OpenPacks(num_microbatches=num_microbatches, free_slots=num_microbatches * num_ranks)
    packs, levels, loads, rooms = placement.packs, placement.levels, placement.loads, placement.rooms
    queues = [_Level() for _ in spans]
    for row, (position, cost, level) in enumerate(
        zip(sequences.positions, sequences.costs, sequences.levels, strict=True)
    ):
        pack = None
        if placement.free_slots < spans[level]:
            pack = _least_loaded(queues, level, row, tokens, placement)
            if pack is None:
                placement.num_microbatches += shape.microbatch_multiple
                placement.free_slots += shape.microbatch_multiple * num_ranks
        if pack is None:
            pack = placement.open(level, spans[level], shape.max_seqlen_per_dp_cp_rank * spans[level])
        else:
            level = levels[pack]
            heapq.heappop(queues[level].ready)
        packs[pack].append(position)
        rooms[pack] -= tokens[level][row]
        loads[pack] += cost * (num_ranks // spans[level])
        heapq.heappush(queues[level].ready, (loads[pack], pack))
    return placement


def _least_loaded(
    queues: list[_Level], level: int, row: int, tokens: list[list[int]], placement: OpenPacks
) -> int | None:
    """Return the least loaded pack with room for sequence `row` on the span of `level` or a wider span, or None."""
    best: tuple[int, int] | None = None
    rooms = placement.rooms
    for wider in range(level, len(queues)):
        queue, wanted = queues[wider], tokens[wider][row]
        ready, full = queue.ready, queue.full
        # Most tops are settled already; a call for every top would double the time of the loop.
        if (full and -full[0][0] >= wanted) or (ready and rooms[ready[0][1]] < wanted):
            queue.settle(wanted, placement)
        if ready and (best is None or ready[0] < best):
            best = ready[0]
    return None if best is None else best[1]
