"""`DevicePrefetcher`: copies batches to the device before the step that needs them."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.slab_codec import SlabCodec
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.stream.device_copies import CudaCopies, Transfer, move_itself, to_device
from torch_dataloader_utils.stream.unnumbered import refuse_number


@runtime_checkable
class PositionedLoader(Protocol):
    """A loader that knows its position: what `create_dataloader` and `blend` give.

    codec: how its batches are written into flat buffers, or None.
    is_transformed: whether a function of the user made the batches, so that they may hold anything.
    next_position: where a pass would begin now.
    progress: has `position`, the place after the last batch, and `encode(position)`, the state of a position.
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

    On CUDA each batch is written into one page-locked buffer and copied as one transfer on a separate stream; its
    tensors are views of one device buffer. Both buffers are used again. `depth` batches are copied ahead. That takes
    `depth` + 1 page-locked buffers of one batch, and at most 2 x `depth` + 3 batches on the device beside those that
    you keep (the host runs at most `depth` + 1 steps ahead of the device).

    Every tensor of a batch is moved, also those inside dicts, lists and tuples; an object with a method `to` moves
    itself; everything else stays as it is. Tensors that are not dense (sparse ones, those with gradients), and all
    batches on devices other than CUDA, are moved when the batch is given out. On the CPU batches stay as they are.

    The state counts the batches given out, not those copied ahead. Length and epochs are the loader's.
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
        # The loader's position after the last batch given out; None: the loader's own state is the state.
        self._given: Any = None
        # The loader's position after the last batch taken from it: if it now stands elsewhere, it was moved.
        self._taken: Any = None
        self._copies: CudaCopies | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See TableDataset.set_epoch."""
        self._given = None
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch given out; see TableDataset.state_dict.

        If the loader was moved since (by `set_epoch`, a loaded state, another pass), it is the loader's state.
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
        """What copies batches ahead, kept from pass to pass; None where batches are moved one by one."""
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
