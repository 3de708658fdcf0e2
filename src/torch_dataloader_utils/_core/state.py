"""The loader's state as checked JSON: a log of topologies, not a cursor for every file.

    {"version": 3, "fingerprint": "...", "settings": [["columns", "all"], ["filters", "none"], ...],
     "options": [["seed", 42], ["shuffle", true]], "epoch": 3,
     "log": {"earlier": "", "num_ranks": [8], "num_workers": [4], "batch_size": [1024], "drop_last": [false],
             "steps": [1200], "cursors": []}, "checksum": "..."}

Plans are pure, so the numbers of steps alone say which rows every rank has received; `topology_log` describes the log.
Loading executes no code; unknown keys, other versions and any changed byte are errors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch_dataloader_utils._core.options import MIXED_CHUNKS, PlanOptions, Topology
from torch_dataloader_utils._core.position import Position, RankCursors, Segment
from torch_dataloader_utils._core.sealed_state import (
    check_seal,
    check_version,
    is_count,
    is_list,
    refuse_misfits,
    sealed,
)
from torch_dataloader_utils._core.table_snapshot import TableSnapshot
from torch_dataloader_utils._core.topology_log import decode_log, encode_log, log_findings
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError, of_type

_VERSION = 3
# Version 2 has no `earlier` in the log, and cursors without the next worker. Logs of version 1 have no meaning here,
# because version 1 had other plans.
_READABLE = (2, _VERSION)

_KEYS = {"version", "fingerprint", "options", "epoch", "log", "checksum"}
_OPTIONAL_KEYS = {"worker", "settings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The data (as a fingerprint) and the options that order its rows; a state is bound to both.

    settings: (name, short text) of each part of the fingerprint; the message about a misfit names the parts that
        differ.
    """

    fingerprint: str
    options: PlanOptions
    settings: tuple[tuple[str, str], ...] = ()


def encode_state(identity: Identity, position: Position, worker: int | None = None) -> dict[str, Any]:
    """Return the state as a new JSON-able dict; options at their defaults are left out.

    worker: Number of the worker that saves its own state in a foreign DataLoader; the steps are then the worker's.
    """
    state = {
        "version": _VERSION,
        "fingerprint": identity.fingerprint,
        **({"settings": [list(setting) for setting in identity.settings]} if identity.settings else {}),
        "options": _changed_options(identity.options),
        "epoch": position.epoch,
        "log": encode_log(position.segments or position.before),
        **({} if worker is None else {"worker": worker}),
    }
    return sealed(state)


def decode_state(
    state: Mapping[str, Any], identity: Identity, topology: Topology, *, files_may_change: bool = False
) -> tuple[Position, int | None]:
    """Return the position that a state names, and the worker that saved the state (None: the whole rank saved it).

    A state without a log, or with the log of the epoch before, is at the start of its epoch, under `topology`. It has
    no unfinished epoch, so its data may be an earlier snapshot of the table.

    files_may_change: Whether the state's data may be other plain files too.

    Raises:
        CheckpointMismatchError: other data, other options, another version, or a state that was changed.
    """
    check_intact(state)
    _compare_options(state["options"], _changed_options(identity.options))
    segments = decode_log(state["log"], state.get("worker"))
    is_at_start = not segments or _is_of_epoch_before(segments)
    if is_at_start and state["epoch"] and _may_follow(state, identity, files_may_change=files_may_change):
        return Position(epoch=state["epoch"], segment=Segment(topology=topology)), state.get("worker")
    _compare_data(state, identity)
    if is_at_start:
        start = Segment(topology=topology)
        return Position(epoch=state["epoch"], segment=start, before=segments), state.get("worker")
    return Position(epoch=state["epoch"], history=segments[:-1], segment=segments[-1]), state.get("worker")


def check_intact(state: Mapping[str, object]) -> None:
    """Raise CheckpointMismatchError unless this is a complete, unchanged state of a readable version."""
    if isinstance(state, Mapping):
        check_version(state, *_READABLE)
    if isinstance(state, str | bytes):
        raise CheckpointMismatchError("Not a loader state, but text. Pass the dict: json.loads(text).")
    if not isinstance(state, Mapping) or set(state) - _OPTIONAL_KEYS != _KEYS:
        found = f"keys {sorted(state, key=str)}" if isinstance(state, Mapping) else of_type(state)
        raise CheckpointMismatchError(
            f"Not a loader state: {found}, wanted keys {sorted(_KEYS)}. Pass what state_dict() of a loader returned."
        )
    check_seal(state)
    refuse_misfits(_findings(state))


