"""Batches on their way to a device: copies that run while the trainer computes, and moves that do not.

A CUDA stream does its work in order and knows nothing of the others: whoever uses what a copy brings waits for the
copy's event, and the allocator is told who uses its memory. A page-locked buffer is written again only after the copy
that reads it.
"""

from collections import deque
from collections.abc import Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_dataloader_utils._core.block import SlabCodec

_HOLD_NO_TENSORS = frozenset([str, bytes, int, float, bool, type(None)])


def to_device(value: Any, device: torch.device) -> Any:
    """The value with every tensor of it on the device.

    What has a method `to` moves itself. Dicts, lists and tuples (named ones too) are made anew of moved members,
    however deep. Everything else stays as it is.
    """
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        moved = {key: to_device(member, device) for key, member in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return moved
        same_kind = copy(value)
        same_kind.update(moved)
        return same_kind
    if isinstance(value, list | tuple) and not _HOLD_NO_TENSORS.issuperset(map(type, value)):
        members = [to_device(member, device) for member in value]
        return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    return value


@dataclass(frozen=True, slots=True)
class Transfer:
    """A batch on its way: layout and descriptor, see SlabCodec, and its bytes on the device, there when `done` is."""

    layout: Any
    descriptor: Any
    buffer: torch.Tensor
    done: torch.cuda.Event


@dataclass(slots=True)
class CudaCopies:
    """Copies batches to a CUDA device on a stream of its own, each as one transfer from page-locked memory.

    most_buffers: of page-locked memory; where all of them are still being read, `start` waits for one.
    """

    device: torch.device
    codec: SlabCodec
    most_buffers: int
    _stream: torch.cuda.Stream = field(init=False)
    _free: list[torch.Tensor] = field(default_factory=list)
    _busy: deque[tuple[torch.cuda.Event, torch.Tensor]] = field(default_factory=deque)
    _layout: Any = None

    def __post_init__(self) -> None:
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def start(self, batch: Any) -> Transfer | None:
        """Begin to copy a batch; None for one that the codec cannot write."""
        buffer = here = torch.empty(0, dtype=torch.uint8)

        def allocate(num_bytes: int) -> torch.Tensor:
            nonlocal buffer, here
            buffer = self._page_locked(num_bytes)
            here = buffer[:num_bytes]
            return here

        written = self.codec.write(batch, allocate, self._layout)
        if written is None:
            return None
        self._layout, descriptor = written
        with torch.cuda.stream(self._stream):
            there = here.to(self.device, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        self._busy.append((done, buffer))
        return Transfer(self._layout, descriptor, there, done)

    def finish(self, transfer: Transfer) -> Any:
        """The batch, for use on the caller's current stream; what was no dense tensor is moved there now."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(transfer.done)
        transfer.buffer.record_stream(current)
        descriptor = to_device(transfer.descriptor, self.device)
        return self.codec.view(transfer.layout, descriptor, (transfer.buffer,))

    def _page_locked(self, num_bytes: int) -> torch.Tensor:
        """A buffer that no copy is reading, large enough."""
        while self._busy and (len(self._busy) == self.most_buffers or self._busy[0][0].query()):  # type: ignore[no-untyped-call]
            done, buffer = self._busy.popleft()
            done.synchronize()
            self._free.append(buffer)
        for index, buffer in enumerate(self._free):
            if buffer.shape[0] >= num_bytes:
                return self._free.pop(index)
        self._free.clear()
        # torch rounds page-locked memory up to powers of two; the whole of it fits the next, longer batch too.
        return torch.empty(1 << (num_bytes - 1).bit_length(), dtype=torch.uint8, pin_memory=True)
