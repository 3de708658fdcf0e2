"""Lanes: one numbered sequence of micro-batches for the whole job, the same for any ranks and workers.

Chunks are dealt to G lanes and levelled, so that lane g holds the micro-batches g, g + G, g + 2G, ... of the epoch,
each of m rows (the last one of the epoch may be shorter). Who takes which of them: lane_deal.py.

    G=2, m=4, chunks of 4, 4, 5 rows      lane 0: numbers 0, 2      lane 1: 1, 3 (1 row)
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.level import Transfers, level_list, plan_transfers
from torch_dataloader_utils.plan.slice import rows_per_share, slice_units
from torch_dataloader_utils.plan.window import shuffle_windows


@dataclass(frozen=True, kw_only=True, eq=False)
class Lanes:
    """The rows of one epoch as numbered micro-batches.

    units: the epoch's chunks in their order. micro_rows: m, rows of a micro-batch.
    """

    units: Units
    options: PlanOptions
    num_lanes: int
    micro_rows: int

    @cached_property
    def num_rows(self) -> int:
        """Rows of the epoch."""
        return self.units.num_rows

    def rows_from(self, number: int) -> int:
        """Rows of the micro-batches from `number` to the last."""
        return max(0, self.num_rows - number * self.micro_rows)

    def lane_rest(self, lane: int, number: int) -> Units:
        """The rows of one lane from the first of its micro-batches that is not below `number`."""
        before = max(0, -(-(number - lane) // self.num_lanes))
        return self._lane(lane).split_at(before * self.micro_rows)[1]

    def sequence(self, number: int, rows: int) -> Units:
        """The `rows` rows of micro-batches number, number + 1, ..., in that order."""
        parts = []
        while rows > 0:
            part, _ = self.lane_rest(number % self.num_lanes, number).split_at(min(rows, self.micro_rows))
            parts.append(part)
            rows -= part.num_rows
            number += 1
        return Units.concat(parts)

    @cached_property
    def _lane_rows(self) -> Int64s:
        """Rows of every lane, int64 [num_lanes]."""
        whole, rest = divmod(self.num_rows, self.micro_rows)
        lanes = np.arange(self.num_lanes)
        rows: Int64s = (whole - lanes + self.num_lanes - 1) // self.num_lanes * self.micro_rows
        rows[whole % self.num_lanes] += rest
        return rows

    @cached_property
    def _transfers(self) -> Transfers:
        return plan_transfers(rows_per_share(self.units, self.num_lanes), self._lane_rows)

    @cached_property
    def _built(self) -> dict[int, Units]:
        return {}

    def _lane(self, lane: int) -> Units:
        """All rows of one lane, windows cut; built once."""
        if lane not in self._built:
            units = level_list(lane, lambda i: slice_units(self.units, i, self.num_lanes), self._transfers)
            self._built[lane] = shuffle_windows(units, self.options, self.micro_rows)
        return self._built[lane]
