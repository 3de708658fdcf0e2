"""New rows from old ones: joining and gathering tensors in memory that is used again and again.

Memory is recycled, or comes from Arrow's pool, which keeps its pages; torch's CPU allocator gives large ones back to
the system, and touching fresh pages costs as much as the work (windows of 65,536 rows of 51 columns: 7 ms with fresh
pages, 4 ms without).

numpy does the work. Of more than 32,768 numbers torch gives a part to threads of its own, and waits for them while all
cores decode: `order.max()` of 65,536 rows takes 8 us by numpy, and milliseconds by torch.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils.dlpack import from_dlpack

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.shape.one_piece import is_plain
from torch_dataloader_utils.shape.pickling import signed, unsigned
from torch_dataloader_utils.shape.recycled import RECYCLED, SMALLEST_BYTES

# Numbers are moved as bits, for numpy does not know all of torch's dtypes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised contiguous CPU tensor, 64-byte aligned, writable; large ones in recycled memory."""
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    if num_bytes >= SMALLEST_BYTES:
        return torch.from_numpy(RECYCLED.take(num_bytes))[:num_bytes].view(dtype).view(tuple(shape))
    return torch.frombuffer(pa.allocate_buffer(num_bytes), dtype=dtype).view(tuple(shape))


def new_lots(count: int, num_rows: int, dtype: torch.dtype, at_once: int) -> list[tuple[int, Tensor]]:
    """(first column, uninitialised [columns, num_rows]) of `count` columns, up to `at_once` of them each.

    A column that is kept keeps its lot. In shared memory all columns are one lot, so that few pieces are sent.
    """
    if RECYCLED.is_shared:
        whole = new_tensor((count, num_rows), dtype)
        return [(start, whole[start : start + at_once]) for start in range(0, count, at_once)]
    return [(start, new_tensor((min(at_once, count - start), num_rows), dtype)) for start in range(0, count, at_once)]


def is_flat(tensor: Tensor) -> bool:
    """Whether a column holds one number of at most 8 bytes a row, as `Gatherer.columns` takes it."""
    return tensor.dim() == 1 and tensor.dtype.itemsize in _BITS


def fill(tensor: Tensor, number: Tensor) -> None:
    """Writes one number, a tensor [1] of the same dtype, everywhere."""
    if is_bits(tensor):
        _bits(tensor).numpy().fill(_bits(number).item())
    else:
        tensor.copy_(number)


def copy_rows(source: Tensor, rows: Int64s | slice, target: Tensor, places: Int64s) -> None:
    """Row places[i] of the target becomes row i of source[rows], for all i; both of one dtype, and `is_bits`."""
    _bits(target).numpy()[places] = _bits(source).numpy()[rows]


def is_bits(numbers: Tensor) -> bool:
    """Whether numpy may move a tensor: its bits are all that there is to it, and nobody follows what is done with it.

    False for a sign to be changed, a derivative to be followed, and all that a compiler or `torch.func` looks at.
    """
    if torch.compiler.is_compiling() or not is_plain(numbers) or numbers.dtype.itemsize not in _BITS:
        return False
    tangent = unpack_dual(numbers).tangent  # type: ignore[no-untyped-call]
    return not numbers.is_complex() and not numbers.is_neg() and tangent is None and _is_memory(numbers)


def _is_memory(numbers: Tensor) -> bool:
    """Whether operations give memory: within `torch.func.grad` they give wrappers that have none, of any tensor."""
    try:
        return numbers.detach().data_ptr() != 0 or numbers.numel() == 0
    except RuntimeError:
        return False


def join(parts: Sequence[Tensor], dim: int = 0, out: Tensor | None = None) -> Tensor:
    """The parts one after the other along `dim`; one part alone is itself, not a copy, unless `out` is given."""
    if out is None:
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        out = new_tensor(shape, parts[0].dtype)
    np.concatenate([part.numpy() for part in parts], axis=dim, out=out.numpy())
    return out


