"""A whole batch in one flat byte buffer, so that it crosses a process border or a bus as one thing.

Pure layout arithmetic: where the bytes of every tensor go, or lie already, and the views that read them back. Whose
memory a buffer is (shared, pinned, on a device) and when it is free again is the stream's business.

Tensors of one dtype and shape lie one after the other as a group, every tensor that is written at a multiple of 64
bytes: a group is written by one call and read back by one call, which is what makes 51 columns cheap.
`TensorBatchCodec` implements `_core.block.SlabCodec`.

    columns a, b float32 [100], y int8 [100]      group 0: a at 0, b at 448      group 1: y at 896      1,024 bytes
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import prod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torch_dataloader_utils._core.recycled import RecycledMemory
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.shape.one_piece import ALIGNMENT_BYTES, is_plain
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.recycled import RECYCLED
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

Place = tuple[int, int]
"""The number of a slab, and a byte in it."""
Find = Callable[[Tensor], Place | None]
"""Where a tensor begins, if that is in a slab."""

# The buffer of tensors that were copied: the last one.
_COPIED = -1
# dtype; shape in memory; whether the tensor is the transpose of that
_Look = tuple[torch.dtype, torch.Size, bool]


class SlabGroup(NamedTuple):
    """Tensors of one dtype and shape; number i begins at byte `offset + i * pitch_bytes` of buffer number `buffer`.

    shape and strides (in elements) are what lies in memory: for a transposed group (column-major matrices) that is
    [columns, rows]. parts says which parts of the batch they are, see `SlabLayout`. buffer is -1, the last one, where
    the tensors were copied.
    """

    dtype_code: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_transposed: bool
    parts: tuple[int, ...]
    buffer: int
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
        """The layout of a batch, all of which is to be copied."""
        return cls.found(batch, _nowhere)[0]

    @classmethod
    def found(cls, batch: Batch, find: Find) -> tuple[Self, tuple[Place, ...]]:
        """The layout of a batch, tensors that `find` finds referred to and the others to be copied.

        Also the place where buffer 0, 1, ... of the layout begins: there is one for each group that is referred to.
        """
        copied: dict[_Look, list[int]] = {}
        lying: dict[tuple[_Look, tuple[int, ...], int], list[tuple[int, int]]] = {}
        objects = []
        for index, part in enumerate(_parts(batch)):
            if not _fits(part):
                objects.append(index)
                continue
            is_transposed = part.dim() == 2 and part.stride(0) == 1 < part.shape[1]
            inside = part.mT if is_transposed else part
            look = (part.dtype, inside.shape, is_transposed)
            place = find(part)
            if place is None:
                copied.setdefault(look, []).append(index)
            else:
                slab, start = place
                lying.setdefault((look, inside.stride(), slab), []).append((start, index))
        groups: list[SlabGroup] = []
        places: list[Place] = []
        for ((dtype, shape, is_transposed), strides, slab), members in lying.items():
            for start, pitch, parts in _evenly_spaced(members):
                groups.append(
                    SlabGroup(_CODES[dtype], tuple(shape), strides, is_transposed, parts, len(places), 0, pitch)
                )
                places.append((slab, start))
        offset = 0
        for (dtype, shape, is_transposed), indices in copied.items():
            pitch = -(-prod(shape) * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            groups.append(
                SlabGroup(
                    _CODES[dtype], tuple(shape), _dense(shape), is_transposed, tuple(indices), _COPIED, offset, pitch
                )
            )
            offset += pitch * len(indices)
        layout = cls(type(batch), _names(batch), _ragged(batch), tuple(objects), tuple(groups), offset)
        return layout, tuple(places)

    @property
    def refers(self) -> bool:
        """Whether some tensors were found where they lay, and not copied."""
        return any(group.buffer != _COPIED for group in self.groups)

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

    def describe(self, batch: Batch) -> "SlabDescriptor":
        """What is to be said of this batch beside its layout."""
        parts = _parts(batch) if self.objects else []
        num_rows = batch.num_rows if isinstance(batch, TensorBatch) else 0
        return SlabDescriptor(tuple(parts[index] for index in self.objects), num_rows)


class SlabDescriptor(NamedTuple):
    """What changes from batch to batch beside the slab: the parts that are no dense tensors, and the row count."""

    objects: tuple[Any, ...]
    num_rows: int


@dataclass(frozen=True, slots=True)
class TensorBatchCodec:
    """Batches to slabs and back: `TensorBatch`es, and the plain dicts, tuples and lists that transforms return."""

    def lie_in(self, memory: RecycledMemory) -> None:
        """From now on the large blocks of this process lie in this memory."""
        RECYCLED.lie_in(memory)

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
        tensors = layout.pick(batch) if layout is not None and not layout.refers else None
        if layout is None or tensors is None:
            layout = SlabLayout.of(batch)
            tensors = layout.pick(batch)
        if not tensors:
            return None
        _copy(layout, tensors, allocate)
        return layout, layout.describe(batch)

    def refer(
        self, batch: Any, find: Find, allocate: Callable[[int], Tensor]
    ) -> tuple[SlabLayout, SlabDescriptor, tuple[Place, ...]] | None:
        """As `write`, but tensors that `find` finds stay where they are: also where the buffers of `view` begin.

        What is not found, if anything is, is copied, and `allocate(num_bytes)` is the last of the buffers.
        """
        if type(batch) not in (TensorBatch, dict, tuple, list):
            return None
        layout, places = SlabLayout.found(batch, find)
        if not layout.groups:
            return None
        if len(layout.groups) > len(places):  # the last ones are of what is copied
            _copy(layout, layout.pick(batch) or [], allocate)
        return layout, layout.describe(batch), places

    def cut(
        self, layout: SlabLayout, descriptor: SlabDescriptor, buffers: Sequence[Tensor], rows: Sequence[int]
    ) -> Iterator[TensorBatch]:
        """As `view`, as batches of `rows[0]`, `rows[1]`, ... rows; only for a `TensorBatch`, of so many rows in all.

        A whole group is cut at once: three cuts and three unbinds give a batch its 51 columns.
        """
        if layout.objects or any(layout.ragged) or not layout.groups:
            yield from self.view(layout, descriptor, buffers).cut(rows)
            return
        groups = [torch.unsafe_split_with_sizes(_tensors(group, buffers), rows, dim=1) for group in layout.groups]
        for pieces in zip(*groups, strict=True):
            parts = _numbered(layout, pieces)
            yield TensorBatch(zip(layout.names, map(parts.__getitem__, range(len(parts))), strict=True))

    def view(self, layout: SlabLayout, descriptor: SlabDescriptor, buffers: Sequence[Tensor]) -> Any:
        """The batch that was written, as views of its buffers, which may be copies of them on any device."""
        parts = dict(zip(layout.objects, descriptor.objects, strict=True))
        parts |= _numbered(layout, [_tensors(group, buffers) for group in layout.groups])
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


def _nowhere(tensor: Tensor) -> None:  # noqa: ARG001
    return None


def _evenly_spaced(members: list[tuple[int, int]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """(first byte, pitch, parts) of groups, from the first byte and the part of every tensor: one if it can be."""
    members.sort()
    starts, parts = zip(*members, strict=True)
    pitches = {after - before for before, after in pairwise(starts)}
    if len(pitches) == 1:
        yield starts[0], pitches.pop(), parts
    else:
        yield from ((start, 0, (part,)) for start, part in members)


def _dense(shape: torch.Size) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _copy(layout: SlabLayout, tensors: Sequence[Sequence[Tensor]], allocate: Callable[[int], Tensor]) -> None:
    buffer = allocate(layout.num_bytes)
    if layout.num_bytes > buffer.shape[0]:
        raise InternalError(f"A batch needs {layout.num_bytes} bytes, its slab has {buffer.shape[0]}.")
    for group, members in zip(layout.groups, tensors, strict=True):
        if group.buffer == _COPIED:
            torch.stack(list(members), out=_in_memory(group, buffer))


def _in_memory(group: SlabGroup, buffer: Tensor) -> Tensor:
    """The group's part of its buffer, shape [tensors, *group.shape]."""
    dtype = _DTYPES[group.dtype_code]
    typed = buffer[: buffer.shape[0] // dtype.itemsize * dtype.itemsize].view(dtype)
    return typed.as_strided(
        (len(group.parts), *group.shape),
        (group.pitch_bytes // dtype.itemsize, *group.strides),
        typed.storage_offset() + group.offset // dtype.itemsize,
    )


def _tensors(group: SlabGroup, buffers: Sequence[Tensor]) -> Tensor:
    """The tensors of the group as batches have them, shape [tensors, rows, ...]."""
    inside = _in_memory(group, buffers[group.buffer])
    return inside.mT if group.is_transposed else inside


def _numbered(layout: SlabLayout, groups: Sequence[Tensor]) -> dict[int, Any]:
    """The parts of a batch that are tensors, by their number in it, from all tensors of each group."""
    numbers = chain.from_iterable(group.parts for group in layout.groups)
    return dict(zip(numbers, chain.from_iterable(group.unbind() for group in groups), strict=True))
