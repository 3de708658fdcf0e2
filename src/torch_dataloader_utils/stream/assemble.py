"""Puts batches together from the lanes, as the schedule says: one at a time, or many at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch_dataloader_utils._core.block import Block, Shaper
from torch_dataloader_utils._core.program import Draws, Schedule, drawn_rows
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.batch_lots import Lot
from torch_dataloader_utils.stream.lane import LaneReader
from torch_dataloader_utils.stream.row_span import RowSpan

# Where lanes mix, most batches that are gathered at once, and most bytes of them: about as much as a window. One at a
# time is slow, because slicing 64 lanes of 51 columns takes 6 ms, whatever the rows.
_MOST_BATCHES = 64
_MOST_BYTES = 16 << 20


class Drawn(NamedTuple):
    """A batch of a lot: how many rows it has, and the row group of its last row (for messages)."""

    rows: int
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembler:
    """Takes rows from lanes, in the order of the schedule.

    says_where: whether `Drawn.where` is needed; it takes time to compute.
    """

    schedule: Schedule
    lanes: Sequence[LaneReader]
    shaper: Shaper
    says_where: bool

    @property
    def mixes(self) -> bool:
        """Whether batches have rows of several lanes."""
        return bool(self.schedule.num_batches) and len(self.schedule.draws(0)) > 1

    def batch(self, draws: Draws) -> Block:
        """The rows of one batch.

        Raises:
            InternalError: a lane has fewer rows than were planned.
        """
        lot = Lot()
        self._draw(draws, lot)
        return lot.block(self.shaper)

    def spans(self, draws: Draws) -> list[RowSpan]:
        """The rows of these draws, as spans of blocks.

        Raises:
            InternalError: a lane has fewer rows than were planned.
        """
        spans = [span for lane, rows in draws for span in self.lanes[lane].take(rows)]
        found, wanted = sum(span.stop - span.start for span in spans), drawn_rows(draws)
        if found != wanted:
            raise InternalError(f"A batch of {wanted} planned rows has {found}. Please report this with the plan.")
        return spans

    def lots(self, length: int) -> Iterator[tuple[Block, list[Drawn]]]:
        """The rows of several batches as one block, and what each batch is.

        `length` batches at a time; where lanes mix, up to twice as many each time, a multiple of `length`.

        Raises:
            InternalError: a lane has fewer rows than were planned.
        """
        first, at_once, count = 0, length, self.schedule.num_batches or 0
        while first < count:
            lot = Lot()
            numbers = range(first, min(first + at_once, count))
            batches = [self._draw(self.schedule.draws(number), lot) for number in numbers]
            block = lot.block(self.shaper)
            yield block, batches
            first += len(batches)
            if self.mixes:
                most = min(_MOST_BATCHES, _MOST_BYTES * len(batches) // max(block.num_bytes, 1))
                at_once = max(length, min(2 * at_once, most) // length * length)

    def _draw(self, draws: Draws, lot: Lot) -> Drawn:
        before = lot.num_rows
        lot.add(self.spans(draws))
        return Drawn(rows=lot.num_rows - before, where=self.lanes[draws[-1][0]].where if self.says_where else "")
