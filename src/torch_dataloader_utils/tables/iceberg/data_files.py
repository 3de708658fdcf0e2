"""Data files of a snapshot, and their row groups: from footers or, where that is enough, from the manifest alone.

manifest list → manifests → entries → DataFile → FileScan
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from torch_dataloader_utils._arrow.schema import flat_schema
from torch_dataloader_utils._core.inventory import FileFormat, Int64s
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._core.table_file import field_id, stored_field_id
from torch_dataloader_utils._runtime.parallel import OnProgress, watched
from torch_dataloader_utils._store import FileEntry, FileStat, redact
from torch_dataloader_utils.errors import ConfigError, StoreError, UnsupportedFeatureError
from torch_dataloader_utils.formats.bad_files import BadFile, unless_bad
from torch_dataloader_utils.formats.checks import checked
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest, Verdict, kept_nulls
from torch_dataloader_utils.formats.orc import ORC, scan_orc
from torch_dataloader_utils.formats.parquet.group_counts import group_rows
from torch_dataloader_utils.formats.parquet.scan import read_footer, scan_of_footer
from torch_dataloader_utils.formats.parquet.statistics import judge_groups
from torch_dataloader_utils.formats.parquet.trailer import check_metadata
from torch_dataloader_utils.formats.statistics import guarantee
from torch_dataloader_utils.tables.iceberg.catalog import OpenTable
from torch_dataloader_utils.tables.iceberg.file_pruning import FilePruner, ManifestJudge
from torch_dataloader_utils.tables.iceberg.manifests import (
    FORMATS,
    Content,
    Manifest,
    ManifestEntry,
    read_manifest,
    read_manifest_list,
    unlisted_manifest,
)
from torch_dataloader_utils.tables.iceberg.snapshots import ScanTarget
from torch_dataloader_utils.tables.table_files import TableFiles

_PARQUET = ds.ParquetFileFormat()
# From so many files in one directory on, one listing beats looking up each file.
_LIST_FROM_FILES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DataScanRequest:
    """Part of a scan that is the same for all data files.

    fields: Fields of the table's schema, with ids. projected: Names of the columns that are read, None for all.
    row_filter: None, or a filter over `filter_columns` of `fields`.
    on_error: "skip" gives a BadFile for a file whose metadata does not decode.
    judge: Judge of files by the manifest, for the row filter.
    """

    fields: pa.Schema
    projected: tuple[str, ...] | None
    row_filter: pc.Expression | None
    filter_columns: tuple[str, ...]
    on_error: OnError = "raise"
    judge: ManifestJudge | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file to scan: its path to open, its manifest entry, and the identity columns' values by field id.

    partition: (name, value as stored) of all fields of its partition spec.
    """

    path: str
    entry: ManifestEntry
    partition_values: Mapping[int, Any]
    partition: tuple[tuple[str, Any], ...]


def format_of(entry: ManifestEntry) -> FileFormat:
    """Return the format that the manifest names; names of data files need no ending.

    Raises:
        UnsupportedFeatureError: a format other than Parquet or ORC.
    """
    if entry.file_format not in FORMATS:
        raise UnsupportedFeatureError(
            f"{redact(entry.path)}: data files in {entry.file_format} are not supported, only Parquet and ORC. Rewrite "
            "the table's files."
        )
    return FORMATS[entry.file_format]


def scan_data_files(
    data: Sequence[DataFile],
    request: DataScanRequest,
    files: TableFiles,
    on_progress: OnProgress | None = None,
) -> list[FileScan | BadFile]:
    """Return the scan of every file, in the order of `data`."""
    listed = _listed(data, files)

    def scan(file: DataFile) -> FileScan | BadFile:
        # Manifests and footers may be wrong.
        found = partial(_scan, file, listed.get(file.path), request, files)
        return unless_bad(lambda: checked(file.path, found()), request.on_error)

    scans = files.map(scan, data)
    return list(watched(scans, len(data), on_progress))


