"""Pass batches from a worker process to the trainer in slabs: shared memory that is used again and again.

    worker     writes into slabs                           the queue carries: response 7 is in slab 3, from byte 4,096
    trainer    makes views of slabs; the last view dies
    request    the next request to the worker says         the region of response 7 in slab 3 is free

Blocks with columns in slabs are sent without a copy, whole or in part. Everything else is copied to a slab. Small
batches that are sent together are copied to the same slab.
"""

import itertools
import secrets
import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from torch_dataloader_utils._core.slab_codec import SlabCodec, SlabPlace, SlabSpan
from torch_dataloader_utils._runtime.reused_memory import ArraysInUse, Bytes, RecycledMemory
from torch_dataloader_utils._runtime.shared_memory import shared_bytes
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.transport.buffers import BatchReader, UnreadBatch

# Each slab is an open file, in the trainer too, and 1,024 open files are a usual limit. So small buffers share slabs.
# Large buffers do not, because a slab is released with its last buffer.
_SHARED_SLAB_BYTES = 4 << 20
_SMALL_BYTES = 1 << 20


class SlabRegion(NamedTuple):
    """All memory of one response in one slab. The trainer uses and frees a region as a whole."""

    response: int
    slab: int


class Held(NamedTuple):
    """Slabs of a worker that the trainer knows at the start of a pass, and the regions that it still uses."""

    slabs: tuple[int, ...] = ()
    regions: tuple[SlabRegion, ...] = ()


class _Slab(NamedTuple):
    """Slab, with the array that all its buffers are views of."""

    address: int
    number: int
    memory: torch.Tensor
    array: "weakref.ref[Bytes]"


class SlabMemory:
    """Slabs of a worker process, for all its passes. Slab numbers are unique over processes and time.

    Decoding threads take memory. All other methods are for the thread that makes responses.
    """

    def __init__(self) -> None:
        self.recycled = RecycledMemory(self._allocate)
        self._lock = threading.Lock()
        self._numbers = itertools.count(secrets.randbits(62))
        self._responses = itertools.count()
        self._slabs: list[_Slab] = []  # by address
        self._gone: deque[int] = deque()  # numbers; arrays die in any thread, at any time
        self._filling: Bytes | None = None
        self._filled_bytes = 0
        self._in_use: dict[SlabRegion, list[torch.Tensor]] = {}

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return uninitialised uint8 memory, shape [`num_bytes` or a little more]. It is free again when unused."""
        return torch.from_numpy(self.recycled.take(max(num_bytes, 1)))

    def find(self, tensor: torch.Tensor) -> SlabPlace | None:
        """Return the slab and the byte at which a tensor begins; None if the tensor is not in a slab."""
        address = tensor.data_ptr()
        with self._lock:
            self._forget_gone()
            index = bisect_right(self._slabs, address, key=_address) - 1
            if index < 0:
                return None
            slab = self._slabs[index]
        start = address - slab.address
        return SlabPlace(slab.number, start) if start < slab.memory.shape[0] else None

    def slabs(self, numbers: set[int]) -> tuple[tuple[int, torch.Tensor], ...]:
        """Return these slabs, each with its number, to send them to the trainer's process."""
        with self._lock:
            return tuple((slab.number, slab.memory) for slab in self._slabs if slab.number in numbers)

    def gone_of(self, numbers: set[int]) -> tuple[int, ...]:
        """Return the numbers of the given slabs that no longer exist."""
        with self._lock:
            self._forget_gone()
            return tuple(numbers.difference([slab.number for slab in self._slabs]))

    def new_response(self) -> int:
        """Return the number of a new response, for its regions."""
        return next(self._responses)

    def keep(self, region: SlabRegion, tensor: torch.Tensor) -> None:
        """Keep a tensor that is sent to the trainer until the region is freed."""
        self._in_use.setdefault(region, []).append(tensor)

    def free(self, regions: Iterable[SlabRegion]) -> None:
        """Free regions that the trainer does not use any more."""
        for region in regions:
            self._in_use.pop(region, None)

    def keep_only(self, regions: Iterable[SlabRegion]) -> None:
        """Free all other regions: a pass may have ended before all its responses were received."""
        self._in_use = {region: self._in_use[region] for region in regions if region in self._in_use}

    def _allocate(self, num_bytes: int) -> Bytes:
        """Return a new slab for a large buffer, else the next bytes of the shared slab."""
        with self._lock:
            self._forget_gone()
            if num_bytes > _SMALL_BYTES:
                return self._new_slab(num_bytes)
            if self._filling is None or self._filled_bytes + num_bytes > len(self._filling):
                self._filling, self._filled_bytes = self._new_slab(_SHARED_SLAB_BYTES), 0
            start, self._filled_bytes = self._filled_bytes, self._filled_bytes + num_bytes
            return self._filling[start : self._filled_bytes]

    def _new_slab(self, num_bytes: int) -> Bytes:
        memory = shared_bytes(num_bytes)
        number, gone, array = next(self._numbers), self._gone, memory.numpy()
        slab = _Slab(memory.data_ptr(), number, memory, weakref.ref(array, lambda _: gone.append(number)))
        insort(self._slabs, slab, key=_address)
        return array

    def _forget_gone(self) -> None:
        """Drop slabs with a dead array. Until then their memory is kept, so that no other slab gets their address."""
        gone = {self._gone.popleft() for _ in range(len(self._gone))}
        if gone:
            self._slabs = [slab for slab in self._slabs if slab.number not in gone]


def _address(slab: _Slab) -> int:
    return slab.address


_ALIGNMENT_BYTES = 64


