"""The slab ring: a worker process hands batches over in shared memory that is used again and again.

    worker   writes all columns of a batch into one of its slabs        queue carries: slab number, row count
    trainer  makes views of the slab; when the last tensor that looks at it dies, the slab is free
    ticket   the next request to that worker says which of its slabs are free again

The worker owns its slabs and makes another one when none is known to be free, so a trainer that keeps batches costs
memory and never waits. Slabs are torch tensors in shared memory that has no name (see `shared_memory`): nothing is left
behind, however a process ends.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from torch_dataloader_utils._core.block import SlabCodec
from torch_dataloader_utils._core.lending import Loans
from torch_dataloader_utils.stream.shared_memory import shared_bytes

# Batches of lists differ in size; a slab with a fifth to spare is rarely outgrown.
_SPARE = 1.2
_ALIGNMENT_BYTES = 4096


class SlabMessage(NamedTuple):
    """What travels through the queue for one batch.

    slab: number of the worker's slab. buffer: the slab itself, the first time it is used.
    descriptor: how to read the batch, see SlabCodec; layout: the part of it that seldom changes, when it changed.
    retired: slabs that are too small by now and will not be used again.
    """

    slab: int
    descriptor: Any
    layout: Any = None
    buffer: torch.Tensor | None = None
    retired: tuple[int, ...] = ()


@dataclass(slots=True)
class SlabWriter:
    """A worker's side: its slabs, those it knows to be free, and the layout of its last batch."""

    codec: SlabCodec
    _slabs: dict[int, torch.Tensor] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _layout: Any = None
    _count: int = 0

    def reclaim(self, slabs: tuple[int, ...]) -> None:
        """The trainer has let go of these slabs."""
        self._free.extend(slab for slab in slabs if slab in self._slabs)

    def reset(self) -> None:
        """Begin anew: the trainer of a new pass knows none of the slabs."""
        self._slabs.clear()
        self._free.clear()
        self._layout = None

    def write(self, batch: Any) -> SlabMessage | None:
        """The message for a batch, or None if the batch is not one for slabs."""
        slab, is_new = -1, False
        retired: tuple[int, ...] = ()

        def allocate(num_bytes: int) -> torch.Tensor:
            nonlocal slab, is_new, retired
            slab, is_new, retired = self._choose(num_bytes)
            return self._slabs[slab]

        written = self.codec.write(batch, allocate, self._layout)
        if written is None:
            return None
        layout, descriptor = written
        changed = layout is not self._layout
        self._layout = layout
        return SlabMessage(
            slab=slab,
            descriptor=descriptor,
            layout=layout if changed else None,
            buffer=self._slabs[slab] if is_new else None,
            retired=retired,
        )

    def _choose(self, num_bytes: int) -> tuple[int, bool, tuple[int, ...]]:
        """(slab, whether it is new, slabs given up for it): the one freed last, in the cache still, if it is large."""
        retired: list[int] = []
        while self._free:
            slab = self._free.pop()
            if self._slabs[slab].shape[0] >= num_bytes:
                return slab, False, tuple(retired)
            retired.append(slab)
            del self._slabs[slab]
        size = -(-int(num_bytes * _SPARE) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        slab, self._count = self._count, self._count + 1
        self._slabs[slab] = shared_bytes(max(size, _ALIGNMENT_BYTES))
        return slab, True, tuple(retired)


class SlabReader:
    """The trainer's side for one worker: views of its slabs, and which of them died."""

    def __init__(self, codec: SlabCodec) -> None:
        self._codec = codec
        self._slabs: dict[int, Any] = {}
        self._loans: Loans[int] = Loans()
        self._layout: Any = None

    def read(self, message: SlabMessage) -> Any:
        """The batch of a message, as views of its slab."""
        if message.buffer is not None:
            self._slabs[message.slab] = message.buffer.numpy()
        for slab in message.retired:
            self._slabs.pop(slab, None)
        if message.layout is not None:
            self._layout = message.layout
        lent = self._loans.lend(message.slab, self._slabs[message.slab])
        return self._codec.view(self._layout, message.descriptor, torch.from_numpy(lent))

    def take_freed(self) -> tuple[int, ...]:
        """The slabs that died since the last call."""
        return tuple(self._loans.returned())
