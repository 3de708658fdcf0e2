"""Hold the columns of a block: each kind of column stores, slices, joins and gathers its rows.

    Rows      numbers of one shape      a tensor [rows, ...]
    Matrix    stacked columns           a tensor [columns, rows]: one column after the other in memory
    Singles   columns of one number     a tensor [columns, rows] too; in a batch each column is an entry of its own
    Lists     ragged numbers            values [total, ...] and offsets [rows + 1]
    Objects   everything else           an Arrow array, Python objects only on the way out

`split` gives the columns of torch batches, and `column_blocks.ArrayOutput` gives the columns of numpy batches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils._arrow.batches import array_for_take, no_take
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils.shape.arrow_types import python_objects
from torch_dataloader_utils.shape.gather import (
    check_order,
    gather_cpu_lists,
    gather_rows,
    is_flat,
    join,
    join_lists,
    place_columns,
    split_batches,
    split_columns,
)
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.reused_memory import new_tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Column of numbers: `values` has shape [rows, ...]."""

    values: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows."""
        return self.values.nbytes

    def slice(self, start: int, stop: int) -> Self:
        """Return rows [start, stop), a view."""
        return type(self)(self.values[start:stop])

    def value(self) -> Tensor:
        """Return all rows."""
        return self.values

    def split(self, batch_rows: int) -> Iterator[Tensor]:
        """Return an iterator over views of `batch_rows` rows."""
        return split_batches(self.values, batch_rows)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return all rows, one part after the other."""
        return cls(join([part.values for part in parts]))

    @classmethod
    def gather(cls, parts: Sequence[Self], order: Tensor) -> Self:
        """Return the rows of the concatenation in this order."""
        return cls(gather_rows([part.values for part in parts], order))


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Matrix of stacked columns: `columns` has shape [columns, rows]; batches see its transpose, [rows, columns].

    The matrix is column-major: it is built by n copies of whole columns instead of a transpose (8 to 11 times faster),
    and gathering the matrix is as fast as gathering its columns.
    """

    columns: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows."""
        return self.columns.nbytes

    def slice(self, start: int, stop: int) -> Self:
        """Return rows [start, stop), a view."""
        return type(self)(self.columns[:, start:stop])

    def value(self) -> Tensor:
        """Return all rows, shape [rows, columns]."""
        return self.columns.t()

    def split(self, batch_rows: int) -> Iterator[Tensor]:
        """Return an iterator over views of `batch_rows` rows."""
        return split_batches(self.columns.t(), batch_rows)


