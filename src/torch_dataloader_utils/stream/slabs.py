"""The slab ring: a worker process passes batches to the trainer in shared memory that is used again and again.

    worker   fills slabs                                   queue carries: answer 7 is in slab 3, from byte 4,096
    trainer  makes views of slabs; the last of them dies
    ticket   the next request to that worker says it       what answer 7 has in slab 3 came back

Blocks whose columns lie in slabs are sent where they lie, whole or in part. Everything else is copied to a slab; small
batches that are sent together go into the same one.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from torch_dataloader_utils._core.slab_codec import SlabCodec, SlabPlace, SlabSpan
from torch_dataloader_utils._runtime.reused_memory import Bytes, Loans
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.slab_memory import Held, SlabMemory, SlabShare

_ALIGNMENT_BYTES = 64


class SlabMessage(NamedTuple):
    """What the queue carries for one batch.

    answer: the answer that it is part of, see SlabShare. buffers: the memory that it lies in.
    descriptor: how to read the batch, see SlabCodec; layout: the larger part of that, if it changed.
    slabs: those that are new to the trainer, with their numbers. gone: numbers of slabs that do not exist any more.
    """

    answer: int
    buffers: tuple[SlabSpan, ...]
    descriptor: Any
    layout: Any = None
    slabs: tuple[tuple[int, torch.Tensor], ...] = ()
    gone: tuple[int, ...] = ()


class Unread(NamedTuple):
    """A received batch before its views are made: the arguments of `SlabCodec.view`."""

    layout: Any
    descriptor: Any
    buffers: tuple[torch.Tensor, ...]


@dataclass(slots=True)
class _Filling:
    """Memory of a slab that batches are copied to; its first `stop` bytes are used."""

    begin: SlabPlace
    memory: torch.Tensor
    stop: int = 0

    def holds(self, num_bytes: int) -> bool:
        return _aligned(self.stop) + num_bytes <= self.memory.shape[0]

    def take(self, num_bytes: int) -> tuple[SlabSpan, torch.Tensor]:
        start = _aligned(self.stop)
        self.stop = start + num_bytes
        slab, begin = self.begin
        return SlabSpan(slab, begin + start, begin + self.stop), self.memory[start : self.stop]


class SlabWriter:
    """A worker's side in one pass.

    copied_bytes: of batches since the last `begin`.
    """

    def __init__(self, codec: SlabCodec, memory: SlabMemory, held: Held) -> None:
        self.copied_bytes = 0
        self._codec = codec
        self._memory = memory
        self._known = set(held.slabs)
        self._layout: Any = None
        self._answer = 0
        self._filling: _Filling | None = None

    def begin(self) -> None:
        """Begin an answer: batches from here on are sent together, and copied to one slab as far as they fit."""
        self._answer, self._filling, self.copied_bytes = self._memory.new_answer(), None, 0

    def copy(self, batch: Any, batches_left: int = 1) -> Any:
        """Copy a batch to a slab and return its message; the batch itself if it cannot be put into a slab.

        batches_left: how many batches of the answer are still to come, this one included; the slab has room for them.
        """
        copied: list[SlabSpan] = []
        written = self._codec.write(batch, partial(self._allocate, copied, batches_left), self._layout)
        return batch if written is None else self._message(*written, copied)

    def refer(self, batch: Any) -> Any:
        """The message of a batch; what lies in a slab is not copied, so the batch must not be written to any more."""
        copied: list[SlabSpan] = []
        written = self._codec.refer(batch, self._find, partial(self._allocate, copied, 1))
        if written is None:
            return batch
        layout, descriptor, spans = written
        return self._message(layout, descriptor, [*spans, *copied])

    def _message(self, layout: Any, descriptor: Any, buffers: Sequence[SlabSpan]) -> SlabMessage:
        changed = None if layout is self._layout or layout == self._layout else layout
        self._layout = layout
        new = self._memory.slabs({buffer.slab for buffer in buffers} - self._known)
        gone = self._memory.gone_of(self._known)
        self._known.difference_update(gone)
        self._known.update(number for number, _ in new)
        return SlabMessage(self._answer, tuple(buffers), descriptor, changed, new, gone)

    def _find(self, tensor: torch.Tensor) -> SlabPlace | None:
        place = self._memory.find(tensor)
        if place is not None:
            self._memory.lend(SlabShare(self._answer, place.slab), tensor)
        return place

    def _allocate(self, copied: list[SlabSpan], batches_left: int, num_bytes: int) -> torch.Tensor:
        """Room for the dense tensors of a batch; its place is added to `copied`."""
        if self._filling is None or not self._filling.holds(num_bytes):
            memory = self._memory.take(batches_left * _aligned(num_bytes))
            begin = self._find(memory)
            if begin is None:
                raise InternalError("Memory of a worker's slabs lies in none of them. Please report this.")
            self._filling = _Filling(begin, memory)
        self.copied_bytes += num_bytes
        span, room = self._filling.take(num_bytes)
        copied.append(span)
        return room


class SlabReader:
    """The trainer's side for one worker process, for all passes: makes views of its slabs, and returns its shares.

    codec: None where all batches come through the queue.
    """

    def __init__(self, codec: SlabCodec | None) -> None:
        self._codec = codec
        self._slabs: dict[int, Bytes] = {}
        self._loans: Loans[SlabShare] = Loans()
        self._layout: Any = None

    def open(self, messages: Sequence[Any]) -> deque[Any]:
        """The batches of these messages, ready for `view`; a share comes back when all batches in it are dropped.

        messages: all messages of one answer, as `SlabWriter` made them.
        """
        in_slabs = [message for message in messages if isinstance(message, SlabMessage)]
        for message in in_slabs:
            self._learn_slabs(message)
        lent = self._lend(in_slabs)
        return deque([self._find(message, lent) for message in messages])

    def view(self, batch: Any) -> Any:
        """The batch, as views of its slabs."""
        return self._codec.view(*batch) if isinstance(batch, Unread) and self._codec is not None else batch

    def cut(self, batch: Any, rows: Sequence[int]) -> Iterator[Any]:
        """The batches of a piece, of `rows[0]`, `rows[1]`, ... rows."""
        if isinstance(batch, Unread) and self._codec is not None:
            return self._codec.cut(*batch, rows)
        return batch.cut(rows)  # type: ignore[no-any-return]

    def take_returned(self) -> tuple[SlabShare, ...]:
        """The shares that came back since the last call."""
        return tuple(self._loans.returned())

    def describe_held(self) -> Held | None:
        """The slabs and shares at the start of a pass; None where all batches come through the queue."""
        if self._codec is None:
            return None
        self._loans.returned()
        return Held(slabs=tuple(self._slabs), shares=tuple(self._loans.out()))

    def _learn_slabs(self, message: SlabMessage) -> None:
        for number, slab in message.slabs:
            self._slabs[number] = slab.numpy()
        for number in message.gone:
            self._slabs.pop(number, None)

    def _lend(self, messages: Sequence[SlabMessage]) -> dict[SlabShare, tuple[int, torch.Tensor]]:
        """Every share of these messages: where it begins in its slab, and its bytes.

        The storage of the tensors has those bytes and no others, so a share comes back when its own tensors die.
        """
        ends: dict[SlabShare, tuple[int, int]] = {}
        for message in messages:
            for slab, start, stop in message.buffers:
                share = SlabShare(message.answer, slab)
                first, last = ends.get(share, (start, stop))
                ends[share] = min(first, start // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES), max(last, stop)
        return {
            share: (first, torch.from_numpy(self._loans.lend(share, self._slabs[share.slab][first:last])))
            for share, (first, last) in ends.items()
        }

    def _find(self, message: Any, lent: dict[SlabShare, tuple[int, torch.Tensor]]) -> Any:
        if not isinstance(message, SlabMessage):
            return message
        if message.layout is not None:
            self._layout = message.layout
        buffers = []
        for slab, start, stop in message.buffers:
            first, memory = lent[SlabShare(message.answer, slab)]
            buffers.append(memory[start - first : stop - first])
        return Unread(self._layout, message.descriptor, tuple(buffers))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
