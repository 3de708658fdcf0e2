"""Writes batches to few large buffers (slabs), to be sent to another process or a device.

Implements `_core.slab_codec.SlabCodec`. The stream decides which memory a buffer is (shared, pinned, on a device) and
when it is free again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from torch_dataloader_utils._core.slab_codec import SlabSpan
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.shape.form import is_container
from torch_dataloader_utils.shape.slab_layout import Find, SlabLayout
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

Objects = tuple[Any, ...]
"""The parts of a batch that are not dense tensors; they are sent beside the slab."""


@dataclass(frozen=True, slots=True)
class TensorBatchCodec:
    """Batches to slabs and back: `TensorBatch`es, and the dicts, tuples and lists that transforms return."""

    def write(
        self, batch: Any, allocate: Callable[[int], Tensor], layout: SlabLayout | None = None
    ) -> tuple[SlabLayout, Objects] | None:
        """Copies every dense CPU tensor of the batch into `allocate(num_bytes)` and says how to read it back.

        Anything else in it (Python lists, sparse or nested tensors, tensor subclasses) goes into the objects.
        None for a batch without dense tensors, or one that is no dict, (named) tuple or list of columns.
        `layout` may be that of an earlier written batch: the same object is returned if it fits.

        Raises:
            InternalError: the buffer is smaller than asked for.
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
        self, batch: Any, find: Find, allocate: Callable[[int], Tensor]
    ) -> tuple[SlabLayout, Objects, tuple[SlabSpan, ...]] | None:
        """As `write`, but tensors that `find` finds in slabs stay there; also returns the spans of slabs they lie in.

        All other dense tensors, if there are any, are copied into `allocate(num_bytes)`, the last buffer.

        Raises:
            InternalError: the buffer is smaller than asked for.
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
        """As `view`, cut into batches of `rows[0]`, `rows[1]`, ... rows (in all); only for a `TensorBatch`.

        Each group of tensors is cut at once: 51 columns of three dtypes take three cuts.
        """
        if layout.objects or any(layout.form.columns) or not layout.groups:
            yield from self.view(layout, objects, buffers).cut(rows)
            return
        groups = [torch.unsafe_split_with_sizes(group.tensors(buffers), rows, dim=1) for group in layout.groups]
        for pieces in zip(*groups, strict=True):
            parts = _numbered(layout, pieces)
            yield TensorBatch(zip(layout.form.names, map(parts.__getitem__, range(len(parts))), strict=True))

    def view(self, layout: SlabLayout, objects: Objects, buffers: Sequence[Tensor]) -> Any:
        """The batch, as views of its buffers, which may be copies of them on any device."""
        parts = dict(zip(layout.objects, objects, strict=True))
        parts |= _numbered(layout, [group.tensors(buffers) for group in layout.groups])
        return layout.form.filled(map(parts.__getitem__, range(len(parts))))


def _copy(layout: SlabLayout, tensors: Sequence[list[Tensor]], allocate: Callable[[int], Tensor]) -> None:
    """Copy the groups that do not lie in slabs yet."""
    buffer = allocate(layout.num_bytes)
    if layout.num_bytes > buffer.shape[0]:
        raise InternalError(f"A batch needs {layout.num_bytes} bytes, its slab has {buffer.shape[0]}.")
    for group, members in zip(layout.groups[layout.lying :], tensors[layout.lying :], strict=True):
        torch.stack(members, out=group.inside(buffer))


def _numbered(layout: SlabLayout, groups: Sequence[Tensor]) -> dict[int, Any]:
    """The tensors of all groups, by their part number in the batch."""
    numbers = chain.from_iterable(group.parts for group in layout.groups)
    return dict(zip(numbers, chain.from_iterable(group.unbind() for group in groups), strict=True))
