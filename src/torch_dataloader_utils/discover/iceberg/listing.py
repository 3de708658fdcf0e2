"""The live files of a snapshot: manifest list, manifests, entries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.decode_errors import corrupt
from torch_dataloader_utils.discover.iceberg.catalog import OpenTable
from torch_dataloader_utils.discover.iceberg.data_files import DataFile
from torch_dataloader_utils.discover.iceberg.file_pruning import FilePruner
from torch_dataloader_utils.discover.iceberg.manifests import (
    Content,
    Manifest,
    ManifestEntry,
    read_manifest,
    read_manifest_list,
)
from torch_dataloader_utils.discover.iceberg.snapshots import ScanTarget


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotFiles:
    """The files of a snapshot.

    data: every data file of the manifests that were read, sorted by path. is_read: bool, whether filters keep it.
    deletes: delete files of any kind. is_complete: whether all data manifests were read.
    """

    data: tuple[DataFile, ...]
    is_read: Any
    deletes: tuple[ManifestEntry, ...]
    is_complete: bool


def list_snapshot(table: OpenTable, target: ScanTarget, pruner: FilePruner) -> SnapshotFiles:
    """The live files of the target's snapshot; for an increment, the files that its appends added, without deletes.

    Raises:
        CorruptFileError: manifests that do not decode, or a data file that is listed twice.
    """
    manifests = _manifests(table, target)
    wanted = [each for each in manifests if each.holds_deletes or pruner.may_hold(each)]
    entries = [entry for part in table.files.map(lambda each: _read(table, each, pruner), wanted) for entry in part]
    if target.appends is not None:
        appended = {snapshot.snapshot_id for snapshot in target.appends}
        entries = [entry for entry in entries if entry.is_added and entry.snapshot_id in appended]
    data = _data_files(table, [entry for entry in entries if entry.content is Content.DATA])
    return SnapshotFiles(
        data=data,
        is_read=np.array([pruner.may_match(file.entry) for file in data], dtype=np.bool_),
        deletes=tuple(entry for entry in entries if entry.content is not Content.DATA),
        is_complete=len(wanted) == len(manifests),
    )


def _manifests(table: OpenTable, target: ScanTarget) -> list[Manifest]:
    if target.appends is None:
        return [] if target.snapshot is None else _manifest_list(table, target.snapshot)
    found = {
        manifest.manifest_path: manifest
        for snapshot in target.appends
        for manifest in _manifest_list(table, snapshot)
        if not manifest.holds_deletes and manifest.snapshot_id == snapshot.snapshot_id
    }
    return list(found.values())


def _manifest_list(table: OpenTable, snapshot: Any) -> list[Manifest]:
    path = table.files.rules.resolve(snapshot.manifest_list)
    return read_manifest_list(path, table.files.read(path))


def _read(table: OpenTable, manifest: Manifest, pruner: FilePruner) -> list[ManifestEntry]:
    path = table.files.rules.resolve(manifest.manifest_path)
    with_statistics = not manifest.holds_deletes and not pruner.keeps_all
    return read_manifest(manifest, path, table.files.read(path), with_statistics=with_statistics)


def _data_files(table: OpenTable, entries: Sequence[ManifestEntry]) -> tuple[DataFile, ...]:
    identity = {
        spec_id: {part.field_id: part.source_id for part in spec.fields if str(part.transform) == "identity"}
        for spec_id, spec in table.metadata.specs().items()
    }
    # By spec: old tables give the same field ids to the parts of several specs.
    names = {
        spec_id: {part.field_id: part.name for part in spec.fields} for spec_id, spec in table.metadata.specs().items()
    }
    found: dict[str, DataFile] = {}
    for entry in entries:
        path = table.files.rules.resolve(entry.path)
        if path in found:
            raise corrupt(table.name, f"data file {redact(path)} is in the snapshot twice")
        if entry.partition and entry.spec_id not in identity:
            raise corrupt(table.name, f"data file {redact(path)} is of partition spec {entry.spec_id}, which it lacks")
        sources = identity.get(entry.spec_id, {})
        values = {sources[part]: value for part, value in entry.partition if part in sources}
        known = names.get(entry.spec_id, {})
        named = tuple((known[part], value) for part, value in entry.partition if part in known)
        found[path] = DataFile(path=path, entry=entry, partition_values=values, partition=named)
    return tuple(found[path] for path in sorted(found))