def join_lists(values: Sequence[Tensor], offsets: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(values, offsets) of all ragged parts, one after the other; offsets count on from part to part."""
    if len(values) == 1:
        return values[0], offsets[0]
    starts = np.cumsum([0, *(len(part) for part in values)])
    shifted = [part[1:].numpy() + start for part, start in zip(offsets, starts[:-1], strict=True)]
    return join(values), torch.from_numpy(np.concatenate([offsets[0][:1].numpy(), *shifted]))


def gather_lists(values: Tensor, offsets: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """(values, offsets) of the rows at `order`.

    Value j of the result lies in row r (found by repeating each row's shift as often as the row is long), at
    j - new_offsets[r] + offsets[order[r]].

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


def take_lists(values: Tensor, offsets: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `gather_lists`, for CPU tensors: rows are copied whole, not value by value.

    To Arrow, a row of numbers is a binary string; taking strings is one memcpy a row (65,536 rows of 110 int32: 25 ms;
    by an index for every value 400 ms).
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


Numbers = npt.NDArray[Any]

# Columns gathered by one call. Every call lets go of the interpreter's lock and waits for it again, and other threads
# want it too; more than four columns of 65,536 numbers do not stay in a core's cache (50 columns: 3.3 ms one by one,
# 3.0 ms by four, 3.5 ms by eight).
COLUMNS_AT_ONCE = 4


class Gatherer:
    """Gathers columns of several blocks by one order: int64, shape [rows].

    The parts of columns are first joined in a scratch array that all columns of one width share, one part alone too
    unless few of its rows are wanted. That copy is sequential and leaves the columns in the cache for the random reads,
    which makes it 2 to 3 times as fast as scattering from each part, and 1.6 times as gathering from one.

    Raises, when it gathers:
        IndexError: an entry of the order is negative or past the last row.
    """

    def __init__(self, order: Tensor) -> None:
        self.order = order
        rows = order.numpy()
        self._last_row = int(rows.max(initial=-1))
        self._has_negative = bool(rows.min(initial=0) < 0)
        self._scratch: dict[int, Tensor] = {}

    def rows(self, parts: Sequence[Tensor]) -> Tensor:
        """Row order[i] of the parts' concatenation for all i, shape [len(order), ...]."""
        rows = join(parts)
        self._check(len(rows))
        gathered = new_tensor((len(self.order), *rows.shape[1:]), rows.dtype)
        if rows.is_contiguous():
            np.take(rows.numpy(), self.order.numpy(), axis=0, out=gathered.numpy(), mode="clip")
        else:  # of tensors with a permutation, `take` would copy all rows first
            gathered.numpy()[:] = rows.numpy()[self.order.numpy()]
        return gathered

    def columns(self, columns: Sequence[Sequence[Tensor]], out: Tensor) -> None:
        """Gathers columns of one dtype, each given as its parts, into `out` [columns, len(order)]; see `is_flat`."""
        num_rows = sum(map(len, columns[0]))
        self._check(num_rows)
        target, order = out.numpy(), self.order.numpy()
        if len(columns[0]) == 1 and len(order) < num_rows // 2:
            for (part,), gathered in zip(columns, target, strict=True):
                np.take(part.numpy(), order, out=gathered, mode="clip")
            return
        for start in range(0, len(columns), COLUMNS_AT_ONCE):
            joined = self._joined(columns[start : start + COLUMNS_AT_ONCE], num_rows)
            np.take(joined, order, axis=1, out=target[start : start + len(joined)], mode="clip")

    def _check(self, num_rows: int) -> None:
        if self._has_negative or self._last_row >= num_rows:
            raise IndexError(f"rows are asked for that are not there: there are {num_rows}")

    def _joined(self, columns: Sequence[Sequence[Tensor]], num_rows: int) -> Numbers:
        """The columns one after the other in scratch memory, [columns, num_rows]."""
        dtype, count = columns[0][0].dtype, len(columns) * num_rows
        scratch = self._scratch.get(dtype.itemsize)
        if scratch is None or len(scratch) < count:
            scratch = self._scratch[dtype.itemsize] = new_tensor((count,), dtype)
        joined = scratch[:count].view(dtype).numpy()
        np.concatenate([part.numpy() for parts in columns for part in parts], out=joined)
        return joined.reshape(len(columns), num_rows)


def _bits(numbers: Tensor) -> Tensor:
    return numbers.view(_BITS[numbers.dtype.itemsize])
