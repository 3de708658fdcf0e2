"""Hold the columns of a block: each kind of column stores, slices, joins and gathers its rows.

    Rows      numbers of one shape      a tensor [rows, ...]
    Matrix    stacked columns           a tensor [columns, rows]: one column after the other in memory
    Lists     ragged numbers            values [total, ...] and offsets [rows + 1]
    Objects   everything else           an Arrow array, Python objects only on the way out

`split` gives the columns of torch batches, and `column_blocks.ArrayOutput` gives the columns of numpy batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils._arrow.batches import array_for_take, no_take
from torch_dataloader_utils.shape.arrow_types import python_objects
from torch_dataloader_utils.shape.gather import (
    Gatherer,
    gather_cpu_lists,
    is_flat,
    join,
    join_lists,
    split_batches,
)
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.reused_memory import new_columns, new_tensor


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
    def gather(cls, parts: Sequence[Self], gatherer: Gatherer) -> Self:
        """Return the rows of the concatenation in the gatherer's order."""
        return cls(gatherer.rows([part.values for part in parts]))


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

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return all rows, one part after the other, column-major."""
        return cls(join([part.columns for part in parts], dim=1))


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
    def gather(cls, parts: Sequence[Self], gatherer: Gatherer) -> Self:
        """Return the rows of the concatenation in the gatherer's order."""
        joined = cls.concat(parts)
        return cls(*gather_cpu_lists(joined.values, joined.offsets, gatherer.order))


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
    def gather(cls, parts: Sequence[Self], gatherer: Gatherer) -> Self:
        """Return the rows of the concatenation in the gatherer's order."""
        joined = cls.concat(parts)
        chunks = list(map(array_for_take, joined.rows.chunks))
        rows = pa.chunked_array(chunks, joined.rows.type)
        return cls(rows.take(pa.array(gatherer.order.numpy())), joined.null)


Column = Rows | Matrix | Lists | Objects

# From this many rows on, so many columns share one piece of memory. Each shorter column has its own memory, so that
# keeping one column keeps no other column, unless several columns fit into a page.
_ROWS_TOGETHER = 4096
_COLUMNS_TOGETHER = 16
_PAGE_BYTES = 4096


def gather_columns(names: Sequence[str], columns: Sequence[Sequence[Any]], gatherer: Gatherer) -> tuple[Column, ...]:
    """Gather every column in the gatherer's order. Plain numbers and stacks are gathered by one call.

    columns: parts of each column.

    Raises:
        UnsupportedFeatureError: Arrow cannot take rows of a column's type.
    """
    num_rows = len(gatherer.order)
    flat, others = _flat_by_dtype(columns)
    gathered: dict[int, Column] = {}
    sources: list[Sequence[Tensor]] = []
    outs: list[Tensor] = []
    for dtype, indices in flat.items():
        in_page = _PAGE_BYTES // max(1, num_rows * dtype.itemsize)
        at_once = _COLUMNS_TOGETHER if num_rows >= _ROWS_TOGETHER else max(1, in_page)
        rooms = [out for _, room in new_columns(len(indices), num_rows, dtype, at_once) for out in room.unbind()]
        gathered.update(zip(indices, map(Rows, rooms), strict=True))
        sources += ([part.values for part in columns[index]] for index in indices)
        outs += rooms
    for index in others:
        parts = columns[index]
        if isinstance(parts[0], Matrix):
            gathered[index] = matrix = Matrix(new_tensor((len(parts[0].columns), num_rows), parts[0].columns.dtype))
            sources += zip(*(part.columns.unbind() for part in parts), strict=True)
            outs += matrix.columns.unbind()
        else:
            gathered[index] = _gather(names[index], parts, gatherer)
    if outs:
        gatherer.columns(sources, outs)
    return tuple(gathered[index] for index in range(len(columns)))


def _gather(name: str, parts: Sequence[Any], gatherer: Gatherer) -> Column:
    try:
        gathered: Column = type(parts[0]).gather(parts, gatherer)
    except pa.ArrowNotImplementedError as error:
        raise no_take(name, error) from error
    return gathered


def concat_columns(columns: Sequence[Sequence[Any]], num_rows: int) -> tuple[Column, ...]:
    """Join the parts of every column. Columns of plain numbers are joined several at a time.

    columns: parts of each column, two or more. num_rows: number of rows of all parts together.
    """
    flat, others = _flat_by_dtype(columns)
    if num_rows < _ROWS_TOGETHER:
        flat, others = {}, range(len(columns))
    joined: dict[int, Column] = {index: type(columns[index][0]).concat(columns[index]) for index in others}
    for dtype, indices in flat.items():
        for start, matrix in new_columns(len(indices), num_rows, dtype, _COLUMNS_TOGETHER):
            for index, out in zip(indices[start : start + _COLUMNS_TOGETHER], matrix, strict=True):
                joined[index] = Rows(join([part.values for part in columns[index]], out=out))
    return tuple(joined[index] for index in range(len(columns)))


def _flat_by_dtype(columns: Sequence[Sequence[object]]) -> tuple[dict[torch.dtype, list[int]], Sequence[int]]:
    """Return the indices of columns with one number a row, by dtype, and the indices of all other columns."""
    flat: dict[torch.dtype, list[int]] = {}
    others = []
    for index, parts in enumerate(columns):
        if isinstance(parts[0], Rows) and is_flat(parts[0].values):
            flat.setdefault(parts[0].values.dtype, []).append(index)
        else:
            others.append(index)
    return flat, others
