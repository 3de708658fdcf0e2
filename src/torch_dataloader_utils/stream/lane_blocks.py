"""The blocks of one lane: each row group is decoded once, and kept from its first use to its last."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import TypeVar

import numpy as np

from torch_dataloader_utils._core.block import Block
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._core.units import PLAIN, Units
from torch_dataloader_utils._core.uses import group_uses
from torch_dataloader_utils.stream.afterwards import Awaited, FollowUp
from torch_dataloader_utils.stream.ahead import DecodeAhead
from torch_dataloader_utils.stream.decode import Decoder
from torch_dataloader_utils.stream.row_span import RowSpan, in_few_blocks
from torch_dataloader_utils.stream.together import JointDecode

T = TypeVar("T")


class LaneBlocks:
    """The rows of each use of a row group, in the order of `uses`.

    Plain units take them: `take`, `take_several`. Windows are gathered from several uses in the decoding threads
    (`gather`) and released later (`finish`). Both ways a row group is let go of after its last use.
    """

    def __init__(self, decoder: Decoder, work: WorkerInput, units: Units) -> None:
        self.uses = group_uses(units, work.group_start, work.group_stop)
        self._decoder = decoder
        self._exact = work.exact
        self._use_of_unit = np.searchsorted(self.uses.unit, np.arange(len(units) + 1), side="left").tolist()
        # Later uses overwrite earlier ones.
        self._last_use = {group: use for use, group in enumerate(self.uses.group.tolist())}
        # The row groups of one job may be of several units, of which windows take theirs in another order.
        self._takes_several = work.exact and bool((units.window == PLAIN).all())
        self._ahead = DecodeAhead(decoder, self.uses, decodes_rows_needed=work.exact)

    def prefetch(self) -> None:
        """Start decoding the next row groups, as far as the budget goes."""
        self._ahead.prefetch()

    def take(self, use: int) -> Block:
        """The rows of one use of a row group; to be taken in order."""
        pending = self._ahead.rows(self._group(use))
        self.prefetch()
        block = self._cut(use, self.wait(pending)).rows()
        self.finish(range(use, use + 1))
        return block

    def take_several(self, use: int) -> tuple[range, Block]:
        """The uses from this one on that are at hand as one block, and their rows: those of one job, or this use alone.

        Several only where whole row groups follow each other as they were decoded.
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
        """Let a decoding thread do a job over the rows of these uses, as soon as they are there.

        Their row groups are begun now if they were not, whatever the budget says.
        """
        needed = [self._ahead.rows(self._group(use)) for use in uses]
        return self._decoder.run_after(needed, lambda wholes: job(in_few_blocks(map(self._cut, uses, wholes))))

    def learn_growth(self, uses: range) -> None:
        """Wait for the first of these uses if nothing was decoded yet, and nobody knows how far the budget goes.

        What comes behind a window would be begun only when all of it is there.
        """
        if uses and not self._decoder.knows_growth:
            self._decoder.counters.count_stall(self._ahead.rows(self._group(uses.start)).exception)

    def finish(self, uses: range) -> None:
        """These uses were taken; a row group whose last use is among them gives its budget back."""
        for use in uses:
            group = self._group(use)
            if self._last_use[group] == use:
                self._ahead.done(group)

    def wait(self, pending: Awaited[T]) -> T:
        """What a decoding thread gives; counted as a stall if it is not there yet."""
        return pending.result() if pending.done() else self._decoder.counters.count_stall(pending.result)

    def has_begun(self, uses: range) -> bool:
        """Whether decoding of all these uses has begun, so that asking for them takes no more of the budget."""
        return all(self._ahead.begun(self._group(use)) is not None for use in uses)

    def comes(self, use: int) -> bool:
        """Whether the row group of a use is under way and decodes; waits for it."""
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
        """The joined block of a job, if it is just the rows of these uses; None too if not all of it decodes."""
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
        """The rows of a use; all that the row group has, where counts are not known."""
        if not self._exact:
            return whole
        return whole.cut(int(self.uses.start[use]), int(self.uses.stop[use]))
