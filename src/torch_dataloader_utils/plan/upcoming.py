"""Which row groups a rank reads when, in this pass and in the epochs after it: what a cache on its host needs to know.

A plan is a pure function, so what will be read in later epochs is known as well as what is read now.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.units import RowSpace, Units, group_slices

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupReads:
    """Reads of row groups, in their order.

    group: which one, int64 [reads]. at_bytes: projected bytes that the rank takes in before it, float64 [reads].
    all_bytes: those of all reads together.
    """

    group: Int64s
    at_bytes: Float64s
    all_bytes: float

    @classmethod
    def of(cls, programs: Sequence[WorkerProgram], space: RowSpace) -> Self:
        """The reads of these workers, who go on side by side.

        Ranks have equal steps, so time is counted in rows, and only scaled to bytes: jobs that share a cache have rows
        of different sizes.
        """
        lanes = [lane for program in programs for lane in program.lanes]
        row_bytes = float(space.byte_start[-1]) / max(space.num_rows, 1) or 1.0
        all_bytes = row_bytes * sum(program.num_rows for program in programs)
        parts = [_lane_reads(lane, space) for lane in lanes if len(lane)]
        group = np.concatenate([np.zeros(0, np.int64), *(group for group, _ in parts)])
        at = np.concatenate([np.zeros(0), *(at for _, at in parts)])
        order = np.argsort(at, kind="stable")
        return cls(group=group[order], at_bytes=at[order] * all_bytes, all_bytes=all_bytes)

    @classmethod
    def one_after_other(cls, parts: Sequence[Self]) -> Self:
        """The reads of several epochs."""
        starts = np.cumsum([0.0, *(part.all_bytes for part in parts)])
        return cls(
            group=np.concatenate([part.group for part in parts]),
            at_bytes=np.concatenate([part.at_bytes + start for part, start in zip(parts, starts, strict=False)]),
            all_bytes=float(starts[-1]),
        )


def _lane_reads(lane: Units, space: RowSpace) -> tuple[Int64s, Float64s]:
    """The row groups of a lane, each where it is first needed, as a part of the lane's rows.

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