def _listed(data: Sequence[DataFile], files: TableFiles) -> dict[str, FileStat]:
    """Return the versions of files in large remote directories, by listings: one request for a thousand files.

    A directory that cannot be listed is left out, and its files are looked up one by one: a reader may have no right to
    list, some stores have no listings (S3 Tables, most web servers), and a name may be a pattern ("t[1]").
    """
    counts = Counter(file.path.rpartition("/")[0] for file in data if not files.store(file.path).is_local)
    directories = [directory for directory, count in counts.items() if count >= _LIST_FROM_FILES]
    listings = files.map(lambda directory: _entries(directory, files), directories)
    return {entry.path: entry.stat for entries in listings for entry in entries}


def _entries(directory: str, files: TableFiles) -> tuple[FileEntry, ...]:
    try:
        return files.store(directory).list_files(directory).entries
    except (ConfigError, StoreError):
        return ()


def _scan(file: DataFile, stat: FileStat | None, request: DataScanRequest, files: TableFiles) -> FileScan:
    store = files.store(file.path)
    if _has_one_group(file.entry):
        verdict = None if request.judge is None else request.judge.verdict(file.entry)
        if request.row_filter is None or verdict is not None:
            return _from_manifest(file.entry, stat or store.stat(file.path), request, verdict)
    item = ScanItem(entry=FileEntry(path=file.path, stat=stat or store.stat(file.path)))
    if format_of(file.entry) == FileFormat.ORC:
        scan = scan_orc(store, item, ScanRequest(format=ORC))
        return _weighed(scan, _projected_part(request, len(scan.schema)))
    return _scan_parquet(file, item, request, files)


def _has_one_group(entry: ManifestEntry) -> bool:
    # One split offset means one row group with all rows of the file. Reading verifies the count.
    return len(entry.split_offsets) == 1 and entry.record_count > 0 and entry.file_format == "parquet"


def _from_manifest(entry: ManifestEntry, stat: FileStat, request: DataScanRequest, verdict: Verdict | None) -> FileScan:
    start = min(max(entry.split_offsets[0], 0), stat.size)
    weight = int((stat.size - start) * _projected_part(request, len(request.fields)))
    groups = np.array([[entry.record_count, weight, start, stat.size - start]], dtype=np.int64)
    judged = None if verdict is None else np.full(1, verdict, dtype=np.int64)
    return FileScan(
        groups=groups,
        size=stat.size,
        identity=stat.identity,
        schema=request.fields,
        verdict=judged,
        nulls=kept_nulls(_null_counts(entry, request.fields), judged),
    )


def _null_counts(entry: ManifestEntry, fields: pa.Schema) -> Int64s:
    """Return the nulls in one row group, int64 [1, fields of `flat_schema`]; an impossible count becomes 0."""
    counts = entry.null_value_counts or {}
    found = np.array([[counts.get(field_id(field), 0) for field in flat_schema(fields)]], dtype=np.int64)
    return np.where(found <= entry.record_count, found, 0)


def _scan_parquet(file: DataFile, item: ScanItem, request: DataScanRequest, files: TableFiles) -> FileScan:
    tail = read_footer(files.store(file.path), item.entry)
    with decoding(file.path, "Parquet footer"):
        fragment = _PARQUET.make_fragment(pa.BufferReader(tail.data))
        metadata, schema = fragment.metadata, fragment.physical_schema
        check_metadata(tail.data, metadata, redact(file.path))
        ids = _field_ids(schema)
        names = request.projected if not ids else _names_in_file(request, ids)
        rows, nulls = group_rows(file.path, metadata, schema, names, tail.data)
        verdict = None
        judged = _judged_columns(file, request, schema, ids)
        if request.row_filter is not None and judged is not None:
            if judged:
                fragment = _PARQUET.make_fragment(pa.BufferReader(tail.data), partition_expression=guarantee(judged))
            verdict = judge_groups(
                fragment, judged, request.row_filter, request.filter_columns, tail=tail.data, where=redact(file.path)
            )
    return scan_of_footer(tail, schema, rows, nulls, verdict)


