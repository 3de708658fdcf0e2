"""Checksums of states, so that a state that was cut, edited or written by another release is refused."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from torch_dataloader_utils.errors import CheckpointMismatchError


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with its checksum, under the key "checksum"."""
    return {**state, "checksum": _checksum(state)}


def check_version(state: Mapping[str, Any], version: int) -> None:
    """Raises CheckpointMismatchError for a sealed state of another version, whatever other keys that version has."""
    if {"version", "checksum"} <= set(state) and state["version"] != version:
        raise CheckpointMismatchError(
            f"The state has version {state['version']!r}, this library reads version {version}. Load it with the "
            "release that wrote it, or start the epoch afresh."
        )


def check_seal(state: Mapping[str, Any]) -> None:
    """Raises CheckpointMismatchError unless the state is as it was sealed."""
    try:
        seen = _checksum({key: state[key] for key in state if key != "checksum"})
    except (TypeError, ValueError) as error:
        raise CheckpointMismatchError(
            f"The state holds what no state has ({error}), such as numpy's numbers or tensors: what kept it "
            "changed its values. Keep it as it is, or as JSON."
        ) from error
    if state["checksum"] != seen:
        raise CheckpointMismatchError(
            "The state does not match its checksum: it was changed after it was saved. Load an unchanged copy."
        )


def _checksum(state: Mapping[str, Any]) -> str:
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=8).hexdigest()
