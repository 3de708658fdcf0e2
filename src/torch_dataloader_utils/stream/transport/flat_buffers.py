"""Send batches as arrays of bytes inside a message, over a channel that sends arrays without pickling them (Ray's).

A worker copies a batch into one array, or refers to the batch's memory. The trainer makes tensors over the received
arrays, wherever the channel put the arrays, and a tensor keeps its array.
"""

import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_dataloader_utils._core.slab_codec import SlabCodec, SlabPlace
from torch_dataloader_utils._runtime.reused_memory import Bytes
from torch_dataloader_utils.stream.transport.buffers import BatchReader, UnreadBatch

# Memory is sent without a copy if at most so many times the bytes of the tensors have to be sent.
_MOST_SENT = 1.25


class FlatMessage(NamedTuple):
    """Message of one batch (or one part of a batch group); it pickles without copying its arrays.

    buffers: uint8 arrays with the batch's bytes. layout, descriptor: how to read the batch, see SlabCodec; layout is
    None if the message before has the same layout.
    """

    buffers: tuple[Bytes, ...]
    descriptor: object
    layout: object = None


class FlatWriter:
    """Writer of a worker in one pass; a BatchWriter."""

    def __init__(self, codec: SlabCodec) -> None:
        self.copied_bytes = 0
        self._codec = codec
        self._layout: object = None

    def begin(self) -> None:
        """See BatchWriter."""
        self.copied_bytes = 0

    def copy(self, batch: object, batches_left: int = 1) -> object:  # noqa: ARG002
        """See BatchWriter."""
        copied: list[torch.Tensor] = []

        def allocate(num_bytes: int) -> torch.Tensor:
            copied.append(torch.empty(num_bytes, dtype=torch.uint8))
            return copied[-1]

        written = self._codec.write(batch, allocate, self._layout)
        if written is None:
            return batch
        self.copied_bytes += sum(each.nbytes for each in copied)
        return self._message(*written, copied)

    def refer(self, batch: object) -> object:
        """See BatchWriter. A batch whose columns are few rows of a large block is copied."""
        storages: list[torch.Tensor] = []
        numbers: dict[int, int] = {}
        used_bytes = 0

        def find(tensor: torch.Tensor) -> SlabPlace:
            nonlocal used_bytes
            storage = tensor.untyped_storage()
            begin = storage.data_ptr()
            if begin not in numbers:
                numbers[begin] = len(storages)
                storages.append(torch.empty(0, dtype=torch.uint8).set_(storage))
            used_bytes += tensor.nbytes
            return SlabPlace(numbers[begin], tensor.data_ptr() - begin)

        written = self._codec.refer(batch, find, _nothing)
        if written is None:
            return batch
        layout, descriptor, spans = written
        if sum(span.stop - span.start for span in spans) > _MOST_SENT * used_bytes:
            return self.copy(batch)
        return self._message(layout, descriptor, [storages[slab][start:stop] for slab, start, stop in spans])

    def _message(self, layout: object, descriptor: object, buffers: Sequence[torch.Tensor]) -> FlatMessage:
        changed = None if layout is self._layout or layout == self._layout else layout
        self._layout = layout
        return FlatMessage(tuple(each.numpy() for each in buffers), descriptor, changed)


def _nothing(num_bytes: int) -> torch.Tensor:
    raise AssertionError(f"{num_bytes} bytes are to be copied of a batch whose tensors were all found.")


class FlatReader(BatchReader):
    """Reader of one worker's messages, in the trainer's process."""

    def __init__(self, codec: SlabCodec | None) -> None:
        super().__init__(codec)
        self._layout: object = None

    def open(self, messages: Sequence[object]) -> deque[object]:
        """See BatchReader."""
        return deque([self._find(message) for message in messages])

    def _find(self, message: object) -> object:
        if not isinstance(message, FlatMessage):
            return message
        if message.layout is not None:
            self._layout = message.layout
        return UnreadBatch(self._layout, message.descriptor, tuple(map(_as_tensor, message.buffers)))


def _as_tensor(array: Bytes) -> torch.Tensor:
    """Return a tensor over the array's memory, shape [bytes]. The tensor keeps the memory.

    The channel marks received memory as read-only, and torch warns of a tensor over read-only memory. Only the trainer
    reads this memory, once, so the trainer may write to it.
    """
    if array.flags.writeable or not array.nbytes:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array
    return torch.from_numpy(np.frombuffer(memory, dtype=np.uint8))
