"""What every wrapper does with the wrapped data set: save and load its state, and read several items at once."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """An object with a state, as torchdata and torch.distributed.checkpoint define it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the present state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""


def nested_state(name: str, dataset: Any) -> dict[str, Any]:
    """Return {name: state of the data set}, or an empty dict for a data set without a state."""
    return {name: dataset.state_dict()} if isinstance(dataset, Stateful) else {}


def load_nested_state(name: str, dataset: Any, state: dict[str, Any]) -> None:
    """Load the entry that `nested_state` made into the data set, if the data set has a state."""
    if isinstance(dataset, Stateful):
        dataset.load_state_dict(state[name])


def read_items(dataset: Any, positions: list[int]) -> list[Any]:
    """Return the items at `positions`, in the order of `positions`.

    One call of `__getitems__` (torch's batched read) if the data set has this method, else one read per item.
    """
    if callable(getattr(dataset, "__getitems__", None)):
        return list(dataset.__getitems__(positions))
    return [dataset[position] for position in positions]
