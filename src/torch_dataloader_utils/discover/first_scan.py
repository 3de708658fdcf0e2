"""Learns columns, types and partitions of all files before the scan: from one file, paths, or `_metadata`."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import FileFormat, PartitionColumn
from torch_dataloader_utils._formats.parquet_trailer import check_footer
from torch_dataloader_utils._store import FileEntry, Store, redact
from torch_dataloader_utils.discover.bad_files import BadFile, none_left
from torch_dataloader_utils.discover.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.discover.formats import format_hint, named_format, scan_file
from torch_dataloader_utils.discover.hive import hive_hint, parse_partitions, type_partitions
from torch_dataloader_utils.discover.parquet import group_rows, projected_leaves, read_footer, with_uuids
from torch_dataloader_utils.discover.paths import DataFiles
from torch_dataloader_utils.discover.schemas import check_columns, check_distinct_names, dataset_schema
from torch_dataloader_utils.errors import ConfigError, DataError, NoDataError

_log = logging.getLogger(__name__)


def scan_sidecar(
    store: Store, sidecar: FileEntry, root: str, entries: Sequence[FileEntry], request: ScanRequest
) -> list[FileScan] | None:
    """The scan of each data file, in the order of `entries`; None if the sidecar is damaged or stale."""
    try:
        tail = read_footer(store, sidecar)
        reader = pq.ParquetReader()
        reader.open(pa.BufferReader(tail.data), coerce_int96_timestamp_unit=request.int96_unit)
        metadata = reader.metadata
        check_footer(tail.data, metadata, redact(sidecar.path))
        schema = with_uuids(reader.schema_arrow, tail.data, request.int96_unit)
        rows = group_rows(metadata, projected_leaves(metadata, schema, request.columns))
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        paths = [f"{root}/{group.column(0).file_path}" if group.num_columns else "" for group in groups]
    except (DataError, pa.ArrowException, OSError, ValueError) as error:
        _log.warning("%s does not decode and is not used: %s", redact(sidecar.path), error)
        return None
    places: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        places.setdefault(path, []).append(index)
    sizes = {entry.path: entry.stat.size for entry in entries}
    stops = rows[:, 2] + rows[:, 3]
    if set(places) != set(sizes) or any(stops[index] > sizes[path] for index, path in enumerate(paths)):
        _log.warning("%s is not of the files that are there and is not used", redact(sidecar.path))
        return None
    _log.debug("%s serves the footers of %d files", redact(sidecar.path), len(entries))
    return [
        FileScan(
            groups=rows[np.array(places[entry.path])],
            size=entry.stat.size,
            identity=entry.stat.identity,
            schema=schema,
        )
        for entry in entries
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstScan:
    """The facts about all files that the first scan gives.

    file_schema: the schema that all files must have, from the file `path`. schema: the same with partition columns.
    partitions, fields: the partition columns and their Arrow fields.
    scans: scans made so far, by number of the file: of the files up to the first good one, or of all if there is a
        sidecar. They count no lines and judge no filter.
    hint: for a name that is no column, advice for the error.
    """

    path: str
    file_schema: pa.Schema
    schema: pa.Schema
    partitions: tuple[PartitionColumn, ...]
    fields: tuple[pa.Field, ...]
    scans: Mapping[int, FileScan | BadFile]
    hint: Callable[[str], str]


def scan_first(store: Store, files: DataFiles, request: ScanRequest, partitioning: str | None) -> FirstScan:
    """Scan files in their order until one is good: neither bad nor blank.

    Raises:
        NoDataError: none is. ConfigError: a projected name that is no column, or files that are named as another
        format than the one they do not decode as. SchemaError: two columns of one name, or partition values that
        do not fit the files' own column. DataError, StoreError: see `scan_files`.
    """
    try:
        return _scan_first(store, files, request, partitioning)
    except DataError as error:
        hint = format_hint(files.entries[0].path, request.file_format)
        # If other files have the right ending, the format is right and this file is wrong.
        if not hint or any(named_format(entry.path) is request.file_format for entry in files.entries):
            raise
        read_as = request.file_format.name.lower()
        raise ConfigError(
            f"{files.source} was read as {read_as}, and its files are named otherwise: {hint}."
        ) from error


def _scan_first(store: Store, files: DataFiles, request: ScanRequest, partitioning: str | None) -> FirstScan:
    scans = _probe(store, files, request)
    number, first = next(((i, scan) for i, scan in enumerate(scans) if _is_good(scan)), (0, None))
    if first is None:
        raise _nothing_good(scans, files.source)
    path = files.entries[number].path
    check_distinct_names(first.schema, path)
    partitions: tuple[PartitionColumn, ...] = ()
    fields: tuple[pa.Field, ...] = ()
    if partitioning is not None:
        texts = parse_partitions([entry.path for entry in files.entries], files.root)
        partitions, fields = type_partitions(texts, first.schema, path)
    schema = dataset_schema(first.schema, fields, keeps_required=request.text_schema is not None)
    hint = partial(hive_hint, [path] if partitioning is None else [], files.root)
    check_columns(request.columns or (), schema, hint)
    return FirstScan(
        path=path,
        file_schema=first.schema,
        schema=schema,
        partitions=partitions,
        fields=fields,
        scans=dict(enumerate(scans)),
        hint=hint,
    )


def _probe(store: Store, files: DataFiles, request: ScanRequest) -> Sequence[FileScan | BadFile]:
    """The scans of all files from their sidecar if there is one, else those of the files up to the first good one."""
    if files.sidecar is not None and request.file_format is FileFormat.PARQUET:
        scans = scan_sidecar(store, files.sidecar, files.root, files.entries, request)
        if scans is not None:
            return scans
    # Filter and line counts need the schema, which is not known yet.
    probe = replace(request, count_rows=False, row_filter=None)
    return _up_to_good(scan_file(store, probe, ScanItem(entry=entry)) for entry in files.entries)


def _up_to_good(scans: Iterable[FileScan | BadFile]) -> list[FileScan | BadFile]:
    found: list[FileScan | BadFile] = []
    for scan in scans:
        found.append(scan)
        if _is_good(scan):
            break
    return found


def _is_good(scan: FileScan | BadFile) -> TypeGuard[FileScan]:
    """Whether the scan has a schema."""
    return isinstance(scan, FileScan) and not scan.is_blank


def _nothing_good(scans: Sequence[FileScan | BadFile], source: str) -> NoDataError:
    bad = [scan for scan in scans if isinstance(scan, BadFile)]
    if bad:
        return none_left(bad, source)
    return NoDataError(f"{source}: no data here; all lines of {len(scans)} files are blank. Check the path.")
