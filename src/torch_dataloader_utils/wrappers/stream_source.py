"""Passes over a user's stream: opens them at an epoch or a state, and takes their state."""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from torch_dataloader_utils.errors import ConfigTypeError, of_type
from torch_dataloader_utils.wrappers.stateful import Stateful

ItemT = TypeVar("ItemT")


class StreamSource(Generic[ItemT]):
    """An iterable, or a function that makes one.

    The state is that of the iterator if it has one, else that of the iterable, as in torchdata. A source with neither
    has the state None, and is iterated from the start to get back to a place.
    """

    def __init__(self, source: Iterable[ItemT] | Callable[[], Iterable[ItemT]]) -> None:
        """Wraps a source."""
        self._source = source
        self._items: Iterator[ItemT] = iter(())
        self._unopened_state: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A pass in progress, often a generator, cannot be copied or sent to a worker.
        return {"_source": self._source, "_items": iter(()), "_unopened_state": None}

    def __len__(self) -> int:
        """As the source; TypeError if it has no length."""
        return len(self._source)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """What to call the source in a message."""
        return type(self._source).__name__

    def set_epoch(self, epoch: int) -> None:
        """Tells the source the epoch of the next pass, as far as it wants to know."""
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        elif isinstance(generator := getattr(self._source, "generator", None), torch.Generator):
            # accelerate's convention for a data set that shuffles with a generator of its own.
            generator.manual_seed(epoch)

    def open(self, state: Any = None) -> Iterator[ItemT]:
        """A new pass, from a state that `state_dict` gave, or from the start."""
        state, self._unopened_state = copy.deepcopy(state), None
        self._items = self._iterate()
        # Whose state it is, see `state_dict`.
        if state is not None and isinstance(self._items, Stateful):
            self._items.load_state_dict(state)
        elif state is not None and isinstance(self._source, Stateful):
            self._source.load_state_dict(state)
            self._items = self._iterate()
        return self._items

    def _iterate(self) -> Iterator[ItemT]:
        # An iterable may also be callable (a Hugging Face or torch pipeline object): iterating it wins.
        items = self._source if isinstance(self._source, Iterable) else self._source()
        if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
            raise ConfigTypeError(f"The function of the stream gave {of_type(items)}: return an iterable.")
        return iter(items)

    def resume(self, state: Any) -> Iterator[ItemT]:
        """A pass from a state, opened when its first item is asked for.

        A source keeps a loaded state until it is read; one that is never read would start its next pass there.
        """
        self._unopened_state = state
        return self._open_later(state)

    def state_dict(self) -> Any:
        """Where the last pass stands; None if the source cannot say."""
        if self._unopened_state is not None:
            return copy.deepcopy(self._unopened_state)
        for candidate in (self._items, self._source):
            if isinstance(candidate, Stateful):
                return copy.deepcopy(candidate.state_dict())
        return None

    def _open_later(self, state: Any) -> Iterator[ItemT]:
        yield from self.open(state)
