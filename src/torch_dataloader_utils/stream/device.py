"""Copy batches to the device before the step that needs them, while the trainer computes: `DevicePrefetcher`."""

from collections import deque
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.slab_codec import SlabCodec
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.stream.trainer_hooks import refuse_number

_HOLD_NO_TENSORS = frozenset([str, bytes, int, float, bool, type(None)])


def move_itself(value: Any, device: torch.device) -> Any:
    """Return `value.to(device)`; the value itself if it has no method `to`, or a method that moves in place."""
    if not callable(getattr(type(value), "to", None)):
        return value
    moved = value.to(device)
    return value if moved is None else moved


def to_device(value: object, device: torch.device) -> Any:
    """Return the value with all its tensors on the device; the same object if it holds no tensors.

    A value with a method `to` moves itself. Dicts, lists and (named) tuples at any depth are copied if a member moves.
    Everything else stays as it is.
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
    """Copy a dict of any class and change members. Uses assignment, because some classes redefine `update`."""
    of_its_kind = copy(value)
    for key, member in changed.items():
        of_its_kind[key] = member
    return of_its_kind


@dataclass(frozen=True, slots=True)
class DeviceCopy:
    """Batch on its way to the device: layout and descriptor (see SlabCodec), and bytes, complete after `done`."""

    layout: object
    descriptor: object
    buffer: torch.Tensor
    done: torch.cuda.Event


@dataclass(slots=True)
class CudaCopies:
    """Copies of batches to a CUDA device on a separate stream, each as one transfer from page-locked memory.

    `start` waits if `most` page-locked buffers are still being copied. `finish` waits if the device is `most` steps
    behind.

    holds_objects: true if batches may hold tensors in objects that the codec does not look into.
    """

    device: torch.device
    codec: SlabCodec
    most: int
    holds_objects: bool
    _stream: torch.cuda.Stream = field(init=False)
    _free: list[torch.Tensor] = field(default_factory=list)
    _busy: deque[tuple[torch.cuda.Event, torch.Tensor]] = field(default_factory=deque)
    _given: deque[torch.cuda.Event] = field(default_factory=deque)
    _layout: object = None

    def __post_init__(self) -> None:
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.device = self._stream.device  # "cuda" means the current device, which may change later

    def start(self, batch: object) -> DeviceCopy | None:
        """Begin to copy a batch. Return None if the codec cannot write the batch."""
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
        return DeviceCopy(self._layout, descriptor, there, done)

    def finish(self, transfer: DeviceCopy) -> Any:
        """Return the batch, for use on the caller's current stream. Tensors that are not dense are moved now."""
        current = torch.cuda.current_stream(self.device)
        while len(self._given) >= self.most:
            self._given.popleft().synchronize()
        self._given.append(_event(current))
        current.wait_event(transfer.done)
        transfer.buffer.record_stream(current)
        descriptor = to_device(transfer.descriptor, self.device) if self.holds_objects else transfer.descriptor
        return self.codec.view(transfer.layout, descriptor, (transfer.buffer,))

    def _page_locked(self, num_bytes: int) -> torch.Tensor:
        """Return a buffer of at least `num_bytes` that no copy reads."""
        while self._busy and (len(self._busy) == self.most or self._busy[0][0].query()):  # type: ignore[no-untyped-call]
            done, buffer = self._busy.popleft()
            done.synchronize()
            self._free.append(buffer)
        for index, buffer in enumerate(self._free):
            if buffer.shape[0] >= num_bytes:
                return self._free.pop(index)
        self._free.clear()
        # torch rounds page-locked memory up to a power of two; a buffer of this size may fit a longer batch too.
        return torch.empty(1 << (num_bytes - 1).bit_length(), dtype=torch.uint8, pin_memory=True)


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Record an event after all work that was given to the stream so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


class LoaderProgress(Protocol):
    """Progress of a loader. position: position after the last batch."""

    @property
    def position(self) -> object: ...

    def encode(self, position: Any) -> dict[str, Any]:
        """Return the state of a former position of this loader."""
        ...


@runtime_checkable
class PositionedLoader(Protocol):
    """Loader that knows its position, as `create_dataloader` and `blend` return it.

    codec: codec that writes the batches into flat buffers, or None.
    is_transformed: true if a function of the user made the batches; then a batch may hold any object.
    next_position: position where a pass would begin now.
    progress: present progress of the loader.
    """

    @property
    def codec(self) -> SlabCodec | None: ...

    @property
    def is_transformed(self) -> bool: ...

    @property
    def next_position(self) -> object: ...

    @property
    def progress(self) -> LoaderProgress: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...


