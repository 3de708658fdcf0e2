"""Learns columns, types and partitions of all files before the scan: from one file, `_metadata`, or all files."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

import pyarrow as pa

from torch_dataloader_utils._core.inventory import PartitionColumn
from torch_dataloader_utils._runtime.parallel import OnProgress, watched
from torch_dataloader_utils._runtime.threads import Executor
from torch_dataloader_utils._store import Store
from torch_dataloader_utils.discover.hive import hive_hint, parse_partitions, type_partitions
from torch_dataloader_utils.discover.paths import DataFiles
from torch_dataloader_utils.errors import ConfigError, DataError, NoDataError
from torch_dataloader_utils.formats.bad_files import BadFile, none_left
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.registry import format_hint, named_format, scan_file, scanned
from torch_dataloader_utils.formats.schemas import check_columns, check_distinct_names, dataset_schema, unified_schema

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstScan:
    """The facts about all files that the first scan gives.

    path: the first good file. file_schema: its schema, or with missing="null" the columns of all files.
    schema: the same with partition columns. partitions, fields: the partition columns and their Arrow fields.
    scans: scans made so far, by number of the file: of the files up to the first good one, or of all if there is a
        sidecar or with missing="null". They count no lines and judge no filter.
    hint: gives advice about a name that is not a column.
    """

    path: str
    file_schema: pa.Schema
    schema: pa.Schema
    partitions: tuple[PartitionColumn, ...]
    fields: tuple[pa.Field, ...]
    scans: Mapping[int, FileScan | BadFile]
    hint: Callable[[str], str]

    @property
    def bad(self) -> dict[int, FileScan | BadFile]:
        """The files among those scanned so far whose metadata does not decode."""
        return {file: scan for file, scan in self.scans.items() if isinstance(scan, BadFile)}

    def with_schema(self, file_schema: pa.Schema) -> "FirstScan":
        """The same facts for files that have these columns together."""
        return replace(self, file_schema=file_schema, schema=dataset_schema(file_schema, self.fields))

    def wanted(self, file: int) -> tuple[pa.Schema, str]:
        """The schema that a file must have: that of its own first scan, or else of the file `path`; and that path."""
        scan = self.scans.get(file)
        return (scan.schema if scan is not None and _is_good(scan) else self.file_schema), self.path


def scan_first(
    store: Store,
    files: DataFiles,
    request: ScanRequest,
    partitioning: str | None,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> FirstScan:
    """Scan files in their order until one is good (neither bad nor blank), or with missing="null" all of them.

    executor, on_progress: for a scan of all files; see `scan_files`.

    Raises:
        NoDataError: none is. ConfigError: a projected name that is not a column, or files that are named as another
        format than the one they do not decode as. SchemaError: two columns of one name, or partition values that
        do not fit the files' own column. DataError, StoreError: see `scan_files`.
    """
    try:
        if request.missing == "null" and not request.format.is_text:
            scans = _scan_all(store, files, request, executor, on_progress)
        else:
            scans = _probe(store, files, request)
        return _learn(scans, files, request, partitioning)
    except DataError as error:
        hint = format_hint(files.entries[0].path, request.format)
        # If other files have the right ending, the format is right and this file is wrong.
        if not hint or any(named_format(entry.path) == request.format for entry in files.entries):
            raise
        raise ConfigError(
            f"{files.source} was read as {request.format}, and its files are named otherwise: {hint}."
        ) from error


def _learn(
    scans: Sequence[FileScan | BadFile], files: DataFiles, request: ScanRequest, partitioning: str | None
) -> FirstScan:
    good = [(entry.path, scan.schema) for entry, scan in zip(files.entries, scans, strict=False) if _is_good(scan)]
    if not good:
        raise _nothing_good(scans, files.source)
    path, file_schema = good[0]
    check_distinct_names(file_schema, path)
    if request.missing == "null":
        file_schema = unified_schema(good)
    partitions: tuple[PartitionColumn, ...] = ()
    fields: tuple[pa.Field, ...] = ()
    if partitioning is not None:
        texts = parse_partitions([entry.path for entry in files.entries], files.root)
        partitions, fields = type_partitions(texts, file_schema, path)
    schema = dataset_schema(file_schema, fields, keeps_required=request.schema is not None)
    hint = partial(hive_hint, [path] if partitioning is None else [], files.root)
    if not request.finds_keys:
        check_columns(request.columns or (), schema, hint)
    return FirstScan(
        path=path,
        file_schema=file_schema,
        schema=schema,
        partitions=partitions,
        fields=fields,
        scans=dict(enumerate(scans)),
        hint=hint,
    )


def _probe(store: Store, files: DataFiles, request: ScanRequest) -> Sequence[FileScan | BadFile]:
    """The scans of all files from their sidecar if there is one, else those of the files up to the first good one."""
    if files.sidecar is not None and request.format.scan_sidecar is not None:
        scans = request.format.scan_sidecar(store, files.sidecar, files.root, files.entries, request)
        if scans is not None:
            return scans
    probe = _of_schema(request)
    return _up_to_good(scan_file(store, probe, ScanItem(entry=entry)) for entry in files.entries)


def _scan_all(
    store: Store, files: DataFiles, request: ScanRequest, executor: Executor | None, on_progress: OnProgress | None
) -> Sequence[FileScan | BadFile]:
    items = [ScanItem(entry=entry) for entry in files.entries]
    with scanned(store, _of_schema(request), items, executor) as scans:
        return list(watched(scans, len(items), on_progress))


def _of_schema(request: ScanRequest) -> ScanRequest:
    """The request without filter and line counts, which need the schema, which is not known yet."""
    return replace(request, count_rows=False, row_filter=None)


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
