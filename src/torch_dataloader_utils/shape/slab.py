"""A whole batch in one flat byte buffer, so that it crosses a process border or a bus as one thing.

Pure layout arithmetic: where the bytes of every tensor go, and the views that read them back. Whose memory the buffer
is (shared, pinned, on a device) and when it is free again is the stream's business.

Tensors of one dtype and shape lie one after the other as a group, every tensor at a multiple of 64 bytes: a group
is written by one call and read back by one call, which is what makes 51 columns cheap.

    columns a, b float32 [100], y int8 [100]      group 0: a at 0, b at 448      group 1: y at 896      1,024 bytes
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

ALIGNMENT_BYTES = 64

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
    """Where the columns of one batch lie.

    A batch is a sequence of parts: a `Ragged` column has two (values, offsets), every other column one. Parts that
    are dense CPU tensors belong to a group; the others (`objects`) travel beside the slab.
    """

    names: tuple[str, ...]
    ragged: tuple[bool, ...]
    objects: tuple[int, ...]
    groups: tuple[SlabGroup, ...]
    num_bytes: int

    @classmethod
    def of(cls, batch: TensorBatch) -> Self:
        """The layout of a batch; equal for batches of the same columns, dtypes and shapes."""
        keys: dict[tuple[torch.dtype, torch.Size, bool], list[int]] = {}
        objects = []
        for index, part in enumerate(_parts(batch)):
            if not _fits(part):
                objects.append(index)
                continue
            is_transposed = part.dim() == 2 and part.stride(0) == 1 < part.shape[1]
            keys.setdefault((part.dtype, part.mT.shape if is_transposed else part.shape, is_transposed), []).append(
                index
            )
        groups = []
        offset = 0
        for (dtype, shape, is_transposed), parts in keys.items():
            pitch = -(-prod(shape) * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            groups.append(SlabGroup(_CODES[dtype], tuple(shape), is_transposed, tuple(parts), offset, pitch))
            offset += pitch * len(parts)
        return cls(tuple(batch), _ragged(batch), tuple(objects), tuple(groups), offset)

    def pick(self, batch: TensorBatch) -> list[list[Tensor]] | None:
        """The tensors of every group as they lie in memory; None if this is not the layout of `batch`."""
        if tuple(batch) != self.names or _ragged(batch) != self.ragged:
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


@dataclass(frozen=True, slots=True)
class SlabDescriptor:
    """What has to travel beside the slab: the layout, the parts that are no dense tensors, the row count. Picklable."""

    layout: SlabLayout
    objects: tuple[Any, ...]
    num_rows: int


def write_slab(batch: TensorBatch, buffer: Tensor, layout: SlabLayout | None = None) -> SlabDescriptor:
    """Copies every dense CPU tensor of the batch into `buffer` (uint8, one dimension) and says how to read it back.

    Anything else (Python lists, sparse or nested tensors, tensor subclasses) goes into the descriptor as it is.
    `layout` may be that of an earlier batch: if it still fits, none is computed and the descriptor holds that object.

    Raises:
        ConfigError: the buffer is smaller than the layout's `num_bytes`.
    """
    layout, tensors = _fit(batch, layout)
    if layout.num_bytes > buffer.shape[0]:
        raise ConfigError(
            f"a batch of {batch.num_rows} rows needs {layout.num_bytes} bytes, the slab has {buffer.shape[0]}. "
            "Use a larger slab or a smaller batch"
        )
    return _store(batch, layout, tensors, buffer)


def _fit(batch: TensorBatch, layout: SlabLayout | None) -> tuple[SlabLayout, list[list[Tensor]]]:
    """The layout of a batch, `layout` itself if it fits, and the tensors of its groups."""
    tensors = layout.pick(batch) if layout is not None else None
    if layout is None or tensors is None:
        layout = SlabLayout.of(batch)
        tensors = layout.pick(batch) or []
    return layout, tensors


def _store(batch: TensorBatch, layout: SlabLayout, tensors: list[list[Tensor]], buffer: Tensor) -> SlabDescriptor:
    for group, members in zip(layout.groups, tensors, strict=True):
        torch.stack(members, out=_region(group, buffer))
    parts = _parts(batch) if layout.objects else []
    return SlabDescriptor(layout, tuple(parts[index] for index in layout.objects), batch.num_rows)


def view_slab(descriptor: SlabDescriptor, buffer: Tensor) -> TensorBatch:
    """The batch that was written, as views of `buffer`, which may be a copy of the slab on any device."""
    layout = descriptor.layout
    parts = dict(zip(layout.objects, descriptor.objects, strict=True))
    for group in layout.groups:
        region = _region(group, buffer)
        parts.update(zip(group.parts, (region.mT if group.is_transposed else region).unbind(), strict=True))
    ordered = map(parts.__getitem__, range(len(parts)))
    if any(layout.ragged):
        columns = [Ragged(next(ordered), next(ordered)) if ragged else next(ordered) for ragged in layout.ragged]
        return TensorBatch(zip(layout.names, columns, strict=True), num_rows=descriptor.num_rows)
    return TensorBatch(zip(layout.names, ordered, strict=True), num_rows=descriptor.num_rows)


@dataclass(frozen=True, slots=True)
class TensorBatchCodec:
    """The stream's `SlabCodec` for `TensorBatch`: the layout apart from the rest, because it seldom changes."""

    def write(
        self, batch: Any, allocate: Callable[[int], Tensor], layout: SlabLayout | None
    ) -> tuple[SlabLayout, Any] | None:
        """See SlabCodec; a batch without dense tensors is none for slabs."""
        if type(batch) is not TensorBatch:
            return None
        layout, tensors = _fit(batch, layout)
        if not layout.groups:
            return None
        written = _store(batch, layout, tensors, allocate(layout.num_bytes))
        return layout, (written.objects, written.num_rows)

    def view(self, layout: SlabLayout, descriptor: Any, buffer: Tensor) -> TensorBatch:
        """See SlabCodec."""
        objects, num_rows = descriptor
        return view_slab(SlabDescriptor(layout, objects, num_rows), buffer)


def _ragged(batch: TensorBatch) -> tuple[bool, ...]:
    return tuple(type(column) is Ragged for column in batch.values())


def _parts(batch: TensorBatch) -> list[Any]:
    parts: list[Any] = []
    for column in batch.values():
        if type(column) is Ragged:
            parts += (column.values, column.offsets)
        else:
            parts.append(column)
    return parts


def _fits(part: Any) -> bool:
    return (
        type(part) is Tensor
        and part.is_cpu
        and part.layout == torch.strided
        and part.dtype in _CODES
        and not part.requires_grad
    )


def _region(group: SlabGroup, buffer: Tensor) -> Tensor:
    """The group's part of the buffer, shape [tensors, *group.shape]."""
    dtype, count = _DTYPES[group.dtype_code], len(group.parts)
    raw = buffer[group.offset : group.offset + count * group.pitch_bytes].view(dtype)
    rows = raw.view(count, group.pitch_bytes // dtype.itemsize)
    return rows[:, : prod(group.shape)].view(count, *group.shape)
