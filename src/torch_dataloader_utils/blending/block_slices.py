"""Let the sources of a blend give slices of their blocks in place of batches: only the blend then makes batches.

A batch of a source would be views of all its columns, which mixing joins column by column. Slices of blocks of all
sources are joined by one call, see `Shaper.concat`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_dataloader_utils._arrow.schema import is_text
from torch_dataloader_utils._core.block import Block, Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.shape.arrow_types import ObjectType
from torch_dataloader_utils.shape.prepare import PreparingShaper
from torch_dataloader_utils.shape.shapers import ColumnShaper
from torch_dataloader_utils.stream.batch_groups import BlockSlice
from torch_dataloader_utils.stream.loader import TableDataLoader


def joint_shaper(loaders: Sequence[TableDataLoader[Any]]) -> Shaper | None:
    """Return the shaper that can join blocks of all loaders; None if their batches have to be joined.

    Blocks of equal shapers have the same columns. Batches of Python objects other than text are joined as lists, which
    may hold more than Arrow can take rows of.
    """
    first, *others = [loader.dataset.pipeline.shaper for loader in loaders]
    shaper = first.shaper if isinstance(first, PreparingShaper) else first
    if not isinstance(shaper, ColumnShaper) or not all(loader.gives_shaped_batches for loader in loaders):
        return None
    kinds = [column.kind for column in shaper.columns]
    has_objects = any(isinstance(kind, ObjectType) and not is_text(kind.data_type) for kind in kinds)
    return None if has_objects or any(other != first for other in others) else first


@dataclass(frozen=True, slots=True)
class SliceShaper:
    """Shaper that gives slices of the blocks of `shaper` in place of batches. Implements `_core.block.Shaper`."""

    shaper: Shaper

    def use_memory(self, memory: RecycledMemory) -> None:
        """See Shaper."""
        self.shaper.use_memory(memory)

    def with_copied_columns(self, least_bytes: int) -> "SliceShaper":
        """See Shaper."""
        return replace(self, shaper=self.shaper.with_copied_columns(least_bytes))

    def block(self, parts: Iterable[Any]) -> "SlicedBlock":
        """See Shaper."""
        return SlicedBlock(self.shaper.block(parts))

    def concat(self, blocks: Sequence[Any], spans: Int64s | None = None) -> "SlicedBlock":
        """See Shaper."""
        return SlicedBlock(self.shaper.concat([block.rows for block in blocks], spans))

    def gather(self, blocks: Sequence[Any], order: Int64s) -> "SlicedBlock":
        """See Shaper."""
        return SlicedBlock(self.shaper.gather([block.rows for block in blocks], order))


@dataclass(frozen=True, slots=True, eq=False)
class SlicedBlock:
    """Block that gives slices of the block `rows` in place of batches. Implements `_core.block.Block`."""

    rows: Block

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.rows.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows in memory."""
        return self.rows.num_bytes

    def slice(self, start: int, stop: int) -> "SlicedBlock":
        """Return rows [start, stop), a view."""
        return SlicedBlock(self.rows.slice(start, stop))

    def to_batch(self) -> BlockSlice:
        """Return all rows."""
        return BlockSlice.of(self.rows)

    def split(self, batch_rows: int) -> Iterator[BlockSlice]:
        """Yield slices of `batch_rows` rows; the last slice may be shorter."""
        for start in range(0, self.num_rows, batch_rows):
            yield BlockSlice(self.rows, start, min(start + batch_rows, self.num_rows))
