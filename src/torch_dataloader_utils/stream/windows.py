"""The permuted windows of one lane, which decoding threads gather ahead of the trainer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from torch_dataloader_utils._core.block import Block, MeasuredBlock, Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.program import WorkerProgram
from torch_dataloader_utils._core.units import PLAIN, Units
from torch_dataloader_utils.stream.lane_blocks import LaneBlocks

if TYPE_CHECKING:
    from torch_dataloader_utils.stream.follow_up import FollowUp
    from torch_dataloader_utils.stream.row_span import RowSpan

# Windows gathered ahead of the trainer's current one; part of the documented memory of a rank.
_WINDOWS_AHEAD = 2


class LaneWindows:
    """Gives the rows of a lane's window units, which must be taken in order.

    The next windows are gathered ahead once their row groups are being decoded, so that the trainer's thread does no
    work for each row.
    """

    def __init__(
        self, program: WorkerProgram, units: Units, blocks: LaneBlocks, shaper: Shaper, *, exact: bool
    ) -> None:
        self._program = program
        self._units = units
        self._blocks = blocks
        self._shaper = shaper
        self._exact = exact
        self._gathered: dict[int, FollowUp[RowSpan, Block]] = {}

    def take(self, unit: int) -> Block:
        """The rows of a unit, which are part of its window, in the window's order."""
        if unit not in self._gathered:
            self._start(unit)
        self._blocks.learn_growth(self._blocks.uses_of(unit))
        self._blocks.prefetch()
        self._look_ahead(unit)
        rows = self._blocks.wait(self._gathered.pop(unit))
        self._blocks.finish(self._blocks.uses_of(unit))
        return rows

    def close(self) -> None:
        """Drop what is gathered ahead; it refers to this."""
        self._gathered.clear()

    def _look_ahead(self, unit: int) -> None:
        for ahead in range(unit + 1, min(unit + 1 + _WINDOWS_AHEAD, len(self._units))):
            if self._units.window[ahead] == PLAIN or not self._blocks.has_begun(self._blocks.uses_of(ahead)):
                return
            if ahead not in self._gathered:
                self._start(ahead)

    def _start(self, unit: int) -> None:
        uses = self._blocks.uses_of(unit)
        self._gathered[unit] = self._blocks.gather(uses, lambda blocks: self._gather(unit, blocks))

    def _gather(self, unit: int, blocks: Sequence[Block]) -> Block:
        order = self._order(unit, blocks)
        start, stop = int(self._units.start[unit]), int(self._units.stop[unit]) if self._exact else len(order)
        return self._shaper.gather(blocks, order[start:stop])

    def _order(self, unit: int, blocks: Sequence[Block]) -> Int64s:
        key = int(self._units.windows.keys[self._units.window[unit]])
        program = self._program
        if program.by_length is not None:
            lengths = np.concatenate([block.lengths for block in cast("Sequence[MeasuredBlock]", blocks)])
            return program.by_length.order(lengths, seed=program.seed, epoch=program.epoch, index=key)
        rows = sum(block.num_rows for block in blocks)
        return permutation(rows, seed=program.seed, epoch=program.epoch, purpose=Purpose.WINDOW, index=key)
