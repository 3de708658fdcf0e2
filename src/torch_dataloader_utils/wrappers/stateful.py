"""State and batched reads of the data set below: what every wrapper passes on."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch_dataloader_utils._arguments.integers import is_integer
from torch_dataloader_utils.errors import CheckpointMismatchError, of_type


@runtime_checkable
class Stateful(Protocol):
    """Can say where it stands and go on from there; the protocol of torchdata and torch.distributed.checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there."""


def nested_state(name: str, dataset: Any) -> dict[str, Any]:
    """{name: state of the data set}, or nothing for a data set without a state."""
    return {name: dataset.state_dict()} if isinstance(dataset, Stateful) else {}


def load_nested_state(name: str, dataset: Any, state: dict[str, Any]) -> None:
    """Gives the data set its part of a state that `nested_state` made."""
    if isinstance(dataset, Stateful):
        dataset.load_state_dict(state[name])


def check_fits(saved: Mapping[str, Any], mine: Mapping[str, Any], fixed: Sequence[str], *, problem: str) -> None:
    """Raises CheckpointMismatchError unless a state has our keys, and in those of `fixed` our values.

    problem: begins the message, before both sides.
    """
    if not isinstance(saved, Mapping):
        raise CheckpointMismatchError(f"{problem}: it is {of_type(saved)}. Load what state_dict gave.")
    if saved.keys() == mine.keys() and all(saved[key] == mine[key] for key in fixed):
        return
    theirs, ours = ({key: state.get(key) for key in fixed} for state in (saved, mine))
    raise CheckpointMismatchError(
        f"{problem}: saved with {theirs} and keys {sorted(saved)}, here it is {ours} and keys {sorted(mine)}. Load it "
        "into the same data under the options it was saved with."
    )


def check_counts(saved: Mapping[str, Any], *names: str) -> None:
    """Raises CheckpointMismatchError unless these values of a state are whole numbers of at least 0."""
    for name in names:
        if not is_integer(saved[name]) or saved[name] < 0:
            raise CheckpointMismatchError(
                f"The state says {name}={saved[name]!r}, which is no whole number of at least 0. Load what state_dict "
                "gave."
            )


def read_items(dataset: Any, positions: list[int]) -> list[Any]:
    """The items at `positions`, in that order, by `__getitems__` (the batched read torch asks for) if there is one."""
    if callable(getattr(dataset, "__getitems__", None)):
        return list(dataset.__getitems__(positions))
    return [dataset[position] for position in positions]
