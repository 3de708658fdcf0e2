"""Join rows of several tensors, gather rows in another order, and cut tensors into views for many batches at once.

CPU tensors only, by compiled code, numpy or Arrow, because torch would start threads. `gather_lists` takes tensors on
any device.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torch_dataloader_utils import _engine
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.shape.pickling import signed, unsigned
from torch_dataloader_utils.shape.reused_memory import new_tensor

# Largest number of rows that the compiled code numbers by 32 bits.
_MOST_SHORT = (1 << 32) - 1


def is_flat(tensor: Tensor) -> bool:
    """Return whether a column holds one number of at most 8 bytes a row, as `Gatherer.columns` takes it."""
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


class Gatherer:
    """Gatherer of columns of several blocks by one order: int64 [rows].

    A column is given as its parts, one part a block. The parts are first joined in a scratch array, and the rows are
    then read from this array in the order. One scratch array serves all columns. The join is sequential
    and leaves the column in a core's cache for the random reads: this is 2 to 3 times as fast as writing rows from each
    part to their places, and 1.6 times as fast as reading rows from a single part. A single part is read without a copy
    only if few of its rows are wanted.

    Raises, when it gathers:
        IndexError: an entry of the order is negative or past the last row.
    """

    def __init__(self, order: Tensor) -> None:
        self.order = order
        self._scratch: dict[int, Tensor] = {}

    def rows(self, parts: Sequence[Tensor]) -> Tensor:
        """Return row order[i] of the parts' concatenation for all i, shape [len(order), ...]."""
        rows = join(parts)
        self._check(len(rows))
        gathered = new_tensor((len(self.order), *rows.shape[1:]), rows.dtype)
        if rows.is_contiguous():
            np.take(rows.numpy(), self.order.numpy(), axis=0, out=gathered.numpy(), mode="clip")
        else:  # a tensor with a permutation: `take` would copy all rows first
            gathered.numpy()[:] = rows.numpy()[self.order.numpy()]
        return gathered

    def columns(self, columns: Sequence[Sequence[Tensor]], outs: Sequence[Tensor]) -> None:
        """Gather columns, each given as its parts, into `outs`, [len(order)] each. See `is_flat`.

        With compiled code by one call (51 columns of 65,536 rows: 6.5 ms), else one column after the other (9.9 ms).
        """
        part_rows = list(map(len, columns[0]))
        num_rows = sum(part_rows)
        is_joined = len(part_rows) > 1 or len(self.order) >= part_rows[0] // 2
        if _engine.IS_BUILT and num_rows <= _MOST_SHORT:
            self._by_one_call(columns, outs, part_rows, is_joined=is_joined)
            return
        self._check(num_rows)
        for parts, out in zip(columns, outs, strict=True):
            column = join(parts, out=self._room(num_rows, out.dtype)) if is_joined else parts[0]
            np.take(column.numpy(), self.order.numpy(), out=out.numpy(), mode="clip")

    def _by_one_call(
        self, columns: Sequence[Sequence[Tensor]], outs: Sequence[Tensor], part_rows: list[int], *, is_joined: bool
    ) -> None:
        held = [part.contiguous() for parts in columns for part in parts]  # until the call ends: it gets addresses
        dtypes = [out.dtype for out in outs]
        are_alike = (
            [part.numel() for part in held] == part_rows * len(outs)
            and [part.dtype for part in held] == [dtype for dtype in dtypes for _ in part_rows]
            and {out.numel() for out in outs} == {len(self.order)}
        )
        if not are_alike:
            raise InternalError("Columns that are gathered together differ. Please report this with their types.")
        widths = [dtype.itemsize for dtype in dtypes]
        num_bytes = 4 * len(self.order) + 8 + sum(part_rows) * max(widths) * is_joined
        _engine.gather(
            _addresses(held),
            np.array(part_rows, np.int64),
            _addresses(outs),
            np.array(widths, np.int64),
            self.order.numpy(),
            new_tensor((num_bytes,), torch.uint8).numpy(),
            is_joined,
        )

    def _check(self, num_rows: int) -> None:
        rows = self.order.numpy()
        if rows.min(initial=0) < 0 or rows.max(initial=-1) >= num_rows:
            raise IndexError(f"rows were requested that do not exist: there are {num_rows} rows")

    def _room(self, rows: int, dtype: torch.dtype) -> Tensor:
        """Return scratch memory for a column, the same for all columns of one width."""
        scratch = self._scratch.get(dtype.itemsize)
        if scratch is None or len(scratch) < rows:
            scratch = self._scratch[dtype.itemsize] = new_tensor((rows,), dtype)
        return scratch[:rows].view(dtype)


def _addresses(tensors: Iterable[Tensor]) -> npt.NDArray[np.uint64]:
    return np.array([tensor.data_ptr() for tensor in tensors], np.uint64)


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
