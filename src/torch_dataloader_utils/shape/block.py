"""Blocks of columns, which hold a row group, a window or joined rows; implements `_core.block.Block`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from torch_dataloader_utils.shape.columns import Column, concat_columns, gather_columns
from torch_dataloader_utils.shape.gather import Gatherer
from torch_dataloader_utils.shape.tensor_batch import TensorBatch


class Output(Protocol):
    """The form of batches that a block gives: tensors or ndarrays."""

    def values(self, columns: Sequence[Column]) -> Iterable[Any]:
        """All rows of every column."""
        ...

    def pieces(self, columns: Sequence[Column], batch_rows: int) -> Sequence[Iterable[Any]]:
        """For every column its pieces of `batch_rows` rows, the last one shorter if it must be."""
        ...

    def batch(self, columns: Iterable[tuple[str, Any]], num_rows: int) -> dict[str, Any]:
        """The batch of these named columns."""
        ...


@dataclass(frozen=True, slots=True)
class TensorOutput:
    """`TensorBatch`es of tensors, `Ragged`s and Python lists."""

    def values(self, columns: Sequence[Column]) -> Iterable[Any]:
        """All rows of every column."""
        return (column.value() for column in columns)

    def pieces(self, columns: Sequence[Column], batch_rows: int) -> Sequence[Iterable[Any]]:
        """For every column its pieces of `batch_rows` rows."""
        return [column.split(batch_rows) for column in columns]

    def batch(self, columns: Iterable[tuple[str, Any]], num_rows: int) -> TensorBatch:
        """The batch of these named columns."""
        return TensorBatch(columns, num_rows=num_rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnBlock:
    """Rows as columns that were converted once; every batch is made of views of them."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    num_rows: int
    output: Output

    @property
    def num_bytes(self) -> int:
        """Memory that the rows take."""
        return sum(column.num_bytes for column in self.columns)

    def slice(self, start: int, stop: int) -> "ColumnBlock":
        """Rows [start, stop), a view; rows past the end are left out, as in a Python slice."""
        stop = min(stop, self.num_rows)
        start = min(start, stop)
        if stop - start == self.num_rows:
            return self
        columns = tuple(column.slice(start, stop) for column in self.columns)
        return ColumnBlock(names=self.names, columns=columns, num_rows=stop - start, output=self.output)

    def to_batch(self) -> Any:
        """All rows as one batch."""
        return self.output.batch(zip(self.names, self.output.values(self.columns), strict=True), self.num_rows)

    def split(self, batch_rows: int) -> Iterator[Any]:
        """Batches of `batch_rows` rows, the last one shorter if it must be; a block of no rows gives none.

        Every column is cut once for all batches, so that a batch costs little more than its views: 51 columns
        about 20 us, whatever `batch_rows` is.
        """
        output, names = self.output, self.names
        if not self.columns or not self.num_rows:
            for start in range(0, self.num_rows, batch_rows):
                yield output.batch((), min(batch_rows, self.num_rows - start))
            return
        for pieces in zip(*output.pieces(self.columns, batch_rows), strict=True):
            yield output.batch(zip(names, pieces, strict=True), 0)


def concat_blocks(blocks: Sequence[ColumnBlock]) -> ColumnBlock:
    """The rows of all blocks, one after the other; one block is itself."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    num_rows = sum(block.num_rows for block in blocks)
    columns = concat_columns(list(zip(*(block.columns for block in blocks), strict=True)), num_rows)
    return ColumnBlock(names=first.names, columns=columns, num_rows=num_rows, output=first.output)


def gather_blocks(blocks: Sequence[ColumnBlock], order: Tensor) -> ColumnBlock:
    """Row order[i] of the blocks' concatenation, for all i; order is int64, shape [rows]."""
    first = blocks[0]
    parts = list(zip(*(block.columns for block in blocks), strict=True))
    columns = gather_columns(first.names, parts, Gatherer(order))
    return ColumnBlock(names=first.names, columns=columns, num_rows=len(order), output=first.output)
