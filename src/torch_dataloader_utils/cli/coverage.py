"""Checks that a plan delivers every row once, by adding up the delivered rows of all lanes of all ranks.

lanes  →  delivered units  →  row intervals  →  rows covered never, once, more often
"""

from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.epoch_plan import EpochPlan

_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Delivered rows of the lanes of all ranks, compared with the rows of the data.

    missing_rows: rows delivered never. repeated_rows: deliveries beyond the first. allowed_missing, allowed_repeated:
    the numbers that the plan announces (drop_last; fewer rows than ranks). where: row groups of the first missing or
    repeated rows.
    """

    delivered_rows: int
    missing_rows: int
    repeated_rows: int
    allowed_missing: int
    allowed_repeated: int
    where: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every row is delivered as often as the plan says."""
        return self.missing_rows == self.allowed_missing and self.repeated_rows == self.allowed_repeated


def check_coverage(plan: EpochPlan) -> Coverage:
    """Add up the delivered rows of every worker of every rank.

    If row counts are not known, plan rows are counted instead: row groups are then never cut, so each row group is
    delivered whole or not at all.
    """
    ranks = [0] if plan.is_shared else range(plan.topology.num_ranks)
    spans = _Spans()
    for rank in ranks:
        for program in plan.programs(rank):
            for units in _delivered(program):
                spans.add(units, is_exact=plan.is_exact)
    space = plan.inputs.space
    start, stop = spans.intervals()
    edges = np.unique(np.concatenate([start, stop, [0, space.num_rows]]))
    depth = np.zeros(len(edges), dtype=np.int64)
    np.add.at(depth, np.searchsorted(edges, start), 1)
    np.add.at(depth, np.searchsorted(edges, stop), -1)
    times = np.cumsum(depth)[:-1]
    lengths = np.diff(edges)
    wrong = edges[:-1][(times != 1) & (lengths > 0)]
    return Coverage(
        delivered_rows=spans.rows,
        missing_rows=int(lengths[times == 0].sum()) + spans.missing_rows,
        repeated_rows=int(((times - 1) * lengths)[times > 1].sum()) + spans.repeated_rows,
        allowed_missing=plan.dropped_rows,
        allowed_repeated=plan.repeated_rows,
        where=_groups(plan, np.concatenate([wrong, spans.torn])),
    )


def _delivered(program: WorkerProgram) -> list[Units]:
    """Return the units of each lane, up to the last row that the batching takes."""
    count = program.batching.num_batches
    if count is None:
        return list(program.lanes)
    rows = [0] * len(program.lanes)
    for batch in range(count):
        for lane, taken in program.batching.parts(batch):
            rows[lane] += taken
    return [lane.split_at(taken)[0] for lane, taken in zip(program.lanes, rows, strict=True)]


class _Spans:
    """Delivered spans: plain rows, and positions of each window."""

    def __init__(self) -> None:
        self.rows = 0
        self.missing_rows = 0
        self.repeated_rows = 0
        self.torn: Int64s = np.zeros(0, dtype=np.int64)
        self._plain: list[tuple[Int64s, Int64s]] = [(np.zeros(0, dtype=np.int64),) * 2]
        self._pieces: dict[int, tuple[Int64s, Int64s]] = {}
        self._positions: dict[int, list[tuple[int, int]]] = {}

    def add(self, units: Units, *, is_exact: bool) -> None:
        """Add the delivered units of one lane."""
        plain = units.is_plain
        self._plain.append((units.start[plain], units.stop[plain]))
        for unit in np.flatnonzero(~plain).tolist():
            window = int(units.window[unit])
            pieces = units.windows.pieces(window)
            key = int(pieces[0][0])
            self._pieces[key] = pieces
            held = int((pieces[1] - pieces[0]).sum())
            span = (int(units.start[unit]), int(units.stop[unit])) if is_exact else (0, held)
            self._positions.setdefault(key, []).append(span)
            self.rows += span[1] - span[0]
        self.rows += int((units.stop - units.start)[plain].sum())

    def intervals(self) -> tuple[Int64s, Int64s]:
        """Return starts and stops of covered rows; a window is covered once, and its wrong rows are summed apart."""
        torn = []
        for key, spans in self._positions.items():
            start, stop = self._pieces[key]
            missing, repeated = _gaps(sorted(spans), int((stop - start).sum()))
            self.missing_rows += missing
            self.repeated_rows += repeated
            if missing or repeated:
                torn.append(key)
        self.torn = np.array(torn, dtype=np.int64)
        parts = [*self._plain, *self._pieces.values()]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _gaps(spans: list[tuple[int, int]], size: int) -> tuple[int, int]:
    """Return (positions of [0, size) in no span, positions in spans beyond the first); spans are sorted."""
    missing = repeated = reached = 0
    for start, stop in spans:
        missing += max(0, start - reached)
        repeated += max(0, min(reached, stop) - start)
        reached = max(reached, stop)
    return missing + max(0, size - reached), repeated


def _groups(plan: EpochPlan, rows: Int64s) -> tuple[str, ...]:
    """Return the places of the first row groups with such rows."""
    if len(rows) == 0:
        return ()
    found = np.unique(plan.inputs.space.group_of(rows))[:_NAMED]
    tasks = [plan.inventory.task(group) for group in found.tolist()]
    return tuple(task.where for task in tasks)
