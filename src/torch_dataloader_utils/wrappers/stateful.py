"""Helpers of all wrappers: the state and batched reads of the wrapped data set."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """Has a state: the protocol of torchdata and torch.distributed.checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """The present state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""


def nested_state(name: str, dataset: Any) -> dict[str, Any]:
    """{name: state of the data set}, or nothing for a data set without a state."""
    return {name: dataset.state_dict()} if isinstance(dataset, Stateful) else {}


def load_nested_state(name: str, dataset: Any, state: dict[str, Any]) -> None:
    """Gives the data set its part of a state that `nested_state` made."""
    if isinstance(dataset, Stateful):
        dataset.load_state_dict(state[name])


def read_items(dataset: Any, positions: list[int]) -> list[Any]:
    """The items at `positions`, in that order, by `__getitems__` (the batched read torch asks for) if there is one."""
    if callable(getattr(dataset, "__getitems__", None)):
        return list(dataset.__getitems__(positions))
    return [dataset[position] for position in positions]
