"""Deals without row counts: whole row groups, no levelling, cursors instead of steps.

Ranks may then differ in steps, and a state has a cursor of each worker: (units finished, rows delivered of the next
unit). With the cursors of all ranks the rest can be dealt again to any topology.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.assign import assign_units, worker_order
from torch_dataloader_utils.plan.slice import slice_units
from torch_dataloader_utils.plan.strategy_check import RankUnits
from torch_dataloader_utils.plan.window import group_windows


@dataclass(frozen=True, kw_only=True, eq=False)
class InexactDeal:
    """Deals whole units in windows of whole row groups: sliced to ranks, by LPT to workers, or as a strategy says.

    units: chunks in the epoch's order, or the window units that remain of an epoch.
    given: a strategy's units for every rank and worker, instead of slicing and LPT.
    """

    units: Units
    space: RowSpace
    options: PlanOptions
    epoch: int
    topology: Topology
    given: tuple[RankUnits, ...] | None = None

    def rank(self, rank: int) -> list[Units]:
        """The window units of each worker of a rank."""
        if self.given is not None:
            workers = list(self.given[rank])
        else:
            mine = slice_units(self.units, rank, self.topology.num_ranks)
            order = worker_order(self.topology.num_workers, self.options, self.epoch, rank)
            workers = assign_units(mine, self._weights(mine), order)
        return [self._windows(lane) for lane in workers]

    def _windows(self, lane: Units) -> Units:
        if len(lane) and not lane.is_plain.any():
            return lane
        options = self.options
        return group_windows(lane, self.space.group_start, options.shuffle_rows, options.interleave)

    def _weights(self, units: Units) -> Int64s:
        if units.is_plain.all():
            return self.space.bytes_between(units.start, units.stop)
        windows = units.windows
        pieces = self.space.bytes_between(windows.piece_start, windows.piece_stop)
        weights: Int64s = np.add.reduceat(pieces, windows.offsets[:-1])[units.window]
        return weights


def after_cursor(lane: Units, cursor: Cursor) -> Units:
    """The rest of a worker's lane: its next unit without the rows already delivered, then the later units."""
    finished, rows = cursor
    rest = lane.take(slice(finished, None))
    if rows == 0 or len(rest) == 0:
        return rest
    start = rest.start.copy()
    start[0] += rows
    return Units(start=start, stop=rest.stop, window=rest.window, windows=rest.windows)


def remaining_after(deal: InexactDeal, cursors: Sequence[Sequence[Cursor] | None]) -> Units:
    """The rows that no rank has delivered.

    cursors: `cursors[rank][worker]` for the deal's topology; None for a rank that has delivered all its rows.
    """
    parts: list[Units] = []
    for rank, of_rank in enumerate(cursors):
        if of_rank is not None:
            parts.extend(after_cursor(lane, cursor) for lane, cursor in zip(deal.rank(rank), of_rank, strict=True))
    return Units.concat(parts)