def _judged_columns(
    file: DataFile, request: DataScanRequest, schema: pa.Schema, ids: Mapping[int, str]
) -> tuple[tuple[pa.Field, Any], ...] | None:
    """Return the filter's columns that the partition gives; None if statistics cannot judge all other columns.

    Arrow judges by name, so a column and every field inside it must have the same name and type in the file as in the
    table; and the same id, since a field of that name may have been dropped and another field added.
    """
    known = []
    for name in request.filter_columns:
        field = request.fields.field(name)
        number = field_id(field)
        if number in ids:
            if ids[number] != name or not _are_same(schema.field(name), field):
                return None
        elif number in file.partition_values and name not in schema.names:
            known.append((field, file.partition_values[number]))
        else:
            return None
    return tuple(known)


def _are_same(stored: pa.Field, field: pa.Field) -> bool:
    return stored.type == field.type and list(_ids_within(stored)) == list(_ids_within(field))


def _ids_within(field: pa.Field) -> Iterator[int | None]:
    """Yield the ids of a field and of all fields inside it, depth first; None for a field without an id."""
    yield stored_field_id(field)
    for index in range(field.type.num_fields):
        yield from _ids_within(field.type.field(index))


def _names_in_file(request: DataScanRequest, ids: Mapping[int, str]) -> tuple[str, ...] | None:
    if request.projected is None:
        return None
    wanted = [field_id(request.fields.field(name)) for name in request.projected]
    return tuple(ids[number] for number in wanted if number in ids)


def _field_ids(schema: pa.Schema) -> dict[int, str]:
    found = ((stored_field_id(field), field.name) for field in schema)
    return {number: name for number, name in found if number is not None}


def _projected_part(request: DataScanRequest, num_columns: int) -> float:
    return 1.0 if request.projected is None else min(1.0, len(request.projected) / max(1, num_columns))


def _weighed(scan: FileScan, part: float) -> FileScan:
    groups = scan.groups.copy()
    groups[:, 1] = (groups[:, 1] * part).astype(np.int64)
    return replace(scan, groups=groups)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SnapshotFiles:
    """Files of a snapshot.

    data: Every data file of the manifests that were read, sorted by path. is_read: bool, whether filters keep each
        file.
    deletes: Delete files of any kind. is_complete: Whether all data manifests were read.
    """

    data: tuple[DataFile, ...]
    is_read: npt.NDArray[np.bool_]
    deletes: tuple[ManifestEntry, ...]
    is_complete: bool


def list_snapshot(table: OpenTable, target: ScanTarget, pruner: FilePruner) -> SnapshotFiles:
    """Return the live files of the target's snapshot.

    An increment has the files that its appends added, without deletes.

    Raises:
        CorruptFileError: a manifest does not decode, or a data file is listed twice.
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
        if not manifest.holds_deletes and manifest.snapshot_id in (None, snapshot.snapshot_id)
    }
    return list(found.values())


def _manifest_list(table: OpenTable, snapshot: Any) -> list[Manifest]:
    if snapshot.snapshot_id in table.beside.manifests:
        return [unlisted_manifest(path) for path in table.beside.manifests[snapshot.snapshot_id]]
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
    # Names are kept by spec: old tables give the same field ids to the parts of several specs.
    names = {
        spec_id: {part.field_id: part.name for part in spec.fields} for spec_id, spec in table.metadata.specs().items()
    }
    found: dict[str, DataFile] = {}
    for entry in entries:
        path = table.files.rules.resolve(entry.path)
        if path in found:
            raise corrupt(table.name, f"data file {redact(path)} is in the snapshot twice")
        if entry.partition and entry.spec_id not in identity:
            raise corrupt(
                table.name, f"data file {redact(path)} has partition spec {entry.spec_id}, which the table lacks"
            )
        sources = identity.get(entry.spec_id, {})
        values = {sources[part]: value for part, value in entry.partition if part in sources}
        known = names.get(entry.spec_id, {})
        named = tuple((known[part], value) for part, value in entry.partition if part in known)
        found[path] = DataFile(path=path, entry=entry, partition_values=values, partition=named)
    return tuple(found[path] for path in sorted(found))
