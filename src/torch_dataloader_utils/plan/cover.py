"""Checks that spans of rows cover a range exactly once, and finds the first rows that are lost or repeated."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The first rows [start, stop) that are lost or repeated. total_rows: all such rows; a repeat counts each time."""

    verb: Literal["lost", "repeated"]
    start: int
    stop: int
    total_rows: int


def find_fault(start: Int64s, stop: Int64s, num_rows: int) -> Fault | None:
    """The first fault if the spans [start[i], stop[i]), none of them empty, do not cover [0, num_rows) exactly once.

    [0, 5) [3, 8) [2, 4)     of 8      rows [2, 4) are repeated, 4 rows in all: 2, 3, 3, 4
    [0, 5) [8, 9)            of 10     rows [5, 8) are lost, 4 rows in all
    """
    order = np.argsort(start, kind="stable")
    start, stop = start[order], stop[order]
    covered = np.concatenate([np.zeros(1, dtype=np.int64), np.maximum.accumulate(stop)])
    following = np.append(start, num_rows)
    lost = following - covered
    repeated = np.minimum(stop, covered[:-1]) - start
    wrong = np.flatnonzero(lost)
    if not len(wrong):
        return None
    first = wrong[0]
    if lost[first] > 0:
        return Fault(
            verb="lost", start=int(covered[first]), stop=int(following[first]), total_rows=int(lost[lost > 0].sum())
        )
    again = int(repeated[first])
    return Fault(
        verb="repeated",
        start=int(start[first]),
        stop=int(start[first]) + again,
        total_rows=int(repeated[repeated > 0].sum()),
    )
