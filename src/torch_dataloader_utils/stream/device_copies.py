"""Batches on their way to a device: copies that run while the trainer computes, and moves that do not.

CUDA streams do not wait for each other: who uses a copied batch waits for the copy's event, and the allocator is told
which stream uses the memory. A page-locked buffer is written again only after the copy that reads it has ended.
"""

from collections import deque
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_dataloader_utils._core.slab_codec import SlabCodec

_HOLD_NO_TENSORS = frozenset([str, bytes, int, float, bool, type(None)])


def move_itself(value: Any, device: torch.device) -> Any:
    """The result of the value's `to(device)`; the value itself if it has no such method, or one that moves in place."""
    if not callable(getattr(type(value), "to", None)):
        return value
    moved = value.to(device)
    return value if moved is None else moved


def to_device(value: Any, device: torch.device) -> Any:
    """The value with all its tensors on the device; the same object if it holds none.

    A value with a method `to` moves itself. Dicts, lists and (named) tuples, however deep, are copied if a member
    moves. Everything else stays as it is.
    """
    value = move_itself(value, device)
    if isinstance(value, dict):
        changed = {key: new for key, old in value.items() if (new := to_device(old, device)) is not old}
        return _with_members(value, changed) if changed else value
    if isinstance(value, list | tuple) and not _HOLD_NO_TENSORS.issuperset(map(type, value)):
        members = [to_device(member, device) for member in value]
        if any(new is not old for new, old in zip(members, value, strict=True)):
            return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    return value


def _with_members(value: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    """A copy of a dict of any kind, with other members; by assignment, because some have an `update` of their own."""
    of_its_kind = copy(value)
    for key, member in changed.items():
        of_its_kind[key] = member
    return of_its_kind


@dataclass(frozen=True, slots=True)
class Transfer:
    """A batch on its way to the device: layout and descriptor (see SlabCodec), and its bytes, complete after `done`."""

    layout: Any
    descriptor: Any
    buffer: torch.Tensor
    done: torch.cuda.Event


@dataclass(slots=True)
class CudaCopies:
    """Copies batches to a CUDA device on a stream of its own, each as one transfer from page-locked memory.

    `start` waits if `most` page-locked buffers are still being copied; `finish` waits if the device is `most` steps
    behind.

    holds_objects: whether batches may hold tensors where the codec does not look for them.
    """

    device: torch.device
    codec: SlabCodec
    most: int
    holds_objects: bool
    _stream: torch.cuda.Stream = field(init=False)
    _free: list[torch.Tensor] = field(default_factory=list)
    _busy: deque[tuple[torch.cuda.Event, torch.Tensor]] = field(default_factory=deque)
    _given: deque[torch.cuda.Event] = field(default_factory=deque)
    _layout: Any = None

    def __post_init__(self) -> None:
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.device = self._stream.device  # "cuda" is another device when another one is current

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
            done = _event(self._stream)
        self._busy.append((done, buffer))
        return Transfer(self._layout, descriptor, there, done)

    def finish(self, transfer: Transfer) -> Any:
        """The batch, for use on the caller's current stream; tensors that are not dense are moved now."""
        current = torch.cuda.current_stream(self.device)
        while len(self._given) >= self.most:
            self._given.popleft().synchronize()
        self._given.append(_event(current))
        current.wait_event(transfer.done)
        transfer.buffer.record_stream(current)
        descriptor = to_device(transfer.descriptor, self.device) if self.holds_objects else transfer.descriptor
        return self.codec.view(transfer.layout, descriptor, (transfer.buffer,))

    def _page_locked(self, num_bytes: int) -> torch.Tensor:
        """A buffer of at least `num_bytes` that no copy reads."""
        while self._busy and (len(self._busy) == self.most or self._busy[0][0].query()):  # type: ignore[no-untyped-call]
            done, buffer = self._busy.popleft()
            done.synchronize()
            self._free.append(buffer)
        for index, buffer in enumerate(self._free):
            if buffer.shape[0] >= num_bytes:
                return self._free.pop(index)
        self._free.clear()
        # torch rounds page-locked memory up to powers of two; the whole of it fits the next, longer batch too.
        return torch.empty(1 << (num_bytes - 1).bit_length(), dtype=torch.uint8, pin_memory=True)


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event after all the work that the stream was given so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
