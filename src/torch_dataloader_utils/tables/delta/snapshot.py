"""One version of a Delta table: its files, its metadata, and a check that all its features are supported."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from torch_dataloader_utils._core.table_snapshot import TableSnapshot
from torch_dataloader_utils._store import FileEntry, StoreAccess
from torch_dataloader_utils.discover.roots import PathRules, Roots
from torch_dataloader_utils.errors import ConfigError, DataError, InternalError, NoDataError, UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt
from torch_dataloader_utils.tables.delta.actions import (
    Action,
    AddedFile,
    TableState,
    added_by,
    check_distinct,
    read_checkpoint,
    read_commit,
    sidecars,
)
from torch_dataloader_utils.tables.delta.log import (
    LOG,
    DeltaLog,
    LogSteps,
    VersionChoice,
    choose_version,
    commits_between,
    list_log,
)
from torch_dataloader_utils.tables.delta.paths import forget_links
from torch_dataloader_utils.tables.table_files import TableFiles

_log = logging.getLogger(__name__)

_WIDENING = frozenset(["typeWidening", "typeWidening-preview"])

# Features that readers have to know. Shredded variants are refused when they are read.
_SUPPORTED = _WIDENING | {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
    "variantShredding",
    "variantShredding-preview",
}
_MOST_READER_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaTable:
    """Place of a table. root: Resolved directory of the table. files: Reader of its files; holds the credentials."""

    root: str
    files: TableFiles

    @classmethod
    def at(cls, path: str, access: StoreAccess, allowed_roots: Roots | None) -> "DeltaTable":
        """Return the table at a path; allowed_roots: None for anywhere in its bucket, or on this machine."""
        rules = PathRules()
        root = rules.resolve(path).rstrip("/")
        roots = Roots.near(root) if allowed_roots is None else allowed_roots
        return cls(root=root, files=TableFiles(rules=rules, access=access, roots=roots))

    def version(self, choice: VersionChoice) -> int:
        """Return the version that a choice means now; see `choose_version`."""
        return choose_version(list_log(self.root, self.files), choice, self.files)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """One version of a table.

    files: All data files of the version or, with `from_version`, the files that were added after that version.
    """

    name: str
    version: int
    from_version: int | None
    metadata: Mapping[str, Any]
    is_widened: bool
    files: tuple[AddedFile, ...]

    @property
    def described(self) -> str:
        """Version, for messages."""
        return f"version {self.version}" + ("" if self.from_version is None else f" from {self.from_version}")

    @property
    def identity(self) -> TableSnapshot:
        """Snapshot that binds a state to this version: the same files of another version may have other deletes."""
        return TableSnapshot(
            table=str(self.metadata.get("id")),
            snapshot_id=self.version,
            from_snapshot_id=self.from_version,
            kind="version",
        )


def read_snapshot(table: DeltaTable, choice: VersionChoice, *, with_statistics: bool) -> Snapshot:
    """Return the version that `choice` means.

    Raises:
        NoDataError: no table. ConfigError: no such version, or an increment over a version that removed rows.
        CorruptFileError: the log is damaged.
        UnsupportedFeatureError: the table needs a feature that is not supported.
    """
    forget_links()
    log = list_log(table.root, table.files)
    version = choose_version(log, choice, table.files)
    protocol, metadata, files = _read_state(table, log, version, with_statistics=with_statistics)
    features = _check_protocol(log.name, protocol)
    provider = (metadata.get("format") or {}).get("provider", "parquet")
    if provider != "parquet":
        raise UnsupportedFeatureError(f"{log.name}: data files in {provider} are not supported, only Parquet.")
    if choice.from_version is not None:
        files = _added_since(table, log, choice.from_version, version)
    return Snapshot(
        name=log.name,
        version=version,
        from_version=choice.from_version,
        metadata=metadata,
        is_widened=bool(_WIDENING & features),
        files=files,
    )


_State = tuple[Mapping[str, Any], Mapping[str, Any], tuple[AddedFile, ...]]


def _read_state(table: DeltaTable, log: DeltaLog, version: int, *, with_statistics: bool) -> _State:
    """Return the protocol, metadata and files of a version, by the first way that gives no error.

    Raises:
        DataError, NoDataError: the error of the first way, if all ways fail.
    """
    failed: DataError | NoDataError | None = None
    for steps in log.ways(version):
        try:
            return _replayed(table, log.name, version, steps, with_statistics=with_statistics)
        except (DataError, NoDataError) as error:
            way = "commits alone" if steps.start < 0 else f"the checkpoint of version {steps.start}"
            _log.warning("%s: version %d is not read from %s: %s", log.name, version, way, error)
            failed = failed or error
    raise failed or InternalError(f"{log.name}: no way to version {version}")


def _replayed(table: DeltaTable, name: str, version: int, steps: LogSteps, *, with_statistics: bool) -> _State:
    files, state = table.files, TableState(root=table.root)

    def read_part(path: str) -> tuple[str, list[Action]]:
        return path, read_checkpoint(path, files.read(path), with_statistics=with_statistics)

    for path, actions in files.map(read_part, [entry.path for entry in steps.checkpoint]):
        state.load(path, actions)
        beside = [_sidecar(table, name) for name in sidecars(path, actions)]
        for sidecar, more in files.map(read_part, beside):
            state.load(sidecar, more)
    for path, actions in files.map(lambda entry: _read_commit(entry, files), steps.commits):
        state.apply(path, actions)
    check_distinct(name, f"version {version}", state.files.values())
    if state.protocol is None or state.metadata is None:
        missing = "protocol" if state.protocol is None else "metadata"
        raise corrupt(f"{name}/{LOG}", f"the log of version {version} has no {missing}")
    return state.protocol, state.metadata, tuple(state.files.values())


def _read_commit(entry: FileEntry, files: TableFiles) -> tuple[str, list[Action]]:
    return entry.path, read_commit(entry.path, files.read(entry.path))


def _sidecar(table: DeltaTable, name: str) -> str:
    """Return the path of a sidecar. All sidecars lie in one directory, and only the name counts."""
    return f"{table.root}/{LOG}/_sidecars/{unquote(name).rpartition('/')[2]}"


def _check_protocol(name: str, protocol: Mapping[str, Any]) -> frozenset[str]:
    """Return the features that readers have to know.

    Raises:
        UnsupportedFeatureError: a feature is not supported. CorruptFileError: the protocol action is malformed.
    """
    needed, features = protocol.get("minReaderVersion"), protocol.get("readerFeatures") or ()
    if not isinstance(needed, int) or not isinstance(features, list | tuple):
        raise corrupt(name, f"its protocol has minReaderVersion {needed!r} and readerFeatures {features!r}")
    if needed > _MOST_READER_VERSION:
        raise UnsupportedFeatureError(
            f"{name}: the table needs readers of version {needed}, and this one is of version {_MOST_READER_VERSION}."
        )
    if features and needed < _MOST_READER_VERSION:
        raise corrupt(name, f"its protocol lists reader features, and readers of version {needed} know none")
    unknown = sorted(map(str, set(map(str, features)) - _SUPPORTED))
    if unknown:
        raise UnsupportedFeatureError(
            f"{name}: the table uses {', '.join(unknown)}, which {'is' if len(unknown) == 1 else 'are'} not supported. "
            "Drop the feature from the table, or read a copy without it."
        )
    return frozenset(features)


def _added_since(table: DeltaTable, log: DeltaLog, start: int, version: int) -> tuple[AddedFile, ...]:
    """Return the files that the versions after `start` added."""
    if start > version:
        raise ConfigError(f"from_version={start} is after version {version} of {log.name}; choose an earlier one.")
    added: dict[Any, AddedFile] = {}
    entries = commits_between(log, start + 1, version)
    for number, (path, actions) in enumerate(
        table.files.map(lambda entry: _read_commit(entry, table.files), entries), start=start + 1
    ):
        files, removes = added_by(table.root, path, actions)
        if removes:
            raise ConfigError(
                f"{log.name}: version {number} removed rows that earlier versions had (a delete, update, merge or "
                f"overwrite), so the rows after version {start} are not an increment. Choose from_version={number} or "
                "later, or read the whole version."
            )
        added.update((file.key, file) for file in files)
    check_distinct(log.name, f"version {version} from {start}", added.values())
    return tuple(added.values())