class DevicePrefetcher:
    """Iterable over the batches of a loader on `device`; batches are copied while the previous steps run.

        for batch in DevicePrefetcher(loader, "cuda"):
            loss = model(batch["x"])

    On CUDA each batch is written into one page-locked buffer and copied as one transfer on a separate stream. Its
    tensors are views of one device buffer. Both buffers are used again. `depth` batches are copied ahead. This takes
    `depth` + 1 page-locked buffers of one batch, and at most 2 x `depth` + 3 batches on the device beside the batches
    that you keep (the host runs at most `depth` + 1 steps ahead of the device).

    Every tensor of a batch is moved, also tensors inside dicts, lists and tuples. An object with a method `to` moves
    itself, and everything else stays as it is. Tensors that are not dense (sparse tensors, tensors with gradients), and
    all batches on devices other than CUDA, are moved when the batch is given out. On the CPU batches stay as they are.

    The state counts the batches given out, not the batches copied ahead. Length and epochs are the loader's.
    """

    def __init__(self, loader: PositionedLoader, device: torch.device | str | int, *, depth: int = 2) -> None:
        """Make a prefetcher of this loader.

        loader: loader of `create_dataloader` or `blend`. depth: number of batches that are copied ahead.

        Raises:
            ConfigTypeError: `loader` is not a loader of this package, or `depth` is not a whole number.
            ConfigError: this host has no such device, or `depth` is below 1.
        """
        if not isinstance(loader, PositionedLoader):
            raise ConfigTypeError(
                f"DevicePrefetcher got {of_type(loader)}: pass a loader from create_dataloader or blend. Loaders of "
                "torch have pin_memory=True."
            )
        self.loader = loader
        self.device = _find_device(device)
        self._depth = check_integer("depth", depth, least=1)
        # The loader's position after the last batch given out; None: the loader's own state is the state.
        self._given: object = None
        # The loader's position after the last batch taken from it; if the position differs now, the loader was moved.
        self._taken: object = None
        self._copies: CudaCopies | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See TableDataset.set_epoch."""
        self._given = None
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch given out. See TableDataset.state_dict.

        If the loader was moved since (by `set_epoch`, a loaded state, another pass), return the loader's state.
        """
        was_moved = self._taken is not None and self._taken != self.loader.progress.position
        has_own = self._given is not None and not was_moved
        return self.loader.progress.encode(self._given) if has_own else self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """See TableDataset.load_state_dict."""
        self._given = None
        self.loader.load_state_dict(state)

    def __getitem__(self, index: object) -> NoReturn:
        """Raise ConfigTypeError. See `refuse_number`."""
        refuse_number(self, index)

    def __iter__(self) -> Iterator[Any]:
        copies = self._find_copies()
        waiting: deque[tuple[Any, DeviceCopy | None, object]] = deque()
        self._given, self._taken = self.loader.next_position, None
        for batch in self.loader:
            self._taken = self.loader.progress.position
            transfer = None if copies is None else copies.start(batch)
            waiting.append((batch if transfer is None else None, transfer, self._taken))
            if copies is None or len(waiting) > self._depth:
                yield self._give(*waiting.popleft())
        # Without row counts, the loader learns only now that this was the end.
        self._taken = self.loader.progress.position
        while waiting:
            yield self._give(*waiting.popleft())
        self._given = None

    def _find_copies(self) -> CudaCopies | None:
        """Return the copies that run ahead, kept from pass to pass; None if batches are moved one by one."""
        codec = self.loader.codec
        if self._copies is None and codec is not None and self.device.type == "cuda":
            self._copies = CudaCopies(self.device, codec, self._depth + 1, holds_objects=self.loader.is_transformed)
        return self._copies

    def _give(self, batch: object, transfer: DeviceCopy | None, position: object) -> Any:
        if self._copies is not None and transfer is not None:
            batch = self._copies.finish(transfer)
        elif self.device.type != "cpu":
            batch = (to_device if self.loader.is_transformed else move_itself)(batch, self.device)
        self._given = position
        return batch


def _find_device(device: torch.device | str | int) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        wanted = f'device={device!r}: pass a torch.device or its name, such as "cuda", "cuda:1" or "cpu".'
        raise (ConfigTypeError if isinstance(error, TypeError) else ConfigError)(wanted) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'device={device!r}: torch finds no CUDA device here. Pass "cpu", or install torch for CUDA.')
    if found.type == "cuda" and (found.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(f"device={device!r}: there are {count} CUDA devices here, the last is cuda:{count - 1}.")
    return found
