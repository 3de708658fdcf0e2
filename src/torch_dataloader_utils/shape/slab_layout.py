"""The layout of one batch: where its tensors lie in flat byte buffers, and the views that read them back.

Tensors of one dtype and shape at even distances form a group, which is read back by one call: 51 columns of three
dtypes are three groups. Tensors that are copied lie one after the other in the last buffer, each at a multiple of 64
bytes. For tensors that lie in slabs already, each group has a buffer, which begins at its first tensor.

    columns a, b float32 [100], y int8 [100], all to be copied
    group 0: a at 0, b at 448      group 1: y at 896      1,024 bytes
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torch_dataloader_utils._core.slab_codec import SlabPlace, SlabSpan
from torch_dataloader_utils.shape.form import Form
from torch_dataloader_utils.shape.one_piece import extent_bytes, is_plain, pitch_bytes, typed

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
"""Finds where a tensor begins in a slab; None if it is in none."""


class _Look(NamedTuple):
    """What the tensors of a group have in common; shape and strides (in elements) as in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_transposed: bool


class SlabGroup(NamedTuple):
    """Tensors of one dtype and shape; number i begins at byte `offset + i * pitch_bytes` of buffer number `buffer`.

    shape, strides (in elements): as in memory; for a transposed group (column-major matrices) [columns, rows].
    parts: which parts of the batch they are, see `SlabLayout`.
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
        """The tensors as they lie in their buffer, shape [tensors, *self.shape]."""
        numbers = typed(buffer, _DTYPES[self.dtype_code])
        return numbers.as_strided(
            (len(self.parts), *self.shape),
            (self.pitch_bytes // numbers.itemsize, *self.strides),
            numbers.storage_offset() + self.offset // numbers.itemsize,
        )

    def tensors(self, buffers: Sequence[Tensor]) -> Tensor:
        """The tensors as batches have them, shape [tensors, rows, ...]."""
        inside = self.inside(buffers[self.buffer])
        return inside.mT if self.is_transposed else inside


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """Where the columns of one batch lie; equal for batches of the same columns in the same places.

    Parts of the batch (see `Form`) that are dense CPU tensors belong to a group; the others are sent beside the slab.

    objects: numbers of those other parts. lying: how many groups, the first ones, lie in slabs already.
    num_bytes: bytes of the groups that are copied.
    """

    form: Form
    objects: tuple[int, ...]
    groups: tuple[SlabGroup, ...]
    lying: int
    num_bytes: int

    @classmethod
    def of(cls, batch: Any) -> Self:
        """The layout of a batch of which all tensors are copied."""
        return cls.where_it_lies(batch, _nowhere)[0]

    @classmethod
    def where_it_lies(cls, batch: Any, find: Find) -> tuple[Self, tuple[SlabSpan, ...]]:
        """The layout of a batch whose tensors in slabs (see `find`) stay there, and the spans of slabs they lie in."""
        copied: dict[_Look, list[int]] = {}
        lying: dict[tuple[_Look, int], list[tuple[int, int]]] = {}
        objects = []
        form = Form.of(batch)
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

    def pick(self, batch: Any) -> list[list[Tensor]] | None:
        """The tensors of every group as they lie in memory; None if this is not the layout of `batch`."""
        if Form.of(batch) != self.form:
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
                if not _fits(tensor) or tensor.dtype is not dtype or tensor.shape != shape:
                    return None
            picked.append([tensor.mT for tensor in tensors] if group.is_transposed else tensors)
        return picked

    def objects_of(self, batch: Any) -> tuple[Any, ...]:
        """The parts of the batch that belong to no group."""
        parts = self.form.parts(batch) if self.objects else []
        return tuple(parts[index] for index in self.objects)


def _fits(part: Any) -> bool:
    return is_plain(part) and part.dtype in _CODES


def _nowhere(tensor: Tensor) -> None:  # noqa: ARG001
    return None


def _lying_groups(
    lying: dict[tuple[_Look, int], list[tuple[int, int]]],
) -> tuple[list[SlabGroup], list[SlabSpan]]:
    """lying: for tensors that look alike, in one slab, the byte where each begins and which part it is."""
    groups: list[SlabGroup] = []
    spans: list[SlabSpan] = []
    for (look, slab), members in lying.items():
        for start, pitch, parts in _evenly_spaced(sorted(members)):
            groups.append(_group(look, parts, buffer=len(spans), offset=0, pitch=pitch))
            extent = extent_bytes(look.dtype, look.shape, look.strides)
            spans.append(SlabSpan(slab, start, start + pitch * (len(parts) - 1) + extent))
    return groups, spans


def _copied_groups(copied: dict[_Look, list[int]], buffer: int) -> tuple[list[SlabGroup], int]:
    """The groups, one after the other in this buffer, and the bytes that they take."""
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
    """(first start, pitch, parts) of groups, from the ascending (start, part) of every tensor.

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