class SlabMessage(NamedTuple):
    """Message through the queue that says where one batch (or one part of a batch group) lies in slabs.

    response: number of the response, see SlabRegion. buffers: spans of slabs with the batch's bytes.
    layout, descriptor: how to read the batch, see SlabCodec; layout is None if it has not changed.
    slabs: slabs that are new to the trainer, with their numbers. gone: numbers of slabs that do not exist any more.
    """

    response: int
    buffers: tuple[SlabSpan, ...]
    descriptor: object
    layout: object = None
    slabs: tuple[tuple[int, torch.Tensor], ...] = ()
    gone: tuple[int, ...] = ()


@dataclass(slots=True)
class _Filling:
    """Memory of a slab that batches are copied to. Its first `stop` bytes are used."""

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
    """Writer of a worker in one pass; a BatchWriter.

    copied_bytes: number of bytes copied since the last `begin`.
    """

    def __init__(self, codec: SlabCodec, memory: SlabMemory, held: Held) -> None:
        self.copied_bytes = 0
        self._codec = codec
        self._memory = memory
        self._known = set(held.slabs)
        self._layout: object = None
        self._response = 0
        self._filling: _Filling | None = None

    def begin(self) -> None:
        """Begin a response. Its batches are sent together, and copied to one slab as far as they fit."""
        self._response, self._filling, self.copied_bytes = self._memory.new_response(), None, 0

    def copy(self, batch: object, batches_left: int = 1) -> object:
        """Copy a batch to a slab and return its message; return the batch itself if it cannot be put into a slab.

        batches_left: number of batches of the response that are still to come, including this batch; a new slab has
        room for all of them.
        """
        copied: list[SlabSpan] = []
        written = self._codec.write(batch, partial(self._allocate, copied, batches_left), self._layout)
        return batch if written is None else self._message(*written, copied)

    def refer(self, batch: object) -> object:
        """Return the message of a batch. Columns in slabs are not copied, so the batch must not be changed any more."""
        copied: list[SlabSpan] = []
        written = self._codec.refer(batch, self._find, partial(self._allocate, copied, 1))
        if written is None:
            return batch
        layout, descriptor, spans = written
        return self._message(layout, descriptor, [*spans, *copied])

    def _message(self, layout: object, descriptor: object, buffers: Sequence[SlabSpan]) -> SlabMessage:
        changed = None if layout is self._layout or layout == self._layout else layout
        self._layout = layout
        new = self._memory.slabs({buffer.slab for buffer in buffers} - self._known)
        gone = self._memory.gone_of(self._known)
        self._known.difference_update(gone)
        self._known.update(number for number, _ in new)
        return SlabMessage(self._response, tuple(buffers), descriptor, changed, new, gone)

    def _find(self, tensor: torch.Tensor) -> SlabPlace | None:
        place = self._memory.find(tensor)
        if place is not None:
            self._memory.keep(SlabRegion(self._response, place.slab), tensor)
        return place

    def _allocate(self, copied: list[SlabSpan], batches_left: int, num_bytes: int) -> torch.Tensor:
        """Return room for the dense tensors of a batch, and add its place to `copied`."""
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


class SlabReader(BatchReader):
    """Reader of one worker process's messages, for all passes: makes views of slabs, and notes which regions are free.

    codec: codec of the messages; None if all batches come through the queue.
    """

    def __init__(self, codec: SlabCodec | None) -> None:
        super().__init__(codec)
        self._slabs: dict[int, Bytes] = {}
        self._in_use: ArraysInUse[SlabRegion] = ArraysInUse()
        self._layout: object = None

    def open(self, messages: Sequence[object]) -> deque[object]:
        """Return the batches of these messages, ready for `view`. A region is free when all its batches are dropped.

        messages: all messages of one response, as `SlabWriter` made them.
        """
        in_slabs = [message for message in messages if isinstance(message, SlabMessage)]
        for message in in_slabs:
            self._learn_slabs(message)
        regions = self._regions(in_slabs)
        return deque([self._find(message, regions) for message in messages])

    def take_freed(self) -> tuple[SlabRegion, ...]:
        """Return the regions that became free since the last call: all their tensors have died."""
        return tuple(self._in_use.take_dead())

    def describe_held(self) -> Held | None:
        """Return the slabs and regions at the start of a pass; None if all batches come through the queue."""
        if self._codec is None:
            return None
        self._in_use.take_dead()
        return Held(slabs=tuple(self._slabs), regions=tuple(self._in_use.keys()))

    def _learn_slabs(self, message: SlabMessage) -> None:
        for number, slab in message.slabs:
            self._slabs[number] = slab.numpy()
        for number in message.gone:
            self._slabs.pop(number, None)

    def _regions(self, messages: Sequence[SlabMessage]) -> dict[SlabRegion, tuple[int, torch.Tensor]]:
        """Return every region of these messages: its first byte in the slab, and its bytes.

        The storage of a region's tensors has exactly the region's bytes, so a region is free when its tensors die.
        """
        ends: dict[SlabRegion, tuple[int, int]] = {}
        for message in messages:
            for slab, start, stop in message.buffers:
                region = SlabRegion(message.response, slab)
                first, last = ends.get(region, (start, stop))
                ends[region] = min(first, start // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES), max(last, stop)
        return {
            region: (first, torch.from_numpy(self._in_use.add(region, self._slabs[region.slab][first:last])))
            for region, (first, last) in ends.items()
        }

    def _find(self, message: object, regions: dict[SlabRegion, tuple[int, torch.Tensor]]) -> object:
        if not isinstance(message, SlabMessage):
            return message
        if message.layout is not None:
            self._layout = message.layout
        buffers = []
        for slab, start, stop in message.buffers:
            first, memory = regions[SlabRegion(message.response, slab)]
            buffers.append(memory[start - first : stop - first])
        return UnreadBatch(self._layout, message.descriptor, tuple(buffers))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