def _findings(state: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, value, whether the value has the type and range that `encode_state` writes) for all values.

    Later findings rely on earlier findings: stop at the first value that does not fit.
    """
    yield "epoch", state["epoch"], is_count(state["epoch"])
    yield "fingerprint", state["fingerprint"], isinstance(state["fingerprint"], str)
    for name in ("settings", "options"):
        pairs = state.get(name, [])
        yield name, pairs, is_list(pairs) and all(is_list(pair, 2) and isinstance(pair[0], str) for pair in pairs)
    if "worker" in state:
        yield "worker", state["worker"], is_count(state["worker"])
    yield from log_findings(state["log"])


def partial_state(worker: int) -> CheckpointMismatchError:
    """Return the error for the state of one worker where the state of a whole rank is needed."""
    return CheckpointMismatchError(
        f"The state belongs to worker {worker} alone, a part of what torchdata's StatefulDataLoader saved. Load the "
        "whole into a StatefulDataLoader with as many workers; here, pass what state_dict() of a loader returned."
    )


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one state for the whole job from the states of all ranks, in rank order.

    Needed where ranks had received different numbers of batches, or where row counts are not known; the merged state
    loads on any topology. States of ranks in step are all equal, and merge to the same state.

    Some ranks may have finished an epoch that others have not: by plan (`rank_sharding="chunks"`, unknown row counts),
    or because the others were stopped earlier. States of ranks that have finished already name the next epoch; the
    merged state is in the unfinished epoch.

    Raises:
        CheckpointMismatchError: states of different data, options, epochs or histories.
        ConfigTypeError: not a list. ConfigError: not one state a rank, or not in rank order. A wrong order is noticed
            only in states of unknown row counts.
    """
    if isinstance(states, str | Mapping) or not isinstance(states, Sequence):
        raise ConfigTypeError(f"merge_states got {of_type(states)}: pass a list of the states of all ranks.")
    if not states:
        raise ConfigError("merge_states got no state: pass the states of all ranks.")
    for state in states:
        check_intact(state)
        if "worker" in state:
            raise partial_state(state["worker"])
        _compare_options(state["options"], states[0]["options"])
        _compare("fingerprint", state["fingerprint"], states[0]["fingerprint"])
    merged = {key: value for key, value in states[0].items() if key != "checksum"}
    merged["version"] = _VERSION
    merged["epoch"] = min(state["epoch"] for state in states)
    saved = [decode_log(state["log"]) for state in states]
    logs = [_log_of_epoch(merged["epoch"], rank, states[rank]["epoch"], log) for rank, log in enumerate(saved)]
    all_alike = all(log == saved[0] for log in saved)
    merged["log"] = encode_log(_merge_logs(logs) or (saved[0] if all_alike else ()))
    return sealed(merged)


