"""Lay batches out in few large buffers (slabs), write batches there, and make views of batches on the other side.

Implements `_core.slab_codec.SlabCodec`. The stream decides the memory of a buffer (shared, pinned, on a device) and
when a buffer is free again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torch_dataloader_utils._core.slab_codec import SlabPlace, SlabSpan
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.shape.batch_tree import BatchTree, is_container
from torch_dataloader_utils.shape.one_buffer import extent_bytes, is_plain, pitch_bytes, stack_into, typed
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

Find = Callable[[Tensor], SlabPlace | None]
"""Function that returns the place in a slab where a tensor begins; None if the tensor is not in a slab."""


class _Look(NamedTuple):
    """Properties that the tensors of a group share; shape and strides (in elements) as in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_transposed: bool


class SlabGroup(NamedTuple):
    """Group of tensors of one dtype and shape: tensor i begins at byte `offset + i * pitch_bytes` of a buffer.

    shape, strides (in elements): as in memory; for a transposed group (column-major matrices) [columns, rows].
    parts: numbers of the tensors' parts of the batch, see `SlabLayout`. buffer: number of the buffer.
    """

    dtype_code: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_transposed: bool
    parts: tuple[int, ...]
    buffer: int
    offset: int
    pitch_bytes: int

    def inside(self, buffer: Tensor) -> Tensor:
        """Return the tensors as they lie in their buffer, shape [tensors, *self.shape]."""
        numbers = typed(buffer, _DTYPES[self.dtype_code])
        return numbers.as_strided(
            (len(self.parts), *self.shape),
            (self.pitch_bytes // numbers.itemsize, *self.strides),
            numbers.storage_offset() + self.offset // numbers.itemsize,
        )

    def tensors(self, buffers: Sequence[Tensor]) -> Tensor:
        """Return the tensors as batches have them, shape [tensors, rows, ...]."""
        inside = self.inside(buffers[self.buffer])
        return inside.mT if self.is_transposed else inside


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """Layout of one batch: the places of its columns. Equal for batches of the same columns in the same places.

    Parts of the batch (see `BatchTree`) that are dense CPU tensors belong to a group. The other parts are objects and
    are sent beside the slab.

    form: tree of the batch. objects: part numbers of the objects. groups: groups of tensors; the first `lying` groups
    lie in slabs already, and the others are copied. num_bytes: bytes of the copied groups.
    """

    form: BatchTree
    objects: tuple[int, ...]
    groups: tuple[SlabGroup, ...]
    lying: int
    num_bytes: int

    @classmethod
    def of(cls, batch: object) -> Self:
        """Return the layout of a batch with all its tensors copied."""
        return cls.where_it_lies(batch, _nowhere)[0]

    @classmethod
    def where_it_lies(cls, batch: object, find: Find) -> tuple[Self, tuple[SlabSpan, ...]]:
        """Return the layout of a batch that leaves tensors in slabs (see `find`) in place, and these spans of slabs."""
        copied: dict[_Look, list[int]] = {}
        lying: dict[tuple[_Look, int], list[tuple[int, int]]] = {}
        objects = []
        form = BatchTree.of(batch)
        for index, part in enumerate(form.parts(batch)):
            if not _fits(part):
                objects.append(index)
                continue
            is_transposed = part.dim() == 2 and part.stride(0) == 1 < part.shape[1]
            inside = part.mT if is_transposed else part
            place = find(part)
            if place is None:
                look = _Look(part.dtype, tuple(inside.shape), _dense_strides(inside.shape), is_transposed)
                copied.setdefault(look, []).append(index)
            else:
                look = _Look(part.dtype, tuple(inside.shape), inside.stride(), is_transposed)
                lying.setdefault((look, place.slab), []).append((place.start, index))
        groups, spans = _lying_groups(lying)
        more, num_bytes = _copied_groups(copied, len(groups))
        layout = cls(
            form=form,
            objects=tuple(objects),
            groups=(*groups, *more),
            lying=len(groups),
            num_bytes=num_bytes,
        )
        return layout, tuple(spans)

    def pick(self, batch: object) -> list[list[Tensor]] | None:
        """Return the tensors of every group as they lie in memory; None if this is not the layout of `batch`."""
        if BatchTree.of(batch) != self.form:
            return None
        parts = self.form.parts(batch)
        if any(_fits(parts[index]) for index in self.objects):
            return None
        picked = []
        for group in self.groups:
            tensors = [parts[index] for index in group.parts]
            dtype = _DTYPES[group.dtype_code]
            shape = group.shape[::-1] if group.is_transposed else group.shape
            for tensor in tensors:
                if not is_plain(tensor) or tensor.dtype is not dtype or tensor.shape != shape:
                    return None
            picked.append([tensor.mT for tensor in tensors] if group.is_transposed else tensors)
        return picked

    def objects_of(self, batch: object) -> tuple[Any, ...]:
        """Return the parts of the batch that belong to no group."""
        parts = self.form.parts(batch) if self.objects else []
        return tuple(parts[index] for index in self.objects)


def _fits(part: Any) -> bool:
    return is_plain(part) and part.dtype in _CODES


def _nowhere(tensor: Tensor) -> None:  # noqa: ARG001
    return None


def _lying_groups(
    lying: dict[tuple[_Look, int], list[tuple[int, int]]],
) -> tuple[list[SlabGroup], list[SlabSpan]]:
    """Return the groups of tensors that lie in slabs, and the spans of slabs that they use.

    lying: for each look and slab, the (first byte, part number) of every tensor.
    """
    groups: list[SlabGroup] = []
    spans: list[SlabSpan] = []
    for (look, slab), members in lying.items():
        for start, pitch, parts in _evenly_spaced(sorted(members)):
            groups.append(_group(look, parts, buffer=len(spans), offset=0, pitch=pitch))
            extent = extent_bytes(look.dtype, look.shape, look.strides)
            spans.append(SlabSpan(slab, start, start + pitch * (len(parts) - 1) + extent))
    return groups, spans


def _copied_groups(copied: dict[_Look, list[int]], buffer: int) -> tuple[list[SlabGroup], int]:
    """Return the groups of copied tensors, one after the other in buffer number `buffer`, and their bytes."""
    groups, offset = [], 0
    for look, parts in copied.items():
        pitch = pitch_bytes(prod(look.shape) * look.dtype.itemsize)
        groups.append(_group(look, tuple(parts), buffer=buffer, offset=offset, pitch=pitch))
        offset += pitch * len(parts)
    return groups, offset


def _group(look: _Look, parts: tuple[int, ...], *, buffer: int, offset: int, pitch: int) -> SlabGroup:
    return SlabGroup(
        dtype_code=_CODES[look.dtype],
        shape=look.shape,
        strides=look.strides,
        is_transposed=look.is_transposed,
        parts=parts,
        buffer=buffer,
        offset=offset,
        pitch_bytes=pitch,
    )


def _evenly_spaced(members: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield (first start, pitch, parts) of groups, from the ascending (start, part) of every tensor.

    [(0, a), (64, b), (128, c), (500, d)]      (0, 64, (a, b, c)), (500, 0, (d,))
    """
    starts, parts = zip(*members, strict=True)
    first = 0
    while first < len(starts):
        stop = first + 1
        pitch = starts[stop] - starts[first] if stop < len(starts) else 0
        while stop < len(starts) and starts[stop] - starts[stop - 1] == pitch:
            stop += 1
        yield starts[first], pitch, parts[first:stop]
        first = stop


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


Objects = tuple[Any, ...]
"""Parts of a batch that are not dense tensors; they are sent beside the slab."""


@dataclass(frozen=True, slots=True)
class TensorBatchCodec:
    """Codec of batches to slabs and back: `TensorBatch`es, and the dicts, tuples and lists that transforms return."""

    def write(
        self, batch: object, allocate: Callable[[int], Tensor], layout: SlabLayout | None = None
    ) -> tuple[SlabLayout, Objects] | None:
        """Copy every dense CPU tensor of the batch into `allocate(num_bytes)`. Return layout and objects to read it.

        All other parts (Python lists, sparse or nested tensors, tensor subclasses) are objects. Returns None for a
        batch without dense tensors, or a batch that is not a dict, (named) tuple or list of columns. `layout` may be
        the layout of an earlier batch: the same object is returned if it fits.

        Raises:
            InternalError: the buffer is smaller than requested.
        """
        if not is_container(batch):
            return None
        tensors = layout.pick(batch) if layout is not None and not layout.lying else None
        if layout is None or tensors is None:
            layout = SlabLayout.of(batch)
            tensors = layout.pick(batch)
        if not tensors:
            return None
        _copy(layout, tensors, allocate)
        return layout, layout.objects_of(batch)

    def refer(
        self, batch: object, find: Find, allocate: Callable[[int], Tensor]
    ) -> tuple[SlabLayout, Objects, tuple[SlabSpan, ...]] | None:
        """Write a batch as `write` does, but leave tensors in slabs in place. Return also the spans of these slabs.

        `find` finds tensors in slabs. All other dense tensors are copied into `allocate(num_bytes)`, the last buffer.

        Raises:
            InternalError: the buffer is smaller than requested.
        """
        if not is_container(batch):
            return None
        layout, spans = SlabLayout.where_it_lies(batch, find)
        if not layout.groups:
            return None
        if len(layout.groups) > layout.lying:
            tensors = layout.pick(batch)
            if tensors is None:
                raise InternalError("A batch does not fit its own layout. Please report this with its columns.")
            _copy(layout, tensors, allocate)
        return layout, layout.objects_of(batch), spans

    def cut(
        self, layout: SlabLayout, objects: Objects, buffers: Sequence[Tensor], rows: Sequence[int]
    ) -> Iterator[TensorBatch]:
        """Yield the batch of `view` cut into batches of `rows[0]`, `rows[1]`, ... rows; only for a `TensorBatch`.

        The numbers add up to the rows of the batch. Each group of tensors is cut at once: 51 columns of three dtypes
        take three cuts.
        """
        if layout.objects or any(layout.form.columns) or not layout.groups:
            yield from self.view(layout, objects, buffers).cut(rows)
            return
        groups = [torch.unsafe_split_with_sizes(group.tensors(buffers), rows, dim=1) for group in layout.groups]
        for columns in zip(*groups, strict=True):
            parts = _numbered(layout, columns)
            yield TensorBatch(zip(layout.form.names, map(parts.__getitem__, range(len(parts))), strict=True))

    def view(self, layout: SlabLayout, objects: Objects, buffers: Sequence[Tensor]) -> Any:
        """Return the batch, as views of its buffers or of copies of the buffers on any device."""
        parts = dict(zip(layout.objects, objects, strict=True))
        parts |= _numbered(layout, [group.tensors(buffers) for group in layout.groups])
        return layout.form.filled(map(parts.__getitem__, range(len(parts))))


def _copy(layout: SlabLayout, tensors: Sequence[list[Tensor]], allocate: Callable[[int], Tensor]) -> None:
    """Copy the groups that do not lie in slabs."""
    buffer = allocate(layout.num_bytes)
    if layout.num_bytes > buffer.shape[0]:
        raise InternalError(f"A batch needs {layout.num_bytes} bytes, its slab has {buffer.shape[0]}.")
    for group, members in zip(layout.groups[layout.lying :], tensors[layout.lying :], strict=True):
        stack_into(members, group.inside(buffer))


def _numbered(layout: SlabLayout, groups: Sequence[Tensor]) -> dict[int, Any]:
    """Return the tensors of all groups, by their part number in the batch."""
    numbers = chain.from_iterable(group.parts for group in layout.groups)
    return dict(zip(numbers, chain.from_iterable(group.unbind() for group in groups), strict=True))
