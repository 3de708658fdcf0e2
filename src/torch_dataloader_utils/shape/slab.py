"""A whole batch in one flat byte buffer, so that it crosses a process border or a bus as one thing.

Pure layout arithmetic: where the bytes of every tensor go, and the views that read them back. Whose memory the buffer
is (shared, pinned, on a device) and when it is free again is the stream's business.

Tensors of one dtype and shape lie one after the other as a group, every tensor at a multiple of 64 bytes: a group
is written by one call and read back by one call, which is what makes 51 columns cheap. `TensorBatchCodec` implements
`_core.block.SlabCodec`.

    columns a, b float32 [100], y int8 [100]      group 0: a at 0, b at 448      group 1: y at 896      1,024 bytes
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.shape.one_piece import ALIGNMENT_BYTES, is_plain
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}

Batch = TensorBatch | dict[str, Any] | tuple[Any, ...] | list[Any]


class SlabGroup(NamedTuple):
    """Tensors of one dtype and shape; number i begins at byte `offset + i * pitch_bytes`.

    shape is what lies in memory: for a transposed group (column-major matrices) that is [columns, rows].
    parts says which parts of the batch they are, see `SlabLayout`.
    """

    dtype_code: int
    shape: tuple[int, ...]
    is_transposed: bool
    parts: tuple[int, ...]
    offset: int
    pitch_bytes: int


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """Where the columns of one batch lie; equal for batches of the same columns, dtypes and shapes.

    A batch is a sequence of parts: a `Ragged` column has two (values, offsets), every other column one. Parts that
    are dense CPU tensors belong to a group; the others (`objects`) travel beside the slab.
    """

    container: type
    names: tuple[str, ...]
    ragged: tuple[bool, ...]
    objects: tuple[int, ...]
    groups: tuple[SlabGroup, ...]
    num_bytes: int

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The layout of a batch."""
        keys: dict[tuple[torch.dtype, torch.Size, bool], list[int]] = {}
        objects = []
        for index, part in enumerate(_parts(batch)):
            if not _fits(part):
                objects.append(index)
                continue
            is_transposed = part.dim() == 2 and part.stride(0) == 1 < part.shape[1]
            key = (part.dtype, part.mT.shape if is_transposed else part.shape, is_transposed)
            keys.setdefault(key, []).append(index)
        groups = []
        offset = 0
        for (dtype, shape, is_transposed), parts in keys.items():
            pitch = -(-prod(shape) * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            groups.append(SlabGroup(_CODES[dtype], tuple(shape), is_transposed, tuple(parts), offset, pitch))
            offset += pitch * len(parts)
        return cls(type(batch), _names(batch), _ragged(batch), tuple(objects), tuple(groups), offset)

    def pick(self, batch: Batch) -> list[list[Tensor]] | None:
        """The tensors of every group as they lie in memory; None if this is not the layout of `batch`."""
        if type(batch) is not self.container or _names(batch) != self.names or _ragged(batch) != self.ragged:
            return None
        parts = _parts(batch)
        if any(_fits(parts[index]) for index in self.objects):
            return None
        picked = []
        for group in self.groups:
            tensors = [parts[index] for index in group.parts]
            dtype = _DTYPES[group.dtype_code]
            shape = group.shape[::-1] if group.is_transposed else group.shape
            for tensor in tensors:
                if not _fits(tensor) or tensor.dtype is not dtype or tensor.shape != shape:
                    return None
            picked.append([tensor.mT for tensor in tensors] if group.is_transposed else tensors)
        return picked


class SlabDescriptor(NamedTuple):
    """What changes from batch to batch beside the slab: the parts that are no dense tensors, and the row count."""

    objects: tuple[Any, ...]
    num_rows: int


@dataclass(frozen=True, slots=True)
class TensorBatchCodec:
    """Batches to slabs and back: `TensorBatch`es, and the plain dicts, tuples and lists that transforms return."""

    def write(
        self, batch: Any, allocate: Callable[[int], Tensor], layout: SlabLayout | None = None
    ) -> tuple[SlabLayout, SlabDescriptor] | None:
        """Copies every dense CPU tensor of the batch into `allocate(num_bytes)` and says how to read it back.

        Anything else in it (Python lists, sparse or nested tensors, tensor subclasses) goes into the descriptor.
        None for batches that hold no dense tensor, or are something else than a dict, tuple or list of columns.
        `layout` may be that of an earlier batch: the same object comes back if it fits.

        Raises:
            InternalError: the buffer is smaller than asked for.
        """
        if type(batch) not in (TensorBatch, dict, tuple, list):
            return None
        tensors = layout.pick(batch) if layout is not None else None
        if layout is None or tensors is None:
            layout = SlabLayout.of(batch)
            tensors = layout.pick(batch)
        if not tensors:
            return None
        buffer = allocate(layout.num_bytes)
        if layout.num_bytes > buffer.shape[0]:
            raise InternalError(f"A batch needs {layout.num_bytes} bytes, its slab has {buffer.shape[0]}.")
        for group, members in zip(layout.groups, tensors, strict=True):
            torch.stack(members, out=_region(group, buffer))
        parts = _parts(batch) if layout.objects else []
        num_rows = batch.num_rows if isinstance(batch, TensorBatch) else 0
        return layout, SlabDescriptor(tuple(parts[index] for index in layout.objects), num_rows)

    def cut(
        self, layout: SlabLayout, descriptor: SlabDescriptor, buffer: Tensor, rows: Sequence[int]
    ) -> Iterator[TensorBatch]:
        """As `view`, as batches of `rows[0]`, `rows[1]`, ... rows; only for a `TensorBatch`, of so many rows in all.

        A whole group is cut at once: three cuts and three unbinds give a batch its 51 columns.
        """
        if layout.objects or any(layout.ragged) or not layout.groups:
            yield from self.view(layout, descriptor, buffer).cut(rows)
            return
        groups = [torch.unsafe_split_with_sizes(_tensors(group, buffer), rows, dim=1) for group in layout.groups]
        for pieces in zip(*groups, strict=True):
            parts = _numbered(layout, pieces)
            yield TensorBatch(zip(layout.names, map(parts.__getitem__, range(len(parts))), strict=True))

    def view(self, layout: SlabLayout, descriptor: SlabDescriptor, buffer: Tensor) -> Any:
        """The batch that was written, as views of `buffer`, which may be a copy of the slab on any device."""
        parts = dict(zip(layout.objects, descriptor.objects, strict=True))
        parts |= _numbered(layout, [_tensors(group, buffer) for group in layout.groups])
        columns: Iterator[Any] = map(parts.__getitem__, range(len(parts)))
        if any(layout.ragged):
            flat = columns
            columns = (Ragged(next(flat), next(flat)) if is_ragged else next(flat) for is_ragged in layout.ragged)
        if layout.container in (tuple, list):
            return layout.container(columns)
        named = zip(layout.names, columns, strict=True)
        return TensorBatch(named, num_rows=descriptor.num_rows) if layout.container is TensorBatch else dict(named)


def _columns(batch: Batch) -> Iterable[Any]:
    return batch.values() if isinstance(batch, dict) else batch


def _names(batch: Batch) -> tuple[str, ...]:
    return tuple(batch) if isinstance(batch, dict) else ()


def _ragged(batch: Batch) -> tuple[bool, ...]:
    return tuple([type(column) is Ragged for column in _columns(batch)])


def _parts(batch: Batch) -> list[Any]:
    parts: list[Any] = []
    for column in _columns(batch):
        if type(column) is Ragged:
            parts += (column.values, column.offsets)
        else:
            parts.append(column)
    return parts


def _fits(part: Any) -> bool:
    return is_plain(part) and part.dtype in _CODES


def _region(group: SlabGroup, buffer: Tensor) -> Tensor:
    """The group's part of the buffer, shape [tensors, *group.shape]."""
    dtype, count = _DTYPES[group.dtype_code], len(group.parts)
    raw = buffer[group.offset : group.offset + count * group.pitch_bytes].view(dtype)
    rows = raw.view(count, group.pitch_bytes // dtype.itemsize)
    return rows[:, : prod(group.shape)].view(count, *group.shape)


def _tensors(group: SlabGroup, buffer: Tensor) -> Tensor:
    """The tensors of the group as batches have them, shape [tensors, rows, ...]."""
    region = _region(group, buffer)
    return region.mT if group.is_transposed else region


def _numbered(layout: SlabLayout, groups: Sequence[Tensor]) -> dict[int, Any]:
    """The parts of a batch that are tensors, by their number in it, from all tensors of each group."""
    numbers = chain.from_iterable(group.parts for group in layout.groups)
    return dict(zip(numbers, chain.from_iterable(group.unbind() for group in groups), strict=True))
