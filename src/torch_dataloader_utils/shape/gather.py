"""Join rows of several tensors, gather rows in another order, and cut tensors into views for many batches at once.

CPU tensors only, by compiled code, numpy or Arrow, because torch would start threads. `gather_lists` takes tensors on
any device.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torch_dataloader_utils import _engine
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.shape.pickling import signed, unsigned
from torch_dataloader_utils.shape.reused_memory import new_tensor

# Largest number of rows that the compiled code numbers by 32 bits.
_MOST_SHORT = (1 << 32) - 1


def is_flat(tensor: Tensor) -> bool:
    """Return whether a column holds one number of at most 8 bytes a row, as `place_columns` takes it."""
    return tensor.dim() == 1 and tensor.dtype.itemsize <= 8


def join(parts: Sequence[Tensor], dim: int = 0, out: Tensor | None = None) -> Tensor:
    """Join the parts along `dim`. A single part is returned as it is, not copied, unless `out` is given."""
    if out is None:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        out = new_tensor(shape, parts[0].dtype)
    np.concatenate([part.numpy() for part in parts], axis=dim, out=out.numpy())
    return out


def join_lists(values: Sequence[Tensor], offsets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return (values, offsets) of all ragged parts, one after the other; offsets count on from part to part."""
    if len(values) == 1:
        return values[0], offsets[0]
    starts = np.cumsum([0, *(len(part) for part in values)])
    shifted = [part[1:].numpy() + start for part, start in zip(offsets, starts[:-1], strict=True)]
    return join(values), torch.from_numpy(np.concatenate([offsets[0][:1].numpy(), *shifted]))


def gather_rows(parts: Sequence[Tensor], order: Tensor) -> Tensor:
    """Return row order[i] of the parts' concatenation for all i, shape [len(order), ...].

    Raises:
        IndexError: an entry of the order is negative or past the last row.
    """
    rows = join(parts)
    check_order(order, len(rows))
    gathered = new_tensor((len(order), *rows.shape[1:]), rows.dtype)
    if rows.is_contiguous():
        np.take(rows.numpy(), order.numpy(), axis=0, out=gathered.numpy(), mode="clip")
    else:  # a tensor with a permutation: `take` would copy all rows first
        gathered.numpy()[:] = rows.numpy()[order.numpy()]
    return gathered


def place_columns(
    runs: Sequence[Sequence[Tensor]], outs: Sequence[Tensor], order: Tensor | None = None, spans: Int64s | None = None
) -> None:
    """Write the rows of columns to `outs`: all rows, one part after the other, or row order[i] of these as row i.

    runs: Parts of each run of columns, one part a block. A part is one column, [rows], or columns that lie at even
    distances, [columns, rows]. See `is_flat`. outs: Room for each run, [..., rows], rows dense. order: int64 [rows].
    spans: Rows of the parts to take in place of all rows: (part, first row, number of rows) each, int64 [spans, 3].

    For an order, a column is first joined in a scratch array, and its rows are then read from this array. One scratch
    array serves all columns. The join is sequential and leaves the column in a core's cache for the random reads: this
    is 2 to 3 times as fast as writing rows from each part to their places, and 1.6 times as fast as reading rows from
    a single part. A single part is read without a copy only if few of its rows are wanted.

    With compiled code this is one call without the interpreter's lock (51 columns of 65,536 rows: 4 ms), else one call
    a column (9.9 ms).

    Raises:
        IndexError: an entry of the order is negative or past the last row.
    """
    part_rows = np.array([part.shape[-1] for part in runs[0]], np.int64)
    if spans is None:
        spans = np.stack([np.arange(len(part_rows)), np.zeros_like(part_rows), part_rows], axis=1)
    num_rows = int(spans[:, 2].sum())
    _check_alike(runs, outs, part_rows, spans, num_rows if order is None else len(order))
    is_joined = order is None or len(spans) > 1 or len(order) >= num_rows // 2
    if _engine.IS_BUILT and num_rows <= _MOST_SHORT:
        _place_by_one_call(runs, outs, order, spans, is_joined=is_joined)
        return
    if order is not None:
        check_order(order, num_rows)
    taken = spans.tolist()
    for parts, out in zip(runs, outs, strict=True):
        for *column, place in zip(*map(_as_arrays, parts), _as_arrays(out), strict=True):
            rows = [column[part][first : first + count] for part, first, count in taken]
            if order is None:
                np.concatenate(rows, out=place)
            else:
                np.take(np.concatenate(rows) if is_joined else rows[0], order.numpy(), out=place, mode="clip")


def _check_alike(
    runs: Sequence[Sequence[Tensor]], outs: Sequence[Tensor], part_rows: Int64s, spans: Int64s, out_rows: int
) -> None:
    number, first, count = spans.T
    are_alike = bool(((first >= 0) & (count >= 0) & (first + count <= part_rows[number])).all())
    for parts, out in zip(runs, outs, strict=True):
        *columns, rows = out.shape
        shapes = [(*columns, each) for each in part_rows.tolist()]
        are_alike = are_alike and rows == out_rows and [part.shape for part in parts] == shapes
        are_alike = are_alike and {part.dtype for part in parts} == {out.dtype}
    if not are_alike:
        raise InternalError("Columns that are gathered together differ. Please report this with their types.")


