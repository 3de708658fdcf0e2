"""States with a checksum: any changed byte, and any value that no loader writes, is a CheckpointMismatchError.

Used for states of a loader (`state.py`) and of a blend (`blending/progress.py`).
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from torch_dataloader_utils._core.arguments import is_integer
from torch_dataloader_utils.errors import CheckpointMismatchError

MOST_COUNT = 2**63 - 1


def sealed(state: Mapping[str, object]) -> dict[str, Any]:
    """Return the state with its checksum, under the key "checksum"."""
    return {**state, "checksum": _checksum(state)}


def check_version(state: Mapping[str, object], *readable: int) -> None:
    """Raise CheckpointMismatchError for a sealed state of another version, whatever keys that version has."""
    if {"version", "checksum"} <= set(state) and state["version"] not in readable:
        versions = f"version{'s' * (len(readable) > 1)} {' and '.join(map(str, readable))}"
        raise CheckpointMismatchError(
            f"The state has version {state['version']!r}, this library reads {versions}. Load it with the release that "
            "wrote it, or start the epoch again."
        )


def check_seal(state: Mapping[str, object]) -> None:
    """Raise CheckpointMismatchError if the state was changed after it was sealed."""
    try:
        seen = _checksum({key: state[key] for key in state if key != "checksum"})
    except (TypeError, ValueError) as error:
        raise CheckpointMismatchError(
            f"The state has values that no state contains ({error}), such as numpy's numbers or tensors: whatever "
            "stored it changed them. Store it unchanged, or as JSON."
        ) from error
    if state["checksum"] != seen:
        raise CheckpointMismatchError(
            "The state does not match its checksum: it was changed after it was saved. Load an unchanged copy."
        )


def _checksum(state: Mapping[str, object]) -> str:
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=8).hexdigest()


def refuse_misfits(findings: Iterable[tuple[str, object, bool]]) -> None:
    """Raise CheckpointMismatchError for the first (name, value, whether it fits) that does not fit."""
    for name, value, fits in findings:
        if not fits:
            text = repr(value)
            shown = text if len(text) <= 80 else f"{text[:80]}..."
            raise CheckpointMismatchError(
                f"The state says {name}={shown}, which no loader writes: it was changed after it was saved. Load what "
                "state_dict() returned."
            )


def is_count(value: object, least: int = 0) -> bool:
    """Return whether the value is a whole number, at least `least`, that int64 holds."""
    return is_integer(value) and least <= int(value) <= MOST_COUNT


def is_list(value: object, length: int | None = None) -> bool:
    """Return whether the value is a list, or a tuple (JSON makes a list of a tuple), of this length if given."""
    return isinstance(value, list | tuple) and length in (None, len(value))
