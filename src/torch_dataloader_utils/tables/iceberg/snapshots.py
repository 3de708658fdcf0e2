"""Choice of the snapshot that a scan reads, and of its schema."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from torch_dataloader_utils._core.arguments import hold_integers
from torch_dataloader_utils._core.table_snapshot import milliseconds_of, time_text
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, NoDataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedState:
    """Ids of the snapshot (None: the table had none) and of its schema, as rank 0 found them."""

    snapshot_id: int | None
    schema_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChoice:
    """The user's choice; at most one of snapshot_id, as_of_timestamp, branch and tag, or a snapshot_id of a branch.

    as_of_timestamp: Milliseconds since 1970 or a datetime (a naive datetime counts as UTC); kept as milliseconds.
    from_snapshot_id: Read only rows that were appended after this snapshot.
    allow_rewrites: Leave out changes other than appends after `from_snapshot_id`, instead of raising.
    agreed: State that rank 0 found for this choice, since the table may have changed after that.

    Raises:
        ConfigError: more than one choice. ConfigTypeError: an id is not a whole number, a time is neither a whole
            number nor a datetime, or a branch or tag is not text.
    """

    snapshot_id: int | None = None
    as_of_timestamp: int | datetime | None = None
    branch: str | None = None
    tag: str | None = None
    from_snapshot_id: int | None = None
    allow_rewrites: bool = False
    agreed: AgreedState | None = None

    def __post_init__(self) -> None:
        chosen = [
            name for name in ("snapshot_id", "as_of_timestamp", "branch", "tag") if getattr(self, name) is not None
        ]
        if len(chosen) > 1 and chosen != ["snapshot_id", "branch"]:
            raise ConfigError(f"{' and '.join(chosen)} each choose a snapshot; pass one of them.")
        hold_integers(self, "snapshot_id", "from_snapshot_id")
        if self.as_of_timestamp is not None:
            object.__setattr__(self, "as_of_timestamp", milliseconds_of("as_of_timestamp", self.as_of_timestamp))
        for name in ("branch", "tag"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ConfigTypeError(f"{name}={value!r}: pass the name of one {name}, a text.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTarget:
    """Snapshot to read (None: the table has none), its schema, and the appends of an increment, oldest first."""

    snapshot: "Snapshot | None"
    schema: "Schema"
    appends: "tuple[Snapshot, ...] | None" = None
    notes: tuple[str, ...] = ()


def choose_snapshot(metadata: "TableMetadata", choice: SnapshotChoice, name: str) -> ScanTarget:
    """Return the snapshot that `choice` means.

    A snapshot chosen by id, time or tag is read under the schema it was written with; the present state of the table
    and of a branch under the table's present schema, as other engines do. An agreed state names both.

    Raises:
        ConfigError: no such snapshot, schema, branch or tag, or an increment that does not lead up to the snapshot.
        NoDataError: the table had no snapshot at that time.
    """
    snapshot = _snapshot(metadata, choice, name)
    schema = _schema(metadata, choice, snapshot, name)
    if choice.from_snapshot_id is None:
        return ScanTarget(snapshot=snapshot, schema=schema)
    appends, skipped = _increment(metadata, snapshot, choice.from_snapshot_id, name)
    notes: tuple[str, ...] = ()
    if skipped:
        kinds = ", ".join(f"{each.snapshot_id} ({_operation(each)})" for each in skipped)
        if not choice.allow_rewrites:
            raise ConfigError(
                f"{name}: between snapshot {choice.from_snapshot_id} and the one to read, rows were removed or written "
                f"anew by {kinds}, so the rows since are not all new: rewritten rows would be delivered twice. Choose "
                f"from_snapshot_id={skipped[-1].snapshot_id} or later, read the whole snapshot, or pass "
                "allow_rewrites=True to read only what appends added, with rows that were removed since."
            )
        notes = (f"increment: only appends are read; left out are the changes of {kinds}",)
    return ScanTarget(snapshot=snapshot, schema=schema, appends=appends, notes=notes)


def _snapshot(metadata: "TableMetadata", choice: SnapshotChoice, name: str) -> "Snapshot | None":
    if choice.agreed is not None:
        agreed_id = choice.agreed.snapshot_id
        return None if agreed_id is None else _by_id(metadata, agreed_id, name)
    if choice.snapshot_id is not None:
        wanted = _by_id(metadata, choice.snapshot_id, name)
        if choice.branch is not None:
            last = _snapshot(metadata, SnapshotChoice(branch=choice.branch), name)
            _check_descends(metadata, last, wanted, choice.branch, name)
        return wanted
    if isinstance(choice.as_of_timestamp, int):
        return _at_time(metadata, choice.as_of_timestamp, name)
    for kind in ("branch", "tag"):
        wanted = getattr(choice, kind)
        refs = {key: ref for key, ref in metadata.refs.items() if ref.snapshot_ref_type.value == kind}
        if wanted in refs:
            return _by_id(metadata, refs[wanted].snapshot_id, name)
        # A table has its main branch from the start, and the branch's reference from the first commit on.
        if wanted is not None and (kind, wanted) != ("branch", "main"):
            known = ", ".join(sorted(refs)) or "none"
            raise ConfigError(f"{name} has no {kind} {wanted!r}; it has {known}. Choose one of them.")
    present = metadata.current_snapshot_id
    return None if present is None else _by_id(metadata, present, name)


def _check_descends(
    metadata: "TableMetadata", last: "Snapshot | None", wanted: "Snapshot", branch: str, name: str
) -> None:
    """Raise ConfigError unless `wanted` is in the history that leads up to `last`."""
    if all(each.snapshot_id != wanted.snapshot_id for each in _lineage(metadata, last)):
        raise ConfigError(
            f"{name}: snapshot {wanted.snapshot_id} is not in the history of branch {branch!r}. Pass one of them, or a "
            "snapshot of the branch."
        )


def _by_id(metadata: "TableMetadata", snapshot_id: int, name: str) -> "Snapshot":
    snapshot: Snapshot | None = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        known = ", ".join(str(each.snapshot_id) for each in metadata.snapshots[-10:])
        raise ConfigError(
            f"{name} has no snapshot {snapshot_id}; its latest are {known or 'none'}. It may have been expired; "
            "choose another."
        )
    return snapshot


def _at_time(metadata: "TableMetadata", milliseconds: int, name: str) -> "Snapshot":
    history = _history(metadata)
    reached = [snapshot_id for moment, snapshot_id in history if moment <= milliseconds]
    if not reached:
        known = f"the first known snapshot is of {time_text(min(history)[0])}" if history else "they name no snapshot"
        raise NoDataError(
            f"{name} had no snapshot at {time_text(milliseconds)}, as far as its metadata say: {known}. Choose a later "
            "time, a datetime or milliseconds since 1970."
        )
    # Of several snapshots in one millisecond, the last counts.
    return _by_id(metadata, reached[-1], name)


def _history(metadata: "TableMetadata") -> list[tuple[int, int]]:
    """Return (milliseconds, snapshot id) of the table's present snapshots over time, in the order of commits.

    The log of snapshots is optional in the format. Without a log, the history is the ancestors of the present snapshot.
    """
    log = [(entry.timestamp_ms, entry.snapshot_id) for entry in metadata.snapshot_log]
    lineage = _lineage(metadata, metadata.current_snapshot())
    return log or [(each.timestamp_ms, each.snapshot_id) for each in lineage][::-1]


def _lineage(metadata: "TableMetadata", snapshot: "Snapshot | None") -> "Iterator[Snapshot]":
    """Yield the snapshot and its ancestors, the newest first, as far as they are kept."""
    # Not `snapshot_by_id`, which searches all snapshots.
    left = {each.snapshot_id: each for each in metadata.snapshots}
    while snapshot is not None:
        yield snapshot
        # Each comes once: damaged metadata may name a snapshot as its own ancestor.
        left.pop(snapshot.snapshot_id, None)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else left.get(parent)


def _schema(metadata: "TableMetadata", choice: SnapshotChoice, snapshot: "Snapshot | None", name: str) -> "Schema":
    by_id = {schema.schema_id: schema for schema in metadata.schemas}
    if choice.agreed is not None:
        if choice.agreed.schema_id not in by_id:
            raise ConfigError(
                f"{name} has no schema {choice.agreed.schema_id}, which rank 0 found; it has {sorted(by_id)}. It was "
                "removed since: start again."
            )
        return by_id[choice.agreed.schema_id]
    present: Schema = metadata.schema()
    is_past = choice.snapshot_id is not None or choice.as_of_timestamp is not None or choice.tag is not None
    if not is_past or snapshot is None or snapshot.schema_id is None:
        return present
    return by_id.get(snapshot.schema_id, present)


def _increment(
    metadata: "TableMetadata", snapshot: "Snapshot | None", from_snapshot_id: int, name: str
) -> "tuple[tuple[Snapshot, ...], tuple[Snapshot, ...]]":
    """Return the appends after `from_snapshot_id` up to `snapshot`, and the other changes in between."""
    appends: list[Snapshot] = []
    skipped: list[Snapshot] = []
    for each in _lineage(metadata, snapshot):
        if each.snapshot_id == from_snapshot_id:
            return tuple(reversed(appends)), tuple(reversed(skipped))
        if _operation(each) == "append":
            appends.append(each)
        elif _operation(each) != "replace":  # compaction changes no rows
            skipped.append(each)
    raise ConfigError(
        f"from_snapshot_id={from_snapshot_id} is no ancestor of snapshot "
        f"{None if snapshot is None else snapshot.snapshot_id} of {name}, or snapshots in between have "
        "expired. Choose a later one, or read the whole snapshot."
    )


def _operation(snapshot: "Snapshot") -> str:
    # Version 1 may leave the summary out.
    return "unknown" if snapshot.summary is None else str(snapshot.summary.operation.value)
