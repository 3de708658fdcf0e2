"""Actions of a Delta log, from commits (JSON lines) and checkpoints (Parquet or JSON), and the state that they make.

Both kinds of files give the same dicts, one for each action: {"add": {"path": ...}}. Only the needed columns of
checkpoints are decoded. Source: Delta protocol, "Actions", "Action Reconciliation", "Checkpoints", "V2 Checkpoint Table
Feature".
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._store import Buffer, redact
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.parquet.trailer import open_checked
from torch_dataloader_utils.tables.delta.paths import FileKey, VectorPlace, file_identity, vector_identity

Action = Mapping[str, Any]

# Fields of an add that are decoded from Parquet; statistics only if a filter can use them.
_ADD = ("add.path", "add.partitionValues", "add.deletionVector")
_STATISTICS = ("add.stats", "add.stats_parsed")
_REMOVE = ("remove.path", "remove.deletionVector")
_OTHERS = ("protocol", "metaData", "sidecar", "checkpointMetadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """One data file of a version.

    path: Path as the log has it. key: The same for every spelling of its path and of the place of its vector.
    partition: Texts by physical column name, None for null. statistics: JSON or a mapping; None if the log has none, or
        if they were not asked for.
    changes_data: False for files that only hold rows of other files.
    """

    path: str
    key: FileKey
    partition: Mapping[str, str | None]
    vector: VectorPlace | None = None
    statistics: Any = None
    changes_data: bool = True


@dataclass(slots=True, kw_only=True)
class TableState:
    """State of a table after its actions, applied in order.

    root: Directory of the table, against which paths are resolved.
    """

    root: str
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    files: dict[FileKey, AddedFile] = field(default_factory=dict)
    _removed: set[FileKey] = field(default_factory=set)

    def apply(self, where: str, actions: Sequence[Action]) -> None:
        """Apply the actions of a commit, in any order, or of a compacted log.

        where: File of the log, for messages.

        Raises:
            CorruptFileError: an action is not of the protocol's form, or see `load` for a compacted log.
        """
        if where.endswith(".compacted.json"):
            TableState(root=self.root).load(where, actions)
        with decoding(where, "log"):
            for removed in _files(self.root, actions, "remove"):
                self.files.pop(removed.key, None)
            self.files.update((file.key, file) for file in _files(self.root, actions, "add"))
            self._keep_last(actions)

    def load(self, where: str, actions: Sequence[Action]) -> None:
        """Take the actions of one file of a checkpoint. No commit has been applied yet.

        Raises:
            CorruptFileError: an action is not of the protocol's form, the checkpoint is of another version, or a file
                is added and removed, while only its last action may be in a checkpoint.
        """
        with decoding(where, "log"):
            for action in actions:
                named = _part(action, "checkpointMetadata")
                if named is not None and named.get("version") != int(where.rpartition("/")[2][:20]):
                    raise corrupt(where, f"it says that it is the checkpoint of version {named.get('version')}")
            removed = {file.key for file in _files(self.root, actions, "remove")}
            added = {file.key: file for file in _files(self.root, actions, "add")}
            self._removed |= removed
            self.files |= added
            self._keep_last(actions)
            if both := (removed & self.files.keys()) | (self._removed & added.keys()):
                path = redact(self.files[both.pop()].path)
                raise corrupt(where, f"it adds and removes {path}, and so does not say whether the table has it")

    def _keep_last(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self.protocol = _part(action, "protocol") or self.protocol
            self.metadata = _part(action, "metaData") or self.metadata


def check_distinct(name: str, version: str, files: Iterable[AddedFile]) -> None:
    """Raise CorruptFileError if a data file is in the version twice, with two deletion vectors.

    name, version: Name and version of the table, for messages.
    """
    seen = set()
    for file in files:
        if file.key[0] in seen:
            raise corrupt(name, f"data file {redact(file.path)} is in {version} twice")
        seen.add(file.key[0])


def read_commit(path: str, data: Buffer) -> list[Action]:
    """Return the actions of a commit, or of a checkpoint in JSON.

    Raises:
        CorruptFileError: a line is not a JSON object.
    """
    actions: list[Action] = []
    with decoding(path, "log"):
        for number, line in enumerate(bytes(data).split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                action = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number} is no JSON: {error}") from error
            if not isinstance(action, dict):
                raise ValueError(f"line {number} is no object")
            actions.append(action)
    return actions


def read_checkpoint(path: str, data: Buffer, *, with_statistics: bool) -> list[Action]:
    """Return the actions of one file of a checkpoint, or of a sidecar: files, protocol, metadata, sidecars.

    Raises:
        CorruptFileError: the file does not decode, or has fewer rows than it says.
    """
    if path.endswith(".json"):
        return read_commit(path, data)
    columns = [*_ADD, *(_STATISTICS if with_statistics else ()), *_REMOVE, *_OTHERS]
    actions: list[Action] = []
    with decoding(path, "checkpoint"):
        open_file = partial(pq.ParquetFile, pa.BufferReader(data), page_checksum_verification=True)
        file, rows = open_checked(data, redact(path), open_file), 0
        for batch in file.iter_batches(8192, columns=columns, use_threads=False):
            rows += batch.num_rows
            for name in batch.schema.names:
                column = batch.column(name)
                actions += ({name: value} for value in column.filter(column.is_valid()).to_pylist())
        if rows != file.metadata.num_rows:
            raise corrupt(path, f"it has {rows:,} of its {file.metadata.num_rows:,} rows")
    return actions


def sidecars(where: str, actions: Iterable[Action]) -> Iterator[str]:
    """Yield the names of the sidecar files of a checkpoint, as the checkpoint has them."""
    with decoding(where, "checkpoint"):
        for action in actions:
            if (part := _part(action, "sidecar")) is not None:
                yield _text(part, "path")


def commit_time(actions: Iterable[Action]) -> int | None:
    """Return the in-commit timestamp of a commit, milliseconds since 1970; None if the commit has none."""
    for action in actions:
        time = (_part(action, "commitInfo") or {}).get("inCommitTimestamp")
        if isinstance(time, int):
            return time
    return None


def added_by(root: str, where: str, actions: Sequence[Action]) -> tuple[list[AddedFile], bool]:
    """Return the files that one commit added rows with, and whether it removed rows. A compaction does neither.

    root: Directory of the table.
    """
    with decoding(where, "log"):
        removed, added = list(_files(root, actions, "remove")), list(_files(root, actions, "add"))
    return [file for file in added if file.changes_data], any(file.changes_data for file in removed)


def _part(action: Action, name: str) -> Mapping[str, Any] | None:
    part = action.get(name)
    if part is not None and not isinstance(part, dict):
        raise ValueError(f"{name} is no object")
    return part


def _files(root: str, actions: Iterable[Action], name: str) -> Iterator[AddedFile]:
    """Yield the files that the adds, or the removes, name."""
    for action in actions:
        if (part := _part(action, name)) is not None:
            yield _file_of(root, part)


def _file_of(root: str, part: Mapping[str, Any]) -> AddedFile:
    values = part.get("partitionValues") or {}
    # Arrow gives a map as a list of pairs.
    pairs = list(values.items()) if isinstance(values, dict) else values
    if not isinstance(pairs, list) or not all(map(_is_partition, pairs)):
        raise ValueError("partitionValues is no map of texts")
    path, named = _text(part, "path"), part.get("deletionVector")
    vector = None if named is None else _vector(named)
    return AddedFile(
        path=path,
        key=(file_identity(root, path), None if vector is None else vector_identity(root, vector)),
        partition=dict(pairs),
        vector=vector,
        statistics=part.get("stats") or part.get("stats_parsed"),
        changes_data=part.get("dataChange") is not False,
    )


def _is_partition(pair: Any) -> bool:
    return isinstance(pair, tuple) and isinstance(pair[0], str) and isinstance(pair[1], str | None)


def _vector(part: Any) -> VectorPlace:
    if not isinstance(part, dict):
        raise ValueError("deletionVector is no object")
    return VectorPlace(
        storage=_text(part, "storageType"),
        place=_text(part, "pathOrInlineDv"),
        offset=_number(part, "offset", 0),  # an inline vector has none
        size=_number(part, "sizeInBytes"),
        cardinality=_number(part, "cardinality"),
    )


def _number(part: Mapping[str, Any], name: str, default: int | None = None) -> int:
    number = part.get(name)
    number = default if number is None else number
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"{name} is {number!r}, and no number of bytes or rows")
    return number


def _text(part: Mapping[str, Any], name: str) -> str:
    text = part.get(name)
    if not isinstance(text, str) or not text:
        raise ValueError(f"{name} is {text!r}, and no text")
    return text
