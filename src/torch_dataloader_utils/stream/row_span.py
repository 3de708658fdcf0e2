"""Rows that lie next to each other in a block."""

from collections.abc import Iterable
from typing import NamedTuple, Self

from torch_dataloader_utils._core.block import Block


class RowSpan(NamedTuple):
    """Rows [start, stop) of a block."""

    block: Block
    start: int
    stop: int

    @classmethod
    def of(cls, block: Block) -> Self:
        """All rows of a block."""
        return cls(block, 0, block.num_rows)

    def cut(self, start: int, stop: int) -> Self:
        """Rows [start, stop) of this span; rows past its end are left out."""
        return self._replace(start=min(self.start + start, self.stop), stop=min(self.start + stop, self.stop))

    def rows(self) -> Block:
        """The rows, as a block of their own."""
        return self.block.slice(self.start, self.stop)


def in_few_blocks(spans: Iterable[RowSpan]) -> list[Block]:
    """The rows of all spans, in order; spans that follow each other in one block become one block."""
    runs: list[RowSpan] = []
    for span in spans:
        if runs and runs[-1].block is span.block and runs[-1].stop == span.start:
            runs[-1] = runs[-1]._replace(stop=span.stop)
        else:
            runs.append(span)
    return [run.rows() for run in runs]
