"""Batches on the device ahead of the step that needs them."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

from torch_dataloader_utils._arguments.integers import check_integer
from torch_dataloader_utils._core.block import SlabCodec
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type


@runtime_checkable
class PositionedLoader(Protocol):
    """What is asked of a loader: those of `create_dataloader` and blends are such.

    codec: how its batches are written into flat buffers, or None. progress: has `position`, the one after the batch
    given last, and `encode(position)`, its state.
    """

    @property
    def codec(self) -> SlabCodec | None: ...

    @property
    def progress(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class DevicePrefetcher:
    """The batches of a loader on `device`, copied while the previous steps run.

        for batch in DevicePrefetcher(loader, "cuda"):
            loss = model(batch["x"])

    On CUDA a batch is written into one page-locked buffer, copied as one transfer on a stream of its own, and seen
    through views of one device buffer; both buffers are used again. `depth` batches are under way at once. On other
    devices each batch is moved with `.to(device)` when it is asked for, which on the CPU does nothing.

    The state is that of the batches it has given out, not of those it holds ready. Length, epochs and everything else
    are the loader's.
    """

    def __init__(self, loader: PositionedLoader, device: torch.device | str | int, *, depth: int = 2) -> None:
        """A prefetcher of this loader.

        Raises:
            ConfigTypeError: no loader of this package, or a depth that is no whole number.
            ConfigError: no such device here, or a depth below 1.
        """
        if not isinstance(loader, PositionedLoader):
            raise ConfigTypeError(
                f"DevicePrefetcher got {of_type(loader)}: pass the loader that create_dataloader or blend "
                "gives. Those of torch have pin_memory=True."
            )
        self.loader = loader
        self.device = _find_device(device)
        self._depth = check_integer("depth", depth, least=1)
        self._given: Any = None

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See TableDataset.set_epoch."""
        self._given = None
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was given out; see TableDataset.state_dict."""
        return self.loader.state_dict() if self._given is None else self.loader.progress.encode(self._given)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See TableDataset.load_state_dict."""
        self._given = None
        self.loader.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        copy = _CudaCopier(self.device, self.loader.codec) if self.device.type == "cuda" else None
        waiting: deque[tuple[Any, Any]] = deque()
        self._given = self.loader.progress.position
        for batch in self.loader:
            moved = batch if copy is None else copy.start(batch)
            waiting.append((moved, self.loader.progress.position))
            if copy is None or len(waiting) > self._depth:
                yield self._give(waiting.popleft(), copy)
        while waiting:
            yield self._give(waiting.popleft(), copy)
        self._given = None

    def _give(self, ready: tuple[Any, Any], copy: "_CudaCopier | None") -> Any:
        moved, self._given = ready
        if copy is not None:
            return copy.finish(moved)
        return moved.to(self.device) if hasattr(moved, "to") else moved


def _find_device(device: Any) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        wanted = f'device={device!r}: pass a torch.device or its name, such as "cuda", "cuda:1" or "cpu".'
        raise (ConfigTypeError if isinstance(error, TypeError) else ConfigError)(wanted) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'device={device!r}: torch finds no CUDA device here. Pass "cpu", or install torch for CUDA.')
    return found


@dataclass(slots=True)
class _Transfer:
    """One batch on its way: what the trainer gets, its buffers, and when the copy is done."""

    batch: Any
    pinned: torch.Tensor | None
    device_buffer: torch.Tensor | None
    done: torch.cuda.Event


@dataclass(slots=True)
class _CudaCopier:
    """Copies batches on a stream of its own; page-locked buffers go round as soon as their copy is done."""

    device: torch.device
    codec: SlabCodec | None
    stream: torch.cuda.Stream = field(init=False)
    _free: list[torch.Tensor] = field(default_factory=list)
    _busy: deque[tuple[torch.cuda.Event, torch.Tensor]] = field(default_factory=deque)
    _layout: Any = None

    def __post_init__(self) -> None:
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def start(self, batch: Any) -> _Transfer:
        """Begin to copy a batch."""
        pinned: torch.Tensor | None = None

        def allocate(num_bytes: int) -> torch.Tensor:
            nonlocal pinned
            pinned = self._pinned(num_bytes)
            return pinned

        written = None if self.codec is None else self.codec.write(batch, allocate, self._layout)
        with torch.cuda.stream(self.stream):
            if written is None or self.codec is None or pinned is None:
                moved, device_buffer = batch.to(self.device, non_blocking=True), None
            else:
                self._layout, descriptor = written
                device_buffer = pinned.to(self.device, non_blocking=True)
                moved = self.codec.view(self._layout, descriptor, (device_buffer,))
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self.stream)
        if pinned is not None:
            self._busy.append((done, pinned))
        return _Transfer(batch=moved, pinned=pinned, device_buffer=device_buffer, done=done)

    def finish(self, transfer: _Transfer) -> Any:
        """The batch, safe to use on the current stream of the caller."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(transfer.done)
        if transfer.device_buffer is not None:
            transfer.device_buffer.record_stream(current)
        return transfer.batch

    def _pinned(self, num_bytes: int) -> torch.Tensor:
        """A page-locked buffer that no copy is reading, large enough; a new one if there is none."""
        while self._busy and self._busy[0][0].query():  # type: ignore[no-untyped-call]
            self._free.append(self._busy.popleft()[1])
        for index, buffer in enumerate(self._free):
            if buffer.shape[0] >= num_bytes:
                return self._free.pop(index)
        self._free.clear()
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
