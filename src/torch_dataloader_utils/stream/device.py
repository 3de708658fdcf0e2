"""Batches on the device ahead of the step that needs them."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch

from torch_dataloader_utils._arguments.integers import check_integer
from torch_dataloader_utils._core.block import SlabCodec
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.stream.device_copies import CudaCopies, Transfer, move_itself, to_device
from torch_dataloader_utils.stream.unnumbered import refuse_number


@runtime_checkable
class PositionedLoader(Protocol):
    """What is asked of a loader: those of `create_dataloader` and blends are such.

    codec: how its batches are written into flat buffers, or None. is_transformed: whether a function of the user made
    them, so that they may hold anything. next_position: where a pass would begin now. progress: has `position`, the
    one after the batch given last, and `encode(position)`, its state.
    """

    @property
    def codec(self) -> SlabCodec | None: ...

    @property
    def is_transformed(self) -> bool: ...

    @property
    def next_position(self) -> Any: ...

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
    through views of one device buffer; both buffers are used again. `depth` batches are under way at once. `depth` + 1
    page-locked buffers of a batch exist, and the host runs at most `depth` + 1 steps ahead of the device, so that
    2 x `depth` + 3 batches are there at most, and those that you keep.

    What is no dense tensor (sparse ones, those with gradients, objects) is moved when the batch is given out, and so
    are all batches on other devices. Every tensor of a batch comes on the device, also those in dicts, lists and
    tuples, however deep; what has a method `to` of its own is asked to move itself; everything else stays as it is. On
    the CPU batches are what the loader gives.

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
        # The loader's position after the batch that was given out last; None where the loader's own is the state.
        self._given: Any = None
        # Its position after the batch that was taken from it last: if it stands elsewhere now, somebody moved it.
        self._taken: Any = None
        self._copies: CudaCopies | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See TableDataset.set_epoch."""
        self._given = None
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was given out; see TableDataset.state_dict.

        If the loader or its data set was moved since (`set_epoch`, a state, a pass of its own), that is the loader's.
        """
        was_moved = self._taken is not None and self._taken != self.loader.progress.position
        has_own = self._given is not None and not was_moved
        return self.loader.progress.encode(self._given) if has_own else self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See TableDataset.load_state_dict."""
        self._given = None
        self.loader.load_state_dict(state)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuses; see `refuse_number`."""
        refuse_number(self, index)

    def __iter__(self) -> Iterator[Any]:
        copies = self._find_copies()
        waiting: deque[tuple[Any, Transfer | None, Any]] = deque()
        self._given, self._taken = self.loader.next_position, None
        for batch in self.loader:
            self._taken = self.loader.progress.position
            transfer = None if copies is None else copies.start(batch)
            waiting.append((batch if transfer is None else None, transfer, self._taken))
            if copies is None or len(waiting) > self._depth:
                yield self._give(*waiting.popleft())
        # Where row counts are not known, the loader learns only now that this was the end.
        self._taken = self.loader.progress.position
        while waiting:
            yield self._give(*waiting.popleft())
        self._given = None

    def _find_copies(self) -> CudaCopies | None:
        """What copies batches ahead of their step, kept from pass to pass; None where nothing does."""
        codec = self.loader.codec
        if self._copies is None and codec is not None and self.device.type == "cuda":
            self._copies = CudaCopies(self.device, codec, self._depth + 1, holds_objects=self.loader.is_transformed)
        return self._copies

    def _give(self, batch: Any, transfer: Transfer | None, position: Any) -> Any:
        if self._copies is not None and transfer is not None:
            batch = self._copies.finish(transfer)
        elif self.device.type != "cpu":
            batch = (to_device if self.loader.is_transformed else move_itself)(batch, self.device)
        self._given = position
        return batch


def _find_device(device: Any) -> torch.device:
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