def _place_by_one_call(
    runs: Sequence[Sequence[Tensor]], outs: Sequence[Tensor], order: Tensor | None, spans: Int64s, *, is_joined: bool
) -> None:
    held = [[_dense(part) for part in parts] for parts in runs]  # until the call ends: it gets addresses
    widths = [out.dtype.itemsize for out in outs]
    number, first, count = spans.T
    sides = np.take(np.array([[_side(part) for part in parts] for parts in held], np.int64), number, axis=1)
    sides[..., 0] += np.multiply.outer(widths, first)
    num_bytes = 0 if order is None else 4 * len(order) + 8 + int(count.sum()) * max(widths) * is_joined
    _engine.gather(
        sides,
        np.ascontiguousarray(count),
        np.array(
            [(*_side(out), out.shape[:-1].numel(), width) for out, width in zip(outs, widths, strict=True)], np.int64
        ),
        None if order is None else order.numpy(),
        new_tensor((num_bytes,), torch.uint8).numpy(),
        is_joined,
    )


def _side(columns: Tensor) -> tuple[int, int]:
    """Return the address of the first column, and the bytes from column to column."""
    return columns.data_ptr(), columns.stride(0) * columns.itemsize if columns.dim() > 1 else 0


def _dense(part: Tensor) -> Tensor:
    return part if part.stride(-1) == 1 else part.contiguous()


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _as_arrays(columns: Tensor) -> npt.NDArray[Any]:
    """Return the columns as integers of the same bytes, [columns, rows]: numpy lacks some types."""
    return (columns if columns.dim() > 1 else columns[None]).view(_INTEGERS[columns.itemsize]).numpy()


def check_order(order: Tensor, num_rows: int) -> None:
    """Raise IndexError if an entry of the order is negative or past the last row."""
    rows = order.numpy()
    if rows.min(initial=0) < 0 or rows.max(initial=-1) >= num_rows:
        raise IndexError(f"rows were requested that do not exist: there are {num_rows} rows")


def gather_lists(values: Tensor, offsets: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return (values, offsets) of the ragged rows at `order`, on any device.

    Value j of the result, in its row r, is value j - new_offsets[r] + offsets[order[r]]. The shift of j is the same for
    a whole row, so it is repeated once for each value of the row.

        values [7, 8, 9], offsets [0, 2, 2, 3], order [2, 0]      values [9, 7, 8], offsets [0, 1, 3]
    """
    starts = offsets[:-1].index_select(0, order)
    lengths = offsets.diff().index_select(0, order)
    gathered = torch.zeros(len(order) + 1, dtype=torch.int64, device=offsets.device)
    torch.cumsum(lengths, 0, out=gathered[1:])
    total = int(gathered[-1])
    source = torch.repeat_interleave(starts - gathered[:-1], lengths, output_size=total)
    source += torch.arange(total, device=offsets.device)
    return unsigned(signed(values).index_select(0, source), values.dtype), gathered


def gather_cpu_lists(values: Tensor, offsets: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return `gather_lists` of CPU tensors, copying each row whole, not value by value.

    Arrow takes the rows as binary strings (65,536 rows of 110 int32: 25 ms; with an index for every value 400 ms).
    """
    width = values.dtype.itemsize * prod(values.shape[1:])
    if len(order) == 0 or width == 0 or len(values) == 0:
        return gather_lists(values, offsets, order)
    ends = pa.py_buffer(offsets.numpy() * width)
    strings = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, ends, pa.py_buffer(values.numpy())])
    _, ends, data = strings.take(pa.array(order.numpy())).buffers()
    gathered = torch.from_numpy(np.frombuffer(ends, np.int64)[: len(order) + 1] // width)
    num_bytes = int(gathered[-1]) * width
    taken = from_dlpack(pa.Array.from_buffers(pa.uint8(), num_bytes, [None, data]))
    return taken.view(values.dtype).view(-1, *values.shape[1:]), gathered


_AT_ONCE = 8


def split_batches(values: Tensor, batch_rows: int) -> Iterator[Tensor]:
    """Return an iterator over views of `batch_rows` rows; the last view may be shorter.

    No Python code runs for a single view. torch makes a view in 0.25 us from given sizes, in 0.35 us from one size.
    `unsafe_` leaves out checks for autograd (a fifth faster); decoded data does not use autograd.
    """
    groups, group_rows = _equal_groups(values.shape[0], batch_rows)
    return chain.from_iterable(
        map(torch.unsafe_split_with_sizes, torch.unsafe_split_with_sizes(values, group_rows), groups)
    )


def split_columns(columns: Tensor, batch_rows: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield the columns of each batch of `batch_rows` rows; the last batch may be shorter. columns: [columns, rows].

    One call makes the views of several batches: it cuts the memory of all columns as if it were one column, with what
    lies between the batches of one column and the next as a view that is not used.
    """
    count, rows = columns.shape
    pitch = columns.stride(0) if count > 1 else rows
    firsts = range(0, rows, batch_rows * _AT_ONCE)
    for group, first in zip(_equal_groups(rows, batch_rows)[0], firsts, strict=True):
        stop = first + sum(group)
        gap = pitch - (stop - first)
        cuts = [*group, gap] if gap else group
        span = columns.as_strided(((count - 1) * pitch + stop - first,), (1,), columns.storage_offset() + first)
        views = torch.unsafe_split_with_sizes(span, (cuts * count)[: -1 if gap else None])
        for number in range(len(group)):
            yield views[number :: len(cuts)]
        del views  # now, so that fewer objects are alive at once: Python's garbage collector looks at them after 700


def in_groups(rows: Sequence[int]) -> list[Sequence[int]]:
    """Return the row counts of batches in groups that should be cut at once."""
    return [rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE)]


@lru_cache(maxsize=1)  # every column of a block has the same groups
def _equal_groups(total: int, rows: int) -> tuple[list[list[int]], list[int]]:
    full, left = divmod(total, rows * _AT_ONCE)
    batches, rest = divmod(left, rows)
    last = [rows] * batches + [rest] * (rest > 0)
    groups = [[rows] * _AT_ONCE] * full + [last] * (left > 0)
    return groups, [rows * _AT_ONCE] * full + [left] * (left > 0)
