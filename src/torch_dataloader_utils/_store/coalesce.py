"""Which reads serve which spans: pure arithmetic, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch_dataloader_utils._store.interface import Buffer, CoalesceLimits, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """reads: disjoint spans, ascending. places: for every span asked for, (index into reads, offset inside it)."""

    reads: tuple[Span, ...]
    places: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]

    def slices(self, data: Sequence[Buffer]) -> list[Buffer]:
        """The spans' bytes, as views of `data`, the bytes of `reads`."""
        views = [memoryview(buffer) for buffer in data]
        return [
            views[read][start : start + length] for (read, start), length in zip(self.places, self.lengths, strict=True)
        ]


def coalesce(spans: Sequence[Span], limits: CoalesceLimits) -> ReadPlan:
    """Merges spans whose gap is at most `hole_bytes` into reads of at most `most_bytes`.

    Spans may come in any order, overlap or repeat; overlapping ones always share a read, whatever its size.

        spans (0, 4) (10, 4) (100, 4), hole_bytes=8      reads (0, 14) (100, 4)
    """
    reads: list[list[int]] = []  # [start, stop]
    places: list[tuple[int, int]] = [(0, 0)] * len(spans)
    for index in sorted(range(len(spans)), key=lambda i: spans[i]):
        start, length = spans[index]
        stop = start + length
        if reads and _fits(reads[-1], start, stop, limits):
            reads[-1][1] = max(reads[-1][1], stop)
        else:
            reads.append([start, stop])
        places[index] = (len(reads) - 1, start - reads[-1][0])
    return ReadPlan(
        reads=tuple((start, stop - start) for start, stop in reads),
        places=tuple(places),
        lengths=tuple(length for _, length in spans),
    )


def _fits(read: list[int], start: int, stop: int, limits: CoalesceLimits) -> bool:
    overlaps = start < read[1]
    near = start - read[1] <= limits.hole_bytes
    small = max(stop, read[1]) - read[0] <= limits.most_bytes
    return overlaps or (near and small)
