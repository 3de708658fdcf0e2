"""The blocks of one lane: each row group is decoded once, and kept from its first use to its last."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import TypeVar

import numpy as np

from torch_dataloader_utils._core.block import Block
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._core.units import PLAIN, Units
from torch_dataloader_utils._core.uses import group_uses
from torch_dataloader_utils.stream.decode import Decoder
from torch_dataloader_utils.stream.decode_ahead import DecodeAhead
from torch_dataloader_utils.stream.follow_up import Awaited, FollowUp
from torch_dataloader_utils.stream.row_span import RowSpan, in_few_blocks
from torch_dataloader_utils.stream.small_groups import JointDecode

T = TypeVar("T")


class LaneBlocks:
    """The rows of each use of a row group by the lane's units, in the order of `uses`.

    Plain units take the rows of their uses: `take`, `take_several`. Windows are gathered from several uses in the
    decoding threads (`gather`) and released later (`finish`). A row group is dropped after its last use.
    """

    def __init__(self, decoder: Decoder, work: WorkerInput, units: Units) -> None:
        self.uses = group_uses(units, work.group_start, work.group_stop)
        self._decoder = decoder
        self._exact = work.exact
        self._use_of_unit = np.searchsorted(self.uses.unit, np.arange(len(units) + 1), side="left").tolist()
        # Later uses overwrite earlier ones.
        self._last_use = {group: use for use, group in enumerate(self.uses.group.tolist())}
        # The row groups of one job may belong to several units, and windows take theirs in another order.
        self._takes_several = work.exact and bool((units.window == PLAIN).all())
        self._ahead = DecodeAhead(decoder, self.uses, decodes_rows_needed=work.exact)

    def prefetch(self) -> None:
        """Start decoding the next row groups, as far as the budget goes."""
        self._ahead.prefetch()

    def take(self, use: int) -> Block:
        """The rows of one use; uses must be taken in order."""
        pending = self._ahead.rows(self._group(use))
        self.prefetch()
        block = self._cut(use, self.wait(pending)).rows()
        self.finish(range(use, use + 1))
        return block

    def take_several(self, use: int) -> tuple[range, Block]:
        """The rows of this use, with those of the next uses if one job decoded all into one block: (uses, rows).

        Several uses only where they are whole row groups in the order in which they were decoded.
        """
        together = self._ahead.joined(self._group(use)) if self._takes_several else None
        uses = range(use, use + (1 if together is None else len(together.groups)))
        rows = None if together is None else self._joined(together, slice(uses.start, uses.stop))
        if rows is None:
            return range(use, use + 1), self.take(use)
        self.finish(uses)
        self.prefetch()
        return uses, rows

    def gather(self, uses: range, job: Callable[[Sequence[Block]], Block]) -> FollowUp[RowSpan, Block]:
        """Have a decoding thread run a job on the rows of these uses, as soon as they are decoded.

        Starts decoding their row groups if need be, even beyond the budget.
        """
        needed = [self._ahead.rows(self._group(use)) for use in uses]

        def gathered(wholes: Sequence[RowSpan]) -> Block:
            with self._decoder.counters.decoding():
                return job(in_few_blocks(map(self._cut, uses, wholes)))

        return self._decoder.run_after(needed, gathered)

    def learn_growth(self, uses: range) -> None:
        """Wait for the first of these uses if nothing was decoded yet, so that the budget can be judged.

        Otherwise what follows a window would be started only once the whole window is decoded.
        """
        if uses and not self._decoder.knows_growth:
            self._decoder.counters.count_stall(self._ahead.rows(self._group(uses.start)).exception)

    def finish(self, uses: range) -> None:
        """These uses were taken: row groups whose last use is among them are dropped."""
        for use in uses:
            group = self._group(use)
            if self._last_use[group] == use:
                self._ahead.done(group)

    def wait(self, pending: Awaited[T]) -> T:
        """The result of a decoding thread; waiting for it is counted as a stall."""
        return pending.result() if pending.done() else self._decoder.counters.count_stall(pending.result)

    def has_begun(self, uses: range) -> bool:
        """Whether all row groups of these uses are being decoded or are decoded."""
        return all(self._ahead.begun(self._group(use)) is not None for use in uses)

    def is_ready(self, use: int) -> bool:
        """Whether the row group of a use was started and decoded without an error; waits for that."""
        pending = self._ahead.begun(self._group(use))
        return pending is not None and self._decoder.counters.count_stall(pending.exception) is None

    def uses_of(self, unit: int) -> range:
        """The uses of row groups that one unit of the lane has."""
        return range(self._use_of_unit[unit], self._use_of_unit[unit + 1])

    def where(self, use: int) -> str:
        """The row group of a use, for messages."""
        return self._decoder.where(self._group(use))

    def _group(self, use: int) -> int:
        return int(self.uses.group[use])

    def _joined(self, together: JointDecode, uses: slice) -> Block | None:
        """The block of a job, if it has just the rows of these uses; None if it has others, or did not decode."""
        if self.uses.group[uses].tolist() != together.groups:
            return None
        try:
            rows = self.wait(together)
        except CancelledError:
            return None
        if rows is None:
            return None
        is_whole = not self.uses.start[uses].any() and int(self.uses.stop[uses].sum()) == rows.num_rows
        return rows if is_whole else None

    def _cut(self, use: int, whole: RowSpan) -> RowSpan:
        """The rows of a use, out of those of its row group; all of them where row counts are not known."""
        if not self._exact:
            return whole
        return whole.cut(int(self.uses.start[use]), int(self.uses.stop[use]))
