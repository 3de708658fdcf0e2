"""Checks keys and values of states that users load."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch_dataloader_utils._arguments.integers import is_integer
from torch_dataloader_utils.errors import CheckpointMismatchError, of_type


def check_fits(saved: Mapping[str, Any], mine: Mapping[str, Any], fixed: Sequence[str], *, problem: str) -> None:
    """Raises CheckpointMismatchError unless a state has the keys of `mine`, and for those in `fixed` the same values.

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