@dataclass(frozen=True, slots=True, eq=False)
class Singles:
    """Columns of one number a row and of one type: `columns` has shape [columns, rows], rows dense.

    Few objects for many columns: Python's garbage collector looks at every tensor that a block holds, and begins anew
    after so many new ones.
    """

    columns: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows."""
        return self.columns.nbytes

    def slice(self, start: int, stop: int) -> Self:
        """Return rows [start, stop), a view."""
        return type(self)(self.columns[:, start:stop])

    def values(self) -> Sequence[Tensor]:
        """Return all rows of each column."""
        return self.columns.unbind()

    def split(self, batch_rows: int) -> Iterator[Sequence[Tensor]]:
        """Return an iterator over views of `batch_rows` rows of each column."""
        return split_columns(self.columns, batch_rows)


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Column of ragged rows; offsets begin at 0."""

    values: Tensor
    offsets: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of values and offsets."""
        return self.values.nbytes + self.offsets.nbytes

    def slice(self, start: int, stop: int) -> Self:
        """Return rows [start, stop), a view of the values with new offsets."""
        ends = self.offsets[start : stop + 1].numpy()
        return type(self)(self.values[ends[0] : ends[-1]], torch.from_numpy(ends - ends[0]))

    def value(self) -> Ragged:
        """Return all rows."""
        return Ragged(self.values, self.offsets)

    def split(self, batch_rows: int) -> Iterator[Ragged]:
        """Yield `batch_rows` rows each, offsets from 0. All batches are cut at once: a batch costs only its views."""
        ends = self.offsets.numpy()
        num_rows = len(ends) - 1
        cuts = np.append(ends[:-1:batch_rows], ends[-1:])
        values = torch.unsafe_split_with_sizes(self.values, np.diff(cuts).tolist())
        full = num_rows // batch_rows
        if full:
            offsets = np.lib.stride_tricks.sliding_window_view(ends, batch_rows + 1)[::batch_rows] - cuts[:full, None]
            yield from map(Ragged, values, torch.from_numpy(offsets).unbind())
        if full * batch_rows < num_rows:
            yield Ragged(values[-1], torch.from_numpy(ends[full * batch_rows :] - cuts[full]))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return all rows, one part after the other."""
        return cls(*join_lists([part.values for part in parts], [part.offsets for part in parts]))

    @classmethod
    def gather(cls, parts: Sequence[Self], order: Tensor) -> Self:
        """Return the rows of the concatenation in this order."""
        joined = cls.concat(parts)
        return cls(*gather_cpu_lists(joined.values, joined.offsets, order))


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """Column as an Arrow array; a null becomes `null` in Python."""

    rows: pa.ChunkedArray
    null: object = None

    @property
    def num_bytes(self) -> int:
        """Arrow bytes of the rows, not of Python objects."""
        return int(self.rows.nbytes)

    def slice(self, start: int, stop: int) -> Self:
        """Return rows [start, stop), a view."""
        return type(self)(self.rows.slice(start, stop - start), self.null)

    def value(self) -> list[Any]:
        """Return all rows as Python objects."""
        objects = python_objects(self.rows)
        if self.null is None or not self.rows.null_count:
            return objects
        return [self.null if row is None else row for row in objects]

    def split(self, batch_rows: int) -> Iterator[list[Any]]:
        """Yield Python objects of `batch_rows` rows, made one batch at a time."""
        for start in range(0, len(self.rows), batch_rows):
            yield self.slice(start, start + batch_rows).value()

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return all rows, one part after the other, without a copy."""
        chunks = [chunk for part in parts for chunk in part.rows.chunks]
        return cls(pa.chunked_array(chunks, parts[0].rows.type), parts[0].null)

    @classmethod
    def gather(cls, parts: Sequence[Self], order: Tensor) -> Self:
        """Return the rows of the concatenation in this order."""
        joined = cls.concat(parts)
        chunks = list(map(array_for_take, joined.rows.chunks))
        rows = pa.chunked_array(chunks, joined.rows.type)
        return cls(rows.take(pa.array(order.numpy())), joined.null)


Single = Rows | Matrix | Lists | Objects
Column = Single | Singles


def place_parts(
    columns: Sequence[Sequence[Any]], spans: Int64s, order: Tensor | None, name_of: Callable[[int], str]
) -> list[Column]:
    """Return rows of every column in new memory: the rows of the spans, one span after the other, or in this order.

    Plain numbers and stacks are placed by one call; numbers of one type share one piece of memory.

    columns: parts of each column. spans: see `place_columns`. name_of: name of an entry by its number, for messages.

    Raises:
        UnsupportedFeatureError: Arrow cannot take rows of a column's type.
    """
    num_rows = int(spans[:, 2].sum()) if order is None else len(order)
    placed: dict[int, Column] = {}
    runs: dict[int, Sequence[Tensor]] = {}
    rows_of: dict[torch.dtype, list[int]] = {}
    others: dict[int, str] = {}
    entry = 0
    for index, parts in enumerate(columns):
        first = parts[0]
        if isinstance(first, Matrix | Singles):
            runs[index] = [part.columns for part in parts]
            placed[index] = type(first)(new_tensor((len(first.columns), num_rows), first.columns.dtype))
        elif isinstance(first, Rows) and is_flat(first.values):
            runs[index] = [part.values for part in parts]
            rows_of.setdefault(first.values.dtype, []).append(index)
        else:
            others[index] = name_of(entry)
        entry += len(first.columns) if isinstance(first, Singles) else 1
    for dtype, indices in rows_of.items():
        placed.update(zip(indices, map(Rows, new_tensor((len(indices), num_rows), dtype).unbind()), strict=True))
    if runs:
        place_columns(list(runs.values()), [_room(placed[index]) for index in runs], order, spans)
    if others:
        pieces, rows = _in_pieces(spans, order)
        for index, name in others.items():
            parts = [columns[index][part].slice(start, stop) for part, start, stop in pieces]
            placed[index] = type(parts[0]).concat(parts) if rows is None else _gather(name, parts, rows)
    return [placed[index] for index in range(len(columns))]


def _in_pieces(spans: Int64s, order: Tensor | None) -> tuple[list[tuple[int, int, int]], Tensor | None]:
    """Return a piece for each part, (part, start, stop) from its first to its last row, and the order of their rows.

    The order is None if the spans are the pieces, and come as they are.
    """
    number, first, count = spans.T
    parts, of_span = np.unique(number, return_inverse=True)
    if len(parts) == len(spans):
        return [(part, start, start + rows) for part, start, rows in spans.tolist()], order
    start, stop = np.full(len(parts), np.iinfo(np.int64).max), np.zeros(len(parts), np.int64)
    np.minimum.at(start, of_span, first)
    np.maximum.at(stop, of_span, first + count)
    before = np.cumsum(stop - start) - (stop - start)
    rows = torch.from_numpy(ranges(first - start[of_span] + before[of_span], count))
    if order is not None:
        check_order(order, len(rows))
        rows = rows[order]
    return list(zip(parts.tolist(), start.tolist(), stop.tolist(), strict=True)), rows


def _room(column: Column) -> Tensor:
    return column.values if isinstance(column, Rows) else column.columns  # type: ignore[union-attr]


def _gather(name: str, parts: Sequence[Any], order: Tensor) -> Column:
    try:
        gathered: Column = type(parts[0]).gather(parts, order)
    except pa.ArrowNotImplementedError as error:
        raise no_take(name, error) from error
    return gathered
