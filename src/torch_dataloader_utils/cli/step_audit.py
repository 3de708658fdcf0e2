"""Compare the steps of a pass with the plan, which is made again from the row groups of the data and the pass's header.

Both sides give each step the number of its rows and a sum over its rows, which no other rows have.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.inventory import Int64s, Inventory
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.units import PLAIN, Units, ranges
from torch_dataloader_utils.plan.planner import Planner

StepRows = tuple[Int64s, Int64s]
"""A step, and a plan row of the step: two arrays of one length."""


def make_planner(inventory: Inventory, order: Mapping[str, Any]) -> Planner | None:
    """Return the planner of a job, None if only the job knows what the plan depends on.

    A split strategy is the job's code, and the lengths of rows are values of the data.
    """
    options = PlanOptions(**order)
    return None if options.strategy or options.bucket_by else Planner(inventory=inventory, options=options)


class StepCheck:
    """Comparison of the steps of a pass with the plan.

    header: Header of the pass.

    Raises:
        LoaderError: the plan has no such position.
    """

    def __init__(self, planner: Planner, header: Mapping[str, Any]) -> None:
        self._first, stop = header["first_step"], header["num_steps"]
        self._wanted, self._given = _Sums(self._first, stop), _Sums(self._first, stop)
        programs = planner.plan(_position(header)).programs(header["rank"])
        for worker, program in enumerate(programs):
            first = self._first + (worker - self._first) % len(programs)
            for planned in _planned(program, first, len(programs)):
                self._wanted.add(planned)

    def add(self, given: StepRows) -> None:
        """Add rows that the pass gave."""
        self._given.add(given)

    def wrong_steps(self) -> Int64s:
        """Return the steps, ascending, that have all their rows, and other rows than planned.

        A step with too few rows is no finding here: its last rows may not have been recorded before a kill, and rows
        that never came are found by their count.
        """
        given, wanted = self._given, self._wanted
        is_wrong = (given.counts >= wanted.counts) & (given.counts > 0) & (given.sums != wanted.sums)
        result: Int64s = self._first + np.flatnonzero(is_wrong)
        return result


def _position(header: Mapping[str, Any]) -> Position:
    """Return the position at which the pass began."""
    history = tuple(
        Segment(
            topology=Topology(**each["topology"]),
            steps=tuple(each["steps"]) if isinstance(each["steps"], list) else each["steps"],
        )
        for each in header["history"]
    )
    segment = Segment(topology=Topology(**header["topology"]), steps=header["first_step"])
    return Position(epoch=header["epoch"], history=history, segment=segment)


class _Sums:
    """Number of rows, and a sum over the rows, of each step in [first, stop). Rows of other steps do not count."""

    def __init__(self, first: int, stop: int) -> None:
        self._first = first
        self.counts = np.zeros(max(0, stop - first), np.int64)
        self.sums = np.zeros(len(self.counts), np.uint64)

    def add(self, step_rows: StepRows) -> None:
        steps, rows = step_rows[0] - self._first, step_rows[1]
        is_planned = (steps >= 0) & (steps < len(self.counts))
        np.add.at(self.counts, steps[is_planned], 1)
        np.add.at(self.sums, steps[is_planned], _mixed(rows[is_planned]))


def _mixed(rows: Int64s) -> npt.NDArray[np.uint64]:
    """Return a 64-bit number for each row, so that sums of other rows differ (the last steps of MurmurHash3)."""
    words = rows.astype(np.uint64) + np.uint64(1)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        words = (words ^ (words >> np.uint64(33))) * np.uint64(factor)
    result: npt.NDArray[np.uint64] = words ^ (words >> np.uint64(33))
    return result


def _planned(program: WorkerProgram, first_step: int, step_by: int) -> Iterator[StepRows]:
    """Yield the rows of all steps of a worker, unit by unit."""
    parts: list[list[tuple[int, int]]] = [[] for _ in program.lanes]
    for batch in range(program.batching.num_batches or 0):
        for lane, rows in program.batching.parts(batch):
            parts[lane].append((first_step + batch * step_by, rows))
    for units, of_lane in zip(program.lanes, parts, strict=True):
        steps, counts = np.array(of_lane, np.int64).reshape(-1, 2).T
        ends, total, done = np.cumsum(counts), int(counts.sum()), 0
        for unit in range(len(units)):
            rows_of_unit = _rows(units, unit, program)[: total - done]
            numbers = np.arange(done, done + len(rows_of_unit))
            yield steps[np.searchsorted(ends, numbers, side="right")], rows_of_unit
            done += len(rows_of_unit)


def _rows(units: Units, unit: int, program: WorkerProgram) -> Int64s:
    """Return the plan rows of a unit, in order."""
    start, stop, window = (int(each[unit]) for each in (units.start, units.stop, units.window))
    if window == PLAIN:
        return np.arange(start, stop)
    starts, stops = units.windows.pieces(window)
    key = int(units.windows.keys[window])
    rows = ranges(starts, stops - starts)
    order = permutation(len(rows), seed=program.seed, epoch=program.epoch, purpose=Purpose.WINDOW, index=key)
    result: Int64s = rows[order[start:stop]]
    return result
