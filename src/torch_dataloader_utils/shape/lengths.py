"""Measure the lengths of rows by one column, and keep the lengths with blocks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.schema import is_number, is_text
from torch_dataloader_utils._core.block import Block, Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.token_budget import Lengths
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.shape.arrow_types import decoded_type, is_ragged
from torch_dataloader_utils.shape.raw_numbers import plain


def check_has_lengths(schema: pa.Schema, column: str, option: str) -> None:
    """Raise ConfigError unless `measure_rows` can measure this column. option: name of the option, for messages."""
    if schema.names.count(column) != 1:
        raise ConfigError(
            f"{option}={column!r}: the data set has no such column, or several of that name. Name a column that it has "
            f"once: {', '.join(schema.names)}."
        )
    data_type = decoded_type(schema.field(column).type)
    if not (is_number(data_type) or is_ragged(data_type) or is_text(data_type)):
        raise ConfigError(
            f"{option}={column!r} is {schema.field(column).type}, which has no length. Name a column of integers or "
            "floats (the length is the value), lists (number of items) or text (number of bytes)."
        )


def measure_rows(array: pa.Array) -> Lengths:
    """Return the length of each row: the value of a number, the items of a list, the bytes of a text; 0 for a null.

    Numbers keep their dtype; lengths of lists and texts are int64.
    """
    array = plain(array)
    data_type = array.type
    if is_number(data_type):
        return np.asarray(array.fill_null(0).to_numpy(zero_copy_only=False))
    lengths = pc.binary_length(array) if is_text(data_type) else pc.list_value_length(array)
    return np.asarray(lengths.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthBlock:
    """Block with the length of each row; implements `_core.block.MeasuredBlock`."""

    rows: Block
    lengths: Lengths

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.rows.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes of rows and lengths in memory."""
        return self.rows.num_bytes + int(self.lengths.nbytes)

    def slice(self, start: int, stop: int) -> "LengthBlock":
        """Return rows [start, stop), a view."""
        return LengthBlock(rows=self.rows.slice(start, stop), lengths=self.lengths[start:stop])

    def to_batch(self) -> Any:
        """Return all rows as one batch."""
        return self.rows.to_batch()

    def split(self, batch_rows: int) -> Iterator[Any]:
        """Return an iterator over batches of `batch_rows` rows; the last batch may be shorter."""
        return self.rows.split(batch_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthShaper:
    """Shaper that adds the lengths of `column` to the blocks of `shaper`. The column need not be delivered.

    Joined and gathered blocks have no lengths. Implements `_core.block.Shaper`.
    """

    shaper: Shaper
    column: str

    def use_memory(self, memory: RecycledMemory) -> None:
        """See Shaper."""
        self.shaper.use_memory(memory)

    def with_copied_columns(self, least_bytes: int) -> "LengthShaper":
        """See Shaper."""
        return replace(self, shaper=self.shaper.with_copied_columns(least_bytes))

    def block(self, parts: Iterable[pa.RecordBatch]) -> LengthBlock:
        """Return the block of the delivered columns, with lengths. The record batches must have `column` too."""
        lengths: list[Lengths] = []
        rows = self.shaper.block(self._measured(parts, lengths))
        return LengthBlock(rows=rows, lengths=lengths[0])

    def _measured(self, parts: Iterable[pa.RecordBatch], lengths: list[Lengths]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            if self.column in part.schema.names:
                lengths.append(measure_rows(part.column(self.column)))
            yield part

    def concat(self, blocks: Sequence[Block], spans: Int64s | None = None) -> Block:
        """See Shaper."""
        return self.shaper.concat([_rows(block) for block in blocks], spans)

    def gather(self, blocks: Sequence[Block], order: Int64s) -> Block:
        """See Shaper."""
        return self.shaper.gather([_rows(block) for block in blocks], order)


def _rows(block: Block) -> Block:
    return block.rows if isinstance(block, LengthBlock) else block