def _log_of_epoch(epoch: int, rank: int, saved_epoch: int, log: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Return the log of `epoch`: the log of the state's own epoch, or of the epoch before, which its rank finished."""
    if saved_epoch == epoch:
        return () if _is_of_epoch_before(log) else log
    if saved_epoch == epoch + 1 and _is_of_epoch_before(log):
        return log
    raise CheckpointMismatchError(
        f"The states do not fit together: the state of rank {rank} is in epoch {saved_epoch}, another state in epoch "
        f"{epoch}, and whether rank {rank} took all its steps of epoch {epoch} is not known. Merge states that all "
        "ranks saved at one place of the training loop, before set_epoch() to the next epoch."
    )


def _is_of_epoch_before(log: Sequence[Segment]) -> bool:
    """Return whether the log belongs to the epoch before the state's own epoch, which its rank has finished."""
    return bool(log) and log[-1].steps is None


def _merge_logs(logs: Sequence[tuple[Segment, ...]]) -> list[Segment]:
    longest = max(logs, key=len)
    if not longest:
        return []
    *earlier, present = longest
    topology, num_ranks = present.topology, present.topology.num_ranks
    if len(logs) != num_ranks:
        raise ConfigError(f"merge_states takes one state a rank: got {len(logs)}, pass all of num_ranks={num_ranks}.")
    last = [log[-1] if len(log) == len(longest) else Segment(topology=topology) for log in logs]
    for log, segment in zip(logs, last, strict=True):
        _compare("log of earlier topologies", log[: len(earlier)], tuple(earlier))
        _compare("topology", segment.topology, topology)
    cursors: dict[int, RankCursors] = {}
    for segment in last:
        cursors.update(dict(segment.cursors or ()))
    steps = [None if segment.has_finished(rank) else segment.steps_of(rank) for rank, segment in enumerate(last)]
    if any(steps[rank] is None for rank in cursors) or not all(map(_may_be_of, last, range(num_ranks))):
        raise ConfigError("merge_states got states out of rank order: pass the states in rank order, rank 0's first.")
    together = Segment(
        topology=topology,
        steps=steps[0] if len(set(steps)) == 1 else tuple(steps),
        cursors=tuple(sorted(cursors.items())) or None,
    )
    return [*earlier, together]


def _may_be_of(segment: Segment, rank: int) -> bool:
    """Return whether the segment can be this rank's: if steps are one number, the cursors include the own rank's."""
    return segment.cursors is None or not isinstance(segment.steps, int) or rank in dict(segment.cursors)


def _changed_options(options: PlanOptions) -> list[list[Any]]:
    """Return [name, value] of the options that are not at their defaults, and of the seed."""
    defaults = PlanOptions()
    return [
        [field.name, getattr(options, field.name)]
        for field in fields(PlanOptions)
        if field.name == "seed" or getattr(options, field.name) != getattr(defaults, field.name)
    ]


def _may_follow(state: Mapping[str, Any], identity: Identity, *, files_may_change: bool) -> bool:
    """Return whether the data of `identity` are later data than the state's, read in the same way."""
    saved, present = dict(state.get("settings", ())), dict(identity.settings)
    if state["fingerprint"] == identity.fingerprint or any(
        saved.get(name) != present.get(name) for name in ("columns", "filters", "holdout")
    ):
        return False
    before, after = (TableSnapshot.parse(str(side.get("snapshot"))) for side in (saved, present))
    if before is None or after is None:
        return files_may_change and before is after
    return after.may_follow(before)


def _compare_data(state: Mapping[str, Any], identity: Identity) -> None:
    """Raise unless the state has the same data; the message names the settings that differ."""
    saved, present = dict(state.get("settings", ())), dict(identity.settings)
    misfits = [
        f"{name} {saved.get(name, 'not named')}, here {present.get(name, 'not named')}"
        for name in (saved and {**present, **saved})
        if saved.get(name) != present.get(name)
    ]
    if state["fingerprint"] != identity.fingerprint and misfits:
        raise CheckpointMismatchError(
            f"The state does not fit: its data fingerprint differs. It was saved with {'; '.join(misfits)}. "
            f"{_advice(saved, identity)}Resume with the same data and settings, or start the epoch again without "
            "loading it."
        )
    _compare("data fingerprint", state["fingerprint"], identity.fingerprint)


def _advice(saved: Mapping[str, object], identity: Identity) -> str:
    present = dict(identity.settings)
    if saved.get("snapshot") != present.get("snapshot"):
        snapshot = TableSnapshot.parse(str(saved.get("snapshot")))
        if snapshot is None:
            return ""
        return (
            f"Tables move on: pass {snapshot.options} to continue in the snapshot of the state. (A state at the end of "
            "an epoch loads onto any later snapshot; a state of an increment, onto the next increment.) "
        )
    is_same_data = saved.get("files") == present.get("files") and saved.get("filters") == present.get("filters")
    if is_same_data and "window_tokens" in present and "window_tokens" not in saved:
        return (
            "The state's samples are of single row groups: pass window_tokens=1 to pack_tokens to continue in their "
            "order. "
        )
    if present.get("snapshot", "none") != "none" and saved.get("schema") != present.get("schema"):
        return (
            "The snapshot is the same. If the table's columns changed: snapshot_id= and tag= read the snapshot under "
            "its own schema, branch= and no option under the table's present schema. Pass snapshot_id=; if you did, "
            "pass branch= with a branch that you make at that snapshot. "
        )
    if {name for name in {**saved, **present} if saved.get(name) != present.get(name)} == {"schema"}:
        return (
            "The files are the same, their columns or types are not. For columns in the names of directories: "
            "open_loader and the shell find such columns, create_dataloader only if asked to; "
            "partitioning=None leaves them out. "
        )
    if "files by content" in str(saved.get("files")):
        return (
            'The state was saved when identity="content" looked at the ends of each file, which does not prove that '
            "the bytes between them are the same. "
        )
    if all("by digest" in str(side.get("files")) for side in (saved, present)):
        return "The files hold other bytes, or have other names below their common directory. "
    if saved.get("files") != present.get("files"):
        return (
            "Files are known by path, size and etag or time: copied or touched files are other files. States that are "
            'saved and loaded with identity="content" fit copies too. '
        )
    return ""


def _compare_options(saved: Any, present: Any) -> None:
    """Raise unless both are the same options, lists of [name, value]; the message names options that differ.

    [["seed", 42], ["shuffle", True]], [["seed", 42]]      It was saved with shuffle="chunks", here False.
    """
    if saved == present:
        return
    was, here = (_as_passed({**asdict(PlanOptions()), **dict(side)}) for side in (saved, present))
    misfits = [
        f"{name}={was.get(name)!r}, here {here.get(name)!r}"
        for name in {**was, **here}
        if was.get(name) != here.get(name)
    ]
    if misfits:
        raise CheckpointMismatchError(
            f"The state does not fit: its options differ. It was saved with {'; '.join(misfits)}. Resume with the "
            "options of the state, or start the epoch again without loading it."
        )


def _as_passed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with `shuffle`, `shuffle_rows` and `interleave` as a user passes them."""
    has_windows = options.pop("default_windows") or options["shuffle_rows"] is not None
    if options["shuffle"]:
        options["shuffle"] = True if has_windows else "chunks"
    if not has_windows or (options["shuffle"] and options["interleave"] == MIXED_CHUNKS):
        options["interleave"] = None
    return options


def _compare(what: str, saved: object, present: object) -> None:
    if saved != present:
        raise CheckpointMismatchError(
            f"The state does not fit: its {what} is {saved!r}, here it is {present!r}. Resume with the data and "
            "options that the state was saved with, or start the epoch again without loading it."
        )
