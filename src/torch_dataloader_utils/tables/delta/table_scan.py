"""`scan_table`: from the place of a Delta table to an inventory of one version."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import filter_text, fit_filter
from torch_dataloader_utils._arrow.schema import case_error, column_names, flat_schema, in_other_case
from torch_dataloader_utils._core.arguments import hold_flags
from torch_dataloader_utils._core.inventory import FileFormat, Int64s, Inventory, PartitionColumn
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._core.table_file import TableFields, TableFile, field_id
from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.group_table import join_scans
from torch_dataloader_utils.discover.known_nulls import known_nulls, names_by_id
from torch_dataloader_utils.errors import NoDataError
from torch_dataloader_utils.formats.bad_files import BadFile, report_bad_files
from torch_dataloader_utils.formats.file_scan import FileScan, Verdict
from torch_dataloader_utils.formats.schemas import check_columns
from torch_dataloader_utils.formats.statistics import judge_partitions
from torch_dataloader_utils.tables.deleted_rows import check_positions, without_deleted_rows
from torch_dataloader_utils.tables.delta.actions import AddedFile
from torch_dataloader_utils.tables.delta.data_files import DataScanRequest, is_plain, scan_data_files
from torch_dataloader_utils.tables.delta.log import VersionChoice
from torch_dataloader_utils.tables.delta.paths import path_to_open
from torch_dataloader_utils.tables.delta.schema import DeltaSchema, partition_scalars, read_schema
from torch_dataloader_utils.tables.delta.snapshot import DeltaTable, Snapshot, read_snapshot
from torch_dataloader_utils.tables.delta.statistics import judge_statistics
from torch_dataloader_utils.tables.delta.vectors import read_vector

_log = logging.getLogger(__name__)
_NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaScanOptions:
    """Part of a table to read.

    columns: Names of columns, None for all. filters: A pyarrow expression, for pruning here; rows are filtered when
    they are read. allow_empty: Whether nothing to read gives an empty inventory instead of an error. on_error: "skip"
    leaves out data files whose metadata does not decode.
    """

    columns: tuple[str, ...] | None = None
    filters: pc.Expression | None = None
    version: VersionChoice = field(default_factory=VersionChoice)
    allow_empty: bool = False
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        hold_flags(self, "allow_empty")


def scan_table(table: DeltaTable, options: DeltaScanOptions, on_progress: OnProgress | None = None) -> Inventory:
    """Return the inventory of the data files of one version, sorted by path.

    on_progress: Called in the caller's thread after each data file with (files done, files to scan).

    Live rows exclude rows that deletion vectors delete. They are UNKNOWN, until they are counted, if statistics do not
    decide the filter.

    Raises:
        NoDataError: no such table, or nothing to read (unless allow_empty).
        ConfigError: a version, column or filter does not fit.
        DataError: files are corrupt or use an unsupported feature. StoreError: the storage failed.
    """
    found = read_snapshot(table, options.version, with_statistics=options.filters is not None)
    schema = read_schema(found.name, found.metadata, options.columns)
    check_columns(options.columns or (), schema.schema)
    text = filter_text(options.filters)
    fitted, used = fit_filter(options.filters, schema.schema)
    options = replace(options, filters=fitted)
    files = _resolved(table, found)
    names, added = list(files), list(files.values())
    partitions = _partitions(found, schema, added)
    verdicts = _judged(found, options, schema, used, added, partitions)
    chosen = np.flatnonzero(verdicts != Verdict.OUT)
    if not len(chosen) and not options.allow_empty:
        raise _nothing_to_read(found, len(files))
    request = _request(schema, options, used, is_decided=bool(used) and set(used) <= set(schema.partitions))
    paths = [names[number] for number in chosen.tolist()]
    scans = scan_data_files(paths, request, table.files, on_progress)
    scanned = _without_bad(found.name, paths, scans, verdicts, chosen, partitions)
    _check_case(schema, request, scanned)
    positions = _deleted(table, scanned, files)
    deleted = sum(map(len, positions))
    joined, groups = join_scans(
        scanned.paths,
        scanned.scans,
        [FileFormat.PARQUET] * len(scanned.paths),
        scanned.verdicts,
        scanned.partitions,
        _extras(schema, scanned, positions),
    )
    inventory = Inventory(
        files=joined,
        groups=groups,
        schema=schema.schema.serialize().to_pybytes(),
        source=f"{found.name}, {found.described}",
        row_filter=text,
        projection=options.columns,
        snapshot=found.identity,
        notes=(*((f"deletes: {deleted:,} rows by deletion vectors",) if deleted else ()), *scanned.notes),
        nulls=_nulls(schema, scanned, positions),
    )
    _log.debug("%s: %d files, %d row groups to read", inventory.source, inventory.num_files, inventory.num_groups)
    return without_deleted_rows(inventory)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scanned:
    """Data files that are read, sorted by path, without bad files.

    verdicts: One Verdict for each file as a whole. notes: Notes about the bad files.
    """

    paths: list[str]
    scans: list[FileScan]
    verdicts: Int64s
    partitions: tuple[PartitionColumn, ...]
    notes: tuple[str, ...]


def _without_bad(
    name: str,
    paths: Sequence[str],
    scans: Sequence[FileScan | BadFile],
    verdicts: Int64s,
    chosen: Int64s,
    partitions: Sequence[PartitionColumn],
) -> _Scanned:
    """Return the good files among the chosen files.

    name: Name of the table, for messages. chosen: Number of each path among the files of `verdicts` and `partitions`.
    """
    bad = [(path, scan) for path, scan in zip(paths, scans, strict=True) if isinstance(scan, BadFile)]
    good = np.array([isinstance(scan, FileScan) for scan in scans], dtype=np.bool_)
    return _Scanned(
        paths=[path for path, is_good in zip(paths, good, strict=True) if is_good],
        scans=[scan for scan in scans if isinstance(scan, FileScan)],
        verdicts=verdicts[chosen][good],
        partitions=tuple(replace(column, codes=column.codes[chosen[good]]) for column in partitions),
        notes=report_bad_files(bad, len(paths), name),
    )


def _resolved(table: DeltaTable, found: Snapshot) -> dict[str, AddedFile]:
    """Return the files of a version by the path to open, sorted."""
    files: dict[str, AddedFile] = {}
    for file in found.files:
        path = path_to_open(table.root, file.path)
        table.files.roots.check(path, "the table's log")
        files[path] = file
    return dict(sorted(files.items()))


def _partitions(found: Snapshot, schema: DeltaSchema, files: Sequence[AddedFile]) -> tuple[PartitionColumn, ...]:
    columns = []
    for name in schema.partitions:
        if name in schema.unreadable:
            continue
        texts = [_partition_text(found, file, schema.physical[name]) for file in files]
        distinct = list(dict.fromkeys(texts))
        numbers = {text: number for number, text in enumerate(distinct)}
        values = partition_scalars(found.name, schema.schema.field(name), distinct)
        codes = np.array([numbers[text] for text in texts], dtype=np.int32)
        columns.append(PartitionColumn(name=name, values=tuple(values), codes=codes))
    return tuple(columns)


def _partition_text(found: Snapshot, file: AddedFile, name: str) -> str | None:
    if name not in file.partition:
        other = next((each for each in file.partition if each.casefold() == name.casefold()), None)
        if other is not None:
            raise case_error(f"{found.name}, the log's entry of {redact(file.path)}", (name,), (other,))
    return file.partition.get(name)


def _judged(
    found: Snapshot,
    options: DeltaScanOptions,
    schema: DeltaSchema,
    used: Sequence[str],
    files: Sequence[AddedFile],
    partitions: Sequence[PartitionColumn],
) -> Int64s:
    """Return one Verdict for each file, by the log alone."""
    if options.filters is None or not files:
        return np.full(len(files), Verdict.IN, dtype=np.int64)
    by_partition = judge_partitions(options.filters, used, schema.schema, partitions, len(files))
    left = np.flatnonzero(by_partition == Verdict.MAYBE)
    fields = [schema.schema.field(name) for name in used]
    by_partition[left] = judge_statistics(
        options.filters,
        fields,
        schema.physical,
        [files[number] for number in left.tolist()],
        is_widened=found.is_widened,
    )
    return by_partition


def _nothing_to_read(found: Snapshot, num_files: int) -> NoDataError:
    why = f"the filters leave none of its {num_files} data files" if num_files else "it has no data files"
    return NoDataError(
        f"{found.name}, {found.described}: nothing to read; {why}. Pass allow_empty=True for an empty data set, or "
        "choose another version or filter."
    )


def _request(
    schema: DeltaSchema, options: DeltaScanOptions, used: Sequence[str], *, is_decided: bool
) -> DataScanRequest:
    """Return the request for all data files. is_decided: Whether partition columns alone decide the filter."""
    return DataScanRequest(
        table=schema,
        projected=None if options.columns is None else column_names(schema.schema, options.columns),
        row_filter=None if is_decided else options.filters,
        filter_columns=tuple(used),
        on_error=options.on_error,
    )


def _check_case(schema: DeltaSchema, request: DataScanRequest, scanned: _Scanned) -> None:
    """Raise SchemaError if a file has a wanted column in another case: it would be null."""
    if schema.mode == "id":
        return
    is_read = schema.stored.names if request.projected is None else (*request.projected, *request.filter_columns)
    wanted = {schema.physical[name] for name in is_read if name not in schema.partitions}
    known: pa.Schema | None = None
    for path, scan in zip(scanned.paths, scanned.scans, strict=True):
        if known is None or not scan.schema.equals(known):
            known = scan.schema
            for field, other in in_other_case(schema.names, known).items():
                if field[0] in wanted:
                    raise case_error(redact(path), field, other)


def _deleted(table: DeltaTable, scanned: _Scanned, files: Mapping[str, AddedFile]) -> list[Int64s]:
    """Return the rows of each file that its deletion vector deletes."""

    def read(path: str) -> Int64s:
        vector = files[path].vector
        return _NO_ROWS if vector is None else read_vector(table.root, redact(path), vector, table.files)

    positions = list(table.files.map(read, scanned.paths))
    check_positions(scanned.paths, scanned.scans, positions)
    return positions


def _nulls(schema: DeltaSchema, scanned: _Scanned, positions: Sequence[Int64s]) -> Mapping[str, int]:
    columns = schema.stored
    logical = {field_id(field): field.name for field in (*columns, *flat_schema(columns))}
    physical = {".".join(path): logical.get(number) for path, number in schema.names}
    names_in = names_by_id(columns) if schema.mode == "id" else lambda stored: map(physical.get, stored.names)
    whole = [
        scan
        for scan, deleted, verdict in zip(scanned.scans, positions, scanned.verdicts.tolist(), strict=True)
        if not len(deleted) and (scan.verdict is not None or verdict == Verdict.IN) and any(names_in(scan.schema))
    ]
    return known_nulls(whole, columns.names, names_in)


def _extras(schema: DeltaSchema, scanned: _Scanned, positions: Sequence[Int64s]) -> tuple[TableFile | None, ...]:
    """Return the facts that a reader needs about each data file beside its path; () if all files are plain."""
    fields = TableFields(
        schema=schema.stored.serialize().to_pybytes(),
        keys=pa.schema([]).serialize().to_pybytes(),
        names=() if schema.mode == "id" else schema.names,
        is_by_name=schema.mode != "id",
    )
    extras: list[TableFile | None] = []
    known, are_plain = None, False
    for scan, deleted in zip(scanned.scans, positions, strict=True):
        if known is None or not scan.schema.equals(known):
            known, are_plain = scan.schema, is_plain(scan.schema, schema)
        extras.append(None if are_plain and not len(deleted) else TableFile(table=fields, positions=deleted))
    return tuple(extras) if any(extra is not None for extra in extras) else ()
