"""Merge spans into fewer reads: pure arithmetic, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch_dataloader_utils._core.spans import Buffer, Span
from torch_dataloader_utils._store.interface import CoalesceLimits

_FREE_WASTE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """Reads that cover the requested spans.

    reads: Disjoint spans, ascending. places: (index into reads, offset inside the read) of every requested span.
    """

    reads: tuple[Span, ...]
    places: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]

    def slices(self, data: Sequence[Buffer]) -> list[Buffer]:
        """Return the bytes of the spans, as views of `data`, the bytes of `reads`."""
        views = [memoryview(buffer) for buffer in data]
        return [
            views[read][start : start + length] for (read, start), length in zip(self.places, self.lengths, strict=True)
        ]


def coalesce(spans: Sequence[Span], limits: CoalesceLimits) -> ReadPlan:
    """Merge spans whose gap is at most `hole_bytes` into reads of at most `most_bytes`, within `most_waste`.

    Spans may come in any order, overlap or repeat. Overlapping spans always share a read, whatever its size.

        spans (0, 4) (10, 4) (100, 4), hole_bytes=8      reads (0, 14) (100, 4)
    """
    if len(spans) == 1:  # the common case of small files, and there are many of them
        return ReadPlan(reads=tuple(spans), places=((0, 0),), lengths=(spans[0][1],))
    order = sorted(range(len(spans)), key=lambda index: spans[index])
    largest_hole = _largest_hole([spans[index] for index in order], limits)
    reads: list[list[int]] = []  # [start, stop]
    places: list[tuple[int, int]] = [(0, 0)] * len(spans)
    for index in order:
        start, length = spans[index]
        stop = start + length
        if reads and _fits(reads[-1], start, stop, largest_hole, limits.most_bytes):
            reads[-1][1] = max(reads[-1][1], stop)
        else:
            reads.append([start, stop])
        places[index] = (len(reads) - 1, start - reads[-1][0])
    return ReadPlan(
        reads=tuple((start, stop - start) for start, stop in reads),
        places=tuple(places),
        lengths=tuple(length for _, length in spans),
    )


def _largest_hole(ordered: Sequence[Span], limits: CoalesceLimits) -> int:
    """Return the largest gap to read through, such that all gaps up to its size stay within `most_waste`."""
    wanted = sum(length for _, length in ordered)
    left = max(_FREE_WASTE_BYTES, wanted * limits.most_waste)
    largest, reached = 0, ordered[0][0] if ordered else 0
    holes = []
    for start, length in ordered:
        holes.append(max(0, start - reached))
        reached = max(reached, start + length)
    for hole in sorted(holes):
        left -= hole
        if hole > limits.hole_bytes or left < 0:
            break
        largest = hole
    return largest


def _fits(read: list[int], start: int, stop: int, largest_hole: int, most_bytes: int) -> bool:
    overlaps = start < read[1]
    near = start - read[1] <= largest_hole
    small = max(stop, read[1]) - read[0] <= most_bytes
    return overlaps or (near and small)
