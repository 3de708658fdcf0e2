"""Rows that a pass gave: as spans of plan rows, and step by step for the comparison with the plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils._observe.audit_file import PLAN_ROWS, PassFound, order_checksum
from torch_dataloader_utils.cli.step_audit import StepCheck, StepRows
from torch_dataloader_utils.errors import LoaderError, plural

if TYPE_CHECKING:
    from torch_dataloader_utils.plan.planner import Planner

_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Given:
    """Steps of one pass that count: first_step and end of each run's steps are within what no later pass replaced."""

    of: PassFound
    runs: Int64s

    @property
    def num_workers(self) -> int:
        """Workers of the rank, the distance between the steps of a run."""
        return int(self.of.header["topology"]["num_workers"])

    def without(self, first_step: int, by: int, first: int) -> tuple["Given", int]:
        """Return the steps that stay, and the rows that go: steps from `first_step` on with remainder `first` by `by`.

        A run has steps `num_workers` apart: of a DataLoader's worker that begins again, either all or none go.
        """
        runs = self.runs.copy()
        affected = np.ones(len(runs), dtype=bool) if by == 1 else runs[:, 0] % by == first % by
        stay = np.clip(-(-(first_step - runs[:, 0]) // self.num_workers), 0, runs[:, 1])
        stay = np.where(affected, stay, runs[:, 1])
        gone = int(((runs[:, 1] - stay) * runs[:, 4]).sum())
        runs[:, 1] = stay
        return Given(of=self.of, runs=runs[stay > 0]), gone

    def steps(self) -> Int64s:
        """Return the steps, ascending and distinct."""
        first, count, by = self.runs[:, 0], self.runs[:, 1], self.num_workers
        return np.unique(np.repeat(first, count) + by * ranges(np.zeros_like(count), count))


class Windows:
    """Rows of the windows of one epoch. problems: a line for each window in another order than seed and epoch give."""

    def __init__(self, seed: int, epoch: int) -> None:
        self._seed, self._epoch = seed, epoch
        self.problems: list[str] = []

    def runs(self, given: Given) -> Iterator[tuple[Int64s, Int64s | None]]:
        """Yield the runs of each window, and the plan row of each row of the window; None for runs of plan rows."""
        runs = given.runs[np.argsort(given.runs[:, 2], kind="stable")]
        for of_window in np.split(runs, np.flatnonzero(np.diff(runs[:, 2])) + 1) if len(runs) else ():
            number = int(of_window[0, 2])
            yield of_window, None if number == PLAN_ROWS else self._rows_of(given.of, number)

    def _rows_of(self, found: PassFound, number: int) -> Int64s:
        """Return the plan row of each row of a window."""
        window = found.windows[number]
        _, count, checksum, first, num_inputs, num_order = window[:6].tolist()
        inputs = window[6 : 6 + 3 * num_inputs].reshape(num_inputs, 3)
        rows = np.concatenate(
            [
                np.arange(start, start + length)
                if source == PLAN_ROWS
                else self._rows_of(found, source)[start : start + length]
                for source, start, length in inputs.tolist()
            ]
        )
        order = window[6 + 3 * num_inputs :]
        if not num_order:
            key = int(inputs[0, 1])
            whole = permutation(len(rows), seed=self._seed, epoch=self._epoch, purpose=Purpose.WINDOW, index=key)
            begin = int(np.flatnonzero(whole == first)[0]) if 0 <= first < len(whole) else 0
            order = whole[begin : begin + count]
        if len(order) != count or order_checksum(order) != checksum:
            self.problems.append(f"The window of plan row {int(rows[0]):,} did not come in the order of its epoch.")
            return np.resize(rows, count)
        result: Int64s = rows[order]
        return result


def given_spans(
    given: Given, windows: Windows, planner: "Planner | None", problems: list[str]
) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield (starts, stops) of the plan rows that a pass gave; compare its steps with the plan, if there is a planner.

    problems: List that gets the problem of steps with other rows than planned.
    """
    header = given.of.header
    rank, check = f"Rank {header['rank']} of {header['topology']['num_ranks']}", None
    try:
        check = None if planner is None else StepCheck(planner, header)
    except LoaderError as error:
        problems.append(f"{rank} began where the plan has no step: {error}")
    for runs, rows_of in windows.runs(given):
        first, rows = runs[:, 3], runs[:, 1] * runs[:, 4]
        yield (first, first + rows) if rows_of is None else _as_spans(np.sort(rows_of[ranges(first, rows)]))
        if check is not None:
            for step_rows in _step_rows(runs, rows_of, given.num_workers):
                check.add(step_rows)
    if check is not None and len(wrong := check.wrong_steps()):
        problems.append(
            f"{rank} had other rows than planned in {plural(len(wrong), 'step')}, from step {wrong[0]:,} on."
        )


def _step_rows(runs: Int64s, rows_of: Int64s | None, num_workers: int) -> Iterator[StepRows]:
    """Yield the steps of runs of one window, and the plan rows that were given in the steps. See `Windows.runs`."""
    sizes = runs[:, 1] * runs[:, 4]
    ends = np.cumsum(sizes)
    for begin in range(0, int(ends[-1]), _ROWS_AT_ONCE):
        numbers = np.arange(begin, min(begin + _ROWS_AT_ONCE, int(ends[-1])))
        run = np.searchsorted(ends, numbers, side="right")
        place = numbers - (ends - sizes)[run]
        rows = runs[run, 3] + place
        yield runs[run, 0] + num_workers * (place // runs[run, 4]), rows if rows_of is None else rows_of[rows]


def _as_spans(rows: Int64s) -> tuple[Int64s, Int64s]:
    """Return sorted rows as spans; a row that is there twice begins a span."""
    if len(rows) == 0:
        return rows, rows
    begins = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
    ends = np.append(begins[1:], len(rows)) - 1
    return rows[begins], rows[ends] + 1
