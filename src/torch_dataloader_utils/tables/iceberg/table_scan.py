"""`scan_table`: from an opened Iceberg table to an inventory."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import filter_text, fit_filter, shown_filter
from torch_dataloader_utils._arrow.schema import column_names
from torch_dataloader_utils._core.arguments import hold_flags
from torch_dataloader_utils._core.inventory import FileTable, GroupTable, Inventory
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._core.table_file import TableFields, TableFile, field_id
from torch_dataloader_utils._core.table_snapshot import TableSnapshot
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils.discover.group_table import join_scans
from torch_dataloader_utils.discover.known_nulls import known_nulls, names_by_id
from torch_dataloader_utils.discover.roots import PathIndex
from torch_dataloader_utils.errors import NoDataError
from torch_dataloader_utils.formats.bad_files import BadFile, report_bad_files
from torch_dataloader_utils.formats.file_scan import FileScan, Verdict
from torch_dataloader_utils.formats.schemas import check_columns
from torch_dataloader_utils.tables.deleted_rows import check_positions, without_deleted_rows
from torch_dataloader_utils.tables.iceberg.catalog import OpenTable
from torch_dataloader_utils.tables.iceberg.data_files import (
    DataFile,
    DataScanRequest,
    SnapshotFiles,
    format_of,
    list_snapshot,
    scan_data_files,
)
from torch_dataloader_utils.tables.iceberg.defaults import initial_defaults
from torch_dataloader_utils.tables.iceberg.deletes import (
    EqualityIndex,
    PositionDeletes,
    TargetFiles,
    find_deleted_positions,
    index_equality_deletes,
)
from torch_dataloader_utils.tables.iceberg.fields import arrow_schema, key_schema, metadata_column_hint, name_ids
from torch_dataloader_utils.tables.iceberg.file_pruning import FilePruner, ManifestJudge
from torch_dataloader_utils.tables.iceberg.filter_expressions import pruning_expression, translate
from torch_dataloader_utils.tables.iceberg.manifests import Content
from torch_dataloader_utils.tables.iceberg.metadata_errors import named_by_metadata
from torch_dataloader_utils.tables.iceberg.snapshots import ScanTarget, SnapshotChoice, choose_snapshot

_log = logging.getLogger(__name__)
_NO_ROWS = np.zeros(0, dtype=np.int64)

# First format version in which rows have ids.
_LINEAGE_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergScanOptions:
    """Part of a table to read.

    columns: Names of columns, None for all.
    filters: A pyarrow expression, for pruning here and exact filtering when rows are read.
    scan_filter: A pyiceberg expression, for pruning only.
    allow_bare_vectors: Whether deletion vectors without their Puffin container are accepted.
    allow_empty: Whether nothing to read gives an empty inventory instead of an error.
    on_error: "skip" leaves out data files whose metadata does not decode.
    """

    columns: tuple[str, ...] | None = None
    filters: pc.Expression | None = None
    scan_filter: Any = None
    snapshot: SnapshotChoice = field(default_factory=SnapshotChoice)
    allow_bare_vectors: bool = False
    allow_empty: bool = False
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        hold_flags(self, "allow_bare_vectors", "allow_empty")


def scan_table(table: OpenTable, options: IcebergScanOptions, on_progress: OnProgress | None = None) -> Inventory:
    """Return the inventory of a table's live data files, sorted by path.

    on_progress: Called in the caller's thread after each data file with (files done, files to scan).

    Live rows exclude rows deleted by position. They are UNKNOWN, until they are counted, if equality deletes apply or
    statistics do not decide the filter.

    Raises:
        NoDataError: nothing to read (unless allow_empty). ConfigError: a snapshot, column or filter does not fit.
        DataError: files are corrupt or use an unsupported feature. StoreError: the storage failed.
    """
    target = choose_snapshot(table.metadata, options.snapshot, table.name)
    schema = arrow_schema(target.schema, table.beside, options.columns)
    check_columns(options.columns or (), schema, metadata_column_hint)
    text = filter_text(options.filters)
    hint = "" if options.filters is None else _partition_hint(table, target, shown_filter(options.filters))
    fitted, used = fit_filter(options.filters, schema, hint)
    options = replace(options, filters=fitted)
    request = _scan_request(table, target, options, schema, used)
    pruner = FilePruner(table.metadata, target.schema, pruning_expression(options.filters, options.scan_filter, schema))
    with named_by_metadata(table.name):
        listed = list_snapshot(table, target, pruner)
    if not listed.is_read.any() and not options.allow_empty:
        raise _nothing_to_read(table, target, listed)
    with named_by_metadata(table.name):
        scanned = _scan_files(table, listed, request, on_progress)
        deleted = _deleted_positions(table, listed, options)
        equality = _equality_index(table, listed)
    fields = _table_fields(table, target, schema, equality.key_ids)
    has_lineage = table.metadata.format_version >= _LINEAGE_VERSION
    extras = _extras(fields, scanned, deleted, equality, has_lineage=has_lineage)
    files, groups = _joined(scanned, options, extras)
    inventory = Inventory(
        files=files,
        groups=groups,
        schema=schema.serialize().to_pybytes(),
        source=f"{table.name}, {_described(target)}",
        row_filter=text,
        projection=options.columns,
        snapshot=_table_snapshot(table, options, target),
        notes=(*target.notes, *_delete_notes(listed, deleted), *scanned.notes),
        nulls=_nulls(schema, fields, scanned, extras, options),
    )
    _log.debug("%s: %d files, %d row groups to read", inventory.source, inventory.num_files, inventory.num_groups)
    return without_deleted_rows(inventory)


def _scan_request(
    table: OpenTable, target: ScanTarget, options: IcebergScanOptions, schema: pa.Schema, used: tuple[str, ...]
) -> DataScanRequest:
    return DataScanRequest(
        fields=schema,
        projected=None if options.columns is None else column_names(schema, options.columns),
        row_filter=options.filters,
        filter_columns=used,
        on_error=options.on_error,
        judge=_judge(table, target, options, schema, used),
    )


def _partition_hint(table: OpenTable, target: ScanTarget, text: str) -> str:
    """Return advice about the partitions that a filter names; "" for none. Queries name the columns instead.

    ts_day > ..., partitioned by day(ts)      ts_day is a partition, day of column 'ts': write pc.field('ts').
    """
    parts = {part.name: part for spec in table.metadata.specs().values() for part in spec.fields}
    hints = []
    for name, part in parts.items():
        column = target.schema.find_column_name(part.source_id)
        if column is not None and column != name and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            field = ", ".join(map(repr, column.split(".")))
            hints.append(
                f" {name} is a partition, {part.transform} of column {column!r}: write pc.field({field}); such a "
                "filter leaves out files by their partitions too."
            )
    return "".join(hints)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scanned:
    """Data files that are read, without bad files.

    numbers: Numbers of the files in the snapshot. scans: One scan for each file. notes: Notes about the bad files.
    """

    numbers: list[int]
    files: list[DataFile]
    scans: list[FileScan]
    notes: tuple[str, ...]


def _scan_files(
    table: OpenTable,
    listed: SnapshotFiles,
    request: DataScanRequest,
    on_progress: OnProgress | None,
) -> _Scanned:
    numbers = np.flatnonzero(listed.is_read).tolist()
    data = [listed.data[number] for number in numbers]
    for file in data:
        format_of(file.entry)  # raises for a format that is not supported, before anything is read
    found = list(zip(numbers, data, scan_data_files(data, request, table.files, on_progress), strict=True))
    bad = [(file, scan) for _, file, scan in found if isinstance(scan, BadFile)]
    good = [(number, file, scan) for number, file, scan in found if isinstance(scan, FileScan)]
    lost_rows = sum(file.entry.record_count for file, _ in bad)
    return _Scanned(
        numbers=[number for number, _, _ in good],
        files=[file for _, file, _ in good],
        scans=[scan for _, _, scan in good],
        notes=report_bad_files([(file.path, scan) for file, scan in bad], len(data), table.name, lost_rows),
    )


def _judge(
    table: OpenTable, target: ScanTarget, options: IcebergScanOptions, schema: pa.Schema, used: Sequence[str]
) -> ManifestJudge | None:
    if options.filters is None:
        return None
    negation = translate(~options.filters, schema)
    return ManifestJudge(table.metadata, target.schema, negation, [schema.field(name) for name in used])


def _nothing_to_read(table: OpenTable, target: ScanTarget, listed: SnapshotFiles) -> NoDataError:
    why = f"the filters leave none of its {len(listed.data)} data files" if len(listed.data) else "it has no data files"
    return NoDataError(
        f"{table.name}, {_described(target)}: nothing to read; {why}. Pass allow_empty=True for an empty data set, or "
        "choose another snapshot or filter."
    )


def _deleted_positions(table: OpenTable, listed: SnapshotFiles, options: IcebergScanOptions) -> PositionDeletes:
    data = TargetFiles(
        index=PathIndex.of(file.path for file in listed.data),
        sequence_numbers=np.array([file.entry.sequence_number for file in listed.data], dtype=np.int64),
        is_read=listed.is_read,
    )
    deletes = [entry for entry in listed.deletes if entry.content is Content.POSITION_DELETES]
    return find_deleted_positions(deletes, data, table.files, allow_bare=options.allow_bare_vectors)


def _equality_index(table: OpenTable, listed: SnapshotFiles) -> EqualityIndex:
    unpartitioned = frozenset(
        spec_id
        for spec_id, spec in table.metadata.specs().items()
        if all(str(part.transform) == "void" for part in spec.fields)
    )
    entries = [entry for entry in listed.deletes if entry.content is Content.EQUALITY_DELETES]
    return index_equality_deletes(entries, unpartitioned, table.files)


def _table_fields(table: OpenTable, target: ScanTarget, schema: pa.Schema, key_ids: Iterable[int]) -> TableFields:
    keys = key_schema(table.metadata, target.schema, key_ids)
    return TableFields(
        schema=schema.serialize().to_pybytes(),
        keys=keys.serialize().to_pybytes(),
        names=name_ids(table.metadata),
        defaults=initial_defaults((*schema, *keys), table.beside.defaults),
        snapshot_id=None if target.snapshot is None else target.snapshot.snapshot_id,
    )


def _joined(
    scanned: _Scanned, options: IcebergScanOptions, extras: tuple[TableFile, ...]
) -> tuple[FileTable, GroupTable]:
    unjudged = np.full(len(scanned.files), Verdict.IN if options.filters is None else Verdict.MAYBE, dtype=np.int64)
    formats = [format_of(file.entry) for file in scanned.files]
    return join_scans([file.path for file in scanned.files], scanned.scans, formats, unjudged, extras=extras)


def _extras(
    fields: TableFields, scanned: _Scanned, deletes: PositionDeletes, equality: EqualityIndex, *, has_lineage: bool
) -> tuple[TableFile, ...]:
    """Return the facts that a reader needs about each scanned file beside its path.

    Raises:
        CorruptFileError: a deleted row that its file does not have.
    """
    positions = [deletes.positions.get(number, _NO_ROWS) for number in scanned.numbers]
    check_positions([file.path for file in scanned.files], scanned.scans, positions)
    return tuple(
        TableFile(
            table=fields,
            partition_values=tuple(sorted(file.partition_values.items())),
            positions=deleted,
            equality_deletes=equality.of(file.entry),
            partition=file.partition,
            first_row_id=file.entry.first_row_id,
            sequence_number=file.entry.sequence_number if has_lineage else None,
        )
        for file, deleted in zip(scanned.files, positions, strict=True)
    )


def _nulls(
    schema: pa.Schema,
    fields: TableFields,
    scanned: _Scanned,
    extras: Sequence[TableFile],
    options: IcebergScanOptions,
) -> Mapping[str, int]:
    names_in = names_by_id(schema)
    whole = [
        scan
        for scan, extra in zip(scanned.scans, extras, strict=True)
        if not len(extra.positions)
        and not extra.equality_deletes
        and (options.filters is None or scan.verdict is not None)
        and any(names_in(scan.schema))
    ]
    filled = {number for extra in extras for number, _ in extra.partition_values}.union(dict(fields.defaults))
    return known_nulls(whole, (field.name for field in schema if field_id(field) not in filled), names_in)


def _described(target: ScanTarget) -> str:
    if target.snapshot is None:
        return "which has no snapshot"
    increment = "" if target.appends is None else f", {len(target.appends)} appends"
    return f"snapshot {target.snapshot.snapshot_id}{increment}"


def _table_snapshot(table: OpenTable, options: IcebergScanOptions, target: ScanTarget) -> TableSnapshot:
    """Return the snapshot that binds a state to this scan. Another snapshot of these files may have other deletes."""
    # Version 1 may have no UUID; pyiceberg makes up a new UUID each time.
    uuid = table.metadata.table_uuid if "table_uuid" in table.metadata.model_fields_set else None
    return TableSnapshot(
        table=None if uuid is None else str(uuid),
        snapshot_id=None if target.snapshot is None else target.snapshot.snapshot_id,
        from_snapshot_id=options.snapshot.from_snapshot_id,
    )


def _delete_notes(listed: SnapshotFiles, deleted: PositionDeletes) -> tuple[str, ...]:
    if not listed.deletes:
        return ()
    rows = sum(len(positions) for positions in deleted.positions.values())
    keys = sum(entry.content is Content.EQUALITY_DELETES for entry in listed.deletes)
    notes = [f"deletes: {rows:,} rows by position, {keys:,} equality delete files"]
    if deleted.dangling:
        gone = "no longer in the snapshot" if listed.is_complete else "not in the part of the snapshot that was read"
        notes.append(f"dangling deletes ignored: {deleted.dangling:,} (their data files are {gone})")
    return tuple(notes)
