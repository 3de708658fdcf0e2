"""The slab ring: a worker process hands batches over in shared memory that is used again and again.

    worker   writes all columns of a batch into one of its slabs        queue carries: slab number, row count
    trainer  makes views of the slab; when the last tensor that looks at it dies, the slab is free
    ticket   the next request to that worker says which of its slabs are free again

Small batches that travel together lie one after the other in one slab. The worker owns its slabs and makes another one
when none is known to be free, so a trainer that keeps batches costs memory and never waits. Slabs are torch tensors in
shared memory that has no name (see `shared_memory`): nothing is left behind, however a process ends.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from torch_dataloader_utils._core.block import SlabCodec
from torch_dataloader_utils._core.lending import Loans
from torch_dataloader_utils.stream.shared_memory import shared_bytes

# Batches of lists differ in size; a slab with a fifth to spare is rarely outgrown.
_SPARE = 1.2
_PAGE_BYTES = 4096
_ALIGNMENT_BYTES = 64


class SlabMessage(NamedTuple):
    """What travels through the queue for one batch, which lies in a slab from byte `start` on.

    slab: number of the worker's slab. buffer: the slab itself, the first time it is used.
    descriptor: how to read the batch, see SlabCodec; layout: the part of it that seldom changes, when it changed.
    retired: slabs that are too small by now and will not be used again.
    """

    slab: int
    start: int
    descriptor: Any
    layout: Any = None
    buffer: torch.Tensor | None = None
    retired: tuple[int, ...] = ()


class InSlab(NamedTuple):
    """A batch that was not looked at yet: what `SlabCodec.view` takes."""

    layout: Any
    descriptor: Any
    buffer: torch.Tensor


@dataclass(slots=True, kw_only=True)
class _Filling:
    """A slab that is being filled: the last batch has its bytes [start, stop)."""

    slab: int
    memory: torch.Tensor
    is_new: bool
    retired: tuple[int, ...]
    start: int = 0
    stop: int = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        self.start = _align(self.stop, _ALIGNMENT_BYTES)
        self.stop = self.start + num_bytes
        return self.memory[self.start : self.stop]

    def holds(self, num_bytes: int) -> bool:
        return _align(self.stop, _ALIGNMENT_BYTES) + num_bytes <= self.memory.shape[0]

    def message(self, descriptor: Any, layout: Any) -> SlabMessage:
        """The message for the last batch; the first one of a slab says what there is to say of it."""
        buffer, retired = self.memory if self.is_new else None, self.retired
        self.is_new, self.retired = False, ()
        return SlabMessage(self.slab, self.start, descriptor, layout, buffer, retired)


@dataclass(slots=True)
class SlabWriter:
    """A worker's side in one pass: its slabs, those it knows to be free, and the layout of its last batch.

    num_bytes: what the batches since the last `begin` took.
    """

    codec: SlabCodec
    num_bytes: int = 0
    _slabs: dict[int, torch.Tensor] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)
    _layout: Any = None
    _count: int = 0
    _filling: _Filling | None = None

    def reclaim(self, slabs: Sequence[int]) -> None:
        """The trainer has let go of these slabs."""
        self._free.extend(slab for slab in slabs if slab in self._slabs)

    def begin(self) -> None:
        """The batches from here on travel together: in one slab as far as they fit."""
        self._filling, self.num_bytes = None, 0

    def write(self, batch: Any, batches_left: int = 1) -> Any:
        """The message of a batch, or the batch itself where it is none for slabs.

        batches_left: how many are still to travel together, this one among them; a slab is made for so many.
        """
        written = self.codec.write(batch, partial(self._allocate, batches_left), self._layout)
        if written is None or self._filling is None:
            return batch
        layout, descriptor = written
        changed = None if layout is self._layout else layout
        self._layout = layout
        return self._filling.message(descriptor, changed)

    def _allocate(self, batches_left: int, num_bytes: int) -> torch.Tensor:
        if self._filling is None or not self._filling.holds(num_bytes):
            self._filling = self._choose(batches_left * _align(num_bytes, _ALIGNMENT_BYTES))
        self.num_bytes += num_bytes
        return self._filling.take(num_bytes)

    def _choose(self, num_bytes: int) -> _Filling:
        """The slab that was freed last, in the cache still, if it is large enough; or a new one."""
        retired: list[int] = []
        while self._free:
            slab = self._free.pop()
            if self._slabs[slab].shape[0] >= num_bytes:
                return _Filling(slab=slab, memory=self._slabs[slab], is_new=False, retired=tuple(retired))
            retired.append(slab)
            del self._slabs[slab]
        slab, self._count = self._count, self._count + 1
        self._slabs[slab] = shared_bytes(max(_align(int(num_bytes * _SPARE), _PAGE_BYTES), _PAGE_BYTES))
        return _Filling(slab=slab, memory=self._slabs[slab], is_new=True, retired=tuple(retired))


class SlabReader:
    """The trainer's side for one worker: views of its slabs, and which of them died.

    codec: None where all batches come through the queue.
    """

    def __init__(self, codec: SlabCodec | None) -> None:
        self._codec = codec
        self._slabs: dict[int, Any] = {}
        self._loans: Loans[int] = Loans()
        self._layout: Any = None

    def open(self, messages: Sequence[Any]) -> deque[Any]:
        """What `SlabWriter.write` gave, ready for `view`; a slab is lent until all its batches are taken and died.

        messages: all since one `begin`, since a slab that is lent cannot be lent again.
        """
        lent: dict[int, torch.Tensor] = {}
        return deque([self._find(message, lent) for message in messages])

    def view(self, batch: Any) -> Any:
        """The batch, as views of its slab."""
        return self._codec.view(*batch) if isinstance(batch, InSlab) and self._codec is not None else batch

    def cut(self, batch: Any, rows: Sequence[int]) -> Iterator[Any]:
        """The batches of a run, of `rows[0]`, `rows[1]`, ... rows."""
        if isinstance(batch, InSlab) and self._codec is not None:
            return self._codec.cut(*batch, rows)
        return batch.cut(rows)  # type: ignore[no-any-return]

    def take_freed(self) -> tuple[int, ...]:
        """The slabs that died since the last call."""
        return tuple(self._loans.returned())

    def _find(self, message: Any, lent: dict[int, torch.Tensor]) -> Any:
        if not isinstance(message, SlabMessage):
            return message
        if message.buffer is not None:
            self._slabs[message.slab] = message.buffer.numpy()
        for slab in message.retired:
            self._slabs.pop(slab, None)
        if message.layout is not None:
            self._layout = message.layout
        if message.slab not in lent:
            lent[message.slab] = torch.from_numpy(self._loans.lend(message.slab, self._slabs[message.slab]))
        return InSlab(self._layout, message.descriptor, lent[message.slab][message.start :])


def _align(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment
