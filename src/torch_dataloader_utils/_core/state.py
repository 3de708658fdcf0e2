"""The loader's state as JSON: a log of topologies, not a cursor for every file.

    {"version": 1, "fingerprint": "...", "options": {...}, "epoch": 3,
     "log": [{"num_ranks": 8, "num_workers": 4, "batch_size": 1024, "steps": 1200}], "checksum": "..."}

Plans are pure, so the steps alone say which rows every rank has received. Loading executes nothing; unknown keys,
another version and any changed byte are errors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Any

from torch_dataloader_utils._core.options import PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, RankCursors, Segment
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError

VERSION = 1
_KEYS = {"version", "fingerprint", "options", "epoch", "log", "checksum"}
_OPTIONAL_KEYS = {"worker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a state is bound to: the data (a fingerprint) and the options that order its rows."""

    fingerprint: str
    options: PlanOptions


def encode_state(identity: Identity, position: Position, worker: int | None = None) -> dict[str, Any]:
    """The state as a new JSON-able dict; options at their defaults are left out.

    worker: set where one worker of a foreign DataLoader saves its own state; its steps are then its own place.
    """
    segments = [*position.history, *([] if position.is_start else [position.segment])]
    state = {
        "version": VERSION,
        "fingerprint": identity.fingerprint,
        "options": _changed_options(identity.options),
        "epoch": position.epoch,
        "log": [_encode_segment(segment) for segment in segments],
        **({} if worker is None else {"worker": worker}),
    }
    return {**state, "checksum": _checksum(state)}


def decode_state(state: Mapping[str, Any], identity: Identity, topology: Topology) -> tuple[Position, int | None]:
    """The position a state names, and the worker it is the place of (None: of the whole rank).

    A state without a log is the start of its epoch under `topology`.

    Raises:
        CheckpointMismatchError: other data, other options, another version, or a state that was changed.
    """
    check_intact(state)
    _compare("data fingerprint", state["fingerprint"], identity.fingerprint)
    _compare("options", state["options"], _changed_options(identity.options))
    segments = tuple(_decode_segment(entry) for entry in state["log"])
    if not segments:
        return Position(epoch=state["epoch"], segment=Segment(topology=topology)), state.get("worker")
    return Position(epoch=state["epoch"], history=segments[:-1], segment=segments[-1]), state.get("worker")


def check_intact(state: Mapping[str, Any]) -> None:
    """Raise CheckpointMismatchError unless this is a whole, unchanged state of a version we know."""
    if not isinstance(state, Mapping) or set(state) - _OPTIONAL_KEYS != _KEYS:
        found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
        raise CheckpointMismatchError(
            f"Not a loader state: keys {found}, wanted {sorted(_KEYS)}. Pass what state_dict() of a loader returned."
        )
    if state["version"] != VERSION:
        raise CheckpointMismatchError(
            f"The state has version {state['version']!r}, this library reads version {VERSION}. "
            "Load it with the release that wrote it, or start the epoch afresh."
        )
    if state["checksum"] != _checksum({key: state[key] for key in state if key != "checksum"}):
        raise CheckpointMismatchError("The state does not match its checksum: it was changed after it was saved.")


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state for the whole job from the states of all ranks, in rank order.

    Needed where ranks had received different numbers of batches, or where row counts are not known; the merged state
    loads on any topology. States of ranks in step are all equal, and merge to the same state.

    Raises:
        CheckpointMismatchError: states of different data, options, epochs or histories.
        ConfigError: not one state a rank.
    """
    if not states:
        raise ConfigError("merge_states needs the states of all ranks; got none.")
    for state in states:
        check_intact(state)
        for key in ("fingerprint", "options", "epoch"):
            _compare(key, state[key], states[0][key])
    merged = {key: states[0][key] for key in _KEYS - {"checksum"}}
    merged["log"] = _merge_logs([state["log"] for state in states])
    return {**merged, "checksum": _checksum(merged)}


def _merge_logs(logs: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    length = max(len(log) for log in logs)
    if length == 0:
        return []
    template = next(log for log in logs if len(log) == length)
    for log in logs:
        _compare("log of earlier topologies", log[: length - 1], template[:-1])
    topology = _decode_segment(template[-1]).topology
    if len(logs) != topology.num_ranks:
        raise ConfigError(f"merge_states needs one state a rank: got {len(logs)} of num_ranks={topology.num_ranks}.")
    last = [_decode_segment(log[-1]) if len(log) == length else Segment(topology=topology) for log in logs]
    for segment in last:
        _compare("topology", asdict(segment.topology), asdict(topology))
    cursors: dict[int, RankCursors] = {}
    for segment in last:
        cursors.update(dict(segment.cursors or ()))
    steps = [segment.steps_of(rank) for rank, segment in enumerate(last)]
    together = Segment(
        topology=topology,
        steps=steps[0] if len(set(steps)) == 1 else tuple(steps),
        cursors=tuple(sorted(cursors.items())) or None,
    )
    return [*template[:-1], _encode_segment(together)]


def _encode_segment(segment: Segment) -> dict[str, Any]:
    topology = segment.topology
    entry: dict[str, Any] = {
        "num_ranks": topology.num_ranks,
        "num_workers": topology.num_workers,
        "batch_size": topology.batch_size,
        "steps": segment.steps if isinstance(segment.steps, int) else list(segment.steps),
    }
    if topology.drop_last:
        entry["drop_last"] = True
    if segment.cursors is not None:
        entry["cursors"] = {str(rank): [list(c) for c in of_rank] for rank, of_rank in segment.cursors}
    return entry


def _decode_segment(entry: Mapping[str, Any]) -> Segment:
    known = {"num_ranks", "num_workers", "batch_size", "drop_last", "steps", "cursors"}
    if not known >= set(entry):
        raise CheckpointMismatchError(f"A log entry of the state has unknown keys: {sorted(set(entry) - known)}.")
    topology = Topology(
        num_ranks=entry["num_ranks"],
        num_workers=entry["num_workers"],
        batch_size=entry["batch_size"],
        drop_last=entry.get("drop_last", False),
    )
    steps, cursors = entry["steps"], entry.get("cursors")
    return Segment(
        topology=topology,
        steps=steps if isinstance(steps, int) else tuple(steps),
        cursors=None
        if cursors is None
        else tuple(sorted((int(rank), tuple((c[0], c[1]) for c in of_rank)) for rank, of_rank in cursors.items())),
    )


def _changed_options(options: PlanOptions) -> dict[str, Any]:
    defaults = PlanOptions()
    return {
        field.name: getattr(options, field.name)
        for field in fields(PlanOptions)
        if field.name == "seed" or getattr(options, field.name) != getattr(defaults, field.name)
    }


def _compare(what: str, saved: Any, present: Any) -> None:
    if saved != present:
        raise CheckpointMismatchError(
            f"The state does not fit: its {what} is {saved!r}, here it is {present!r}. Resume with the data and "
            "options that the state was saved with, or start the epoch afresh without loading it."
        )


def _checksum(state: Mapping[str, Any]) -> str:
    canonical = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=8).hexdigest()
