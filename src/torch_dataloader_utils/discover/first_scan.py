"""Columns, types and partitions of all files before the scan: from one file, `_metadata`, or all files."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

import pyarrow as pa

from torch_dataloader_utils._core.inventory import PartitionColumn
from torch_dataloader_utils._runtime.parallel import OnProgress, watched
from torch_dataloader_utils._runtime.threads import Executor
from torch_dataloader_utils._store import Store, redact
from torch_dataloader_utils.discover.hive import (
    Hive,
    hive_hint,
    inside_hint,
    note_hidden_columns,
    parse_partitions,
    type_hint,
    type_partitions,
)
from torch_dataloader_utils.discover.paths import DataFiles
from torch_dataloader_utils.errors import ConfigError, DataError, NoDataError
from torch_dataloader_utils.formats.bad_files import BadFile, none_left
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.registry import format_hint, named_format, scan_file, scanned
from torch_dataloader_utils.formats.schemas import (
    check_columns,
    dataset_schema,
    odd_columns,
    unified_schema,
    without_columns,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstScan:
    """Facts about all files from the first scan.

    path: Path of the first good file. file_schema: Schema of that file, or with missing="null" the columns of all
        files.
    schema: file_schema with partition columns. partitions, fields: Partition columns and their Arrow fields.
    scans: Scans made so far, by number of the file: of the files up to the first good file, or of all files if the
        directory has a sidecar or with missing="null". They count no lines and judge no filter.
    hint: Returns advice about a name that is not a column.
    left_out: Note about the columns that no batch can have. hidden_notes: Note about columns that files and directories
        have.
    """

    path: str
    file_schema: pa.Schema
    schema: pa.Schema
    partitions: tuple[PartitionColumn, ...]
    fields: tuple[pa.Field, ...]
    scans: Mapping[int, FileScan | BadFile]
    hint: Callable[[str], str]
    left_out: tuple[str, ...]
    hidden_notes: tuple[str, ...]

    @property
    def bad(self) -> dict[int, FileScan | BadFile]:
        """Scanned files with metadata that does not decode, by number of the file."""
        return {file: scan for file, scan in self.scans.items() if isinstance(scan, BadFile)}

    def with_schema(self, file_schema: pa.Schema) -> "FirstScan":
        """Return the same facts for files that have the columns `file_schema` together."""
        return replace(self, file_schema=file_schema, schema=dataset_schema(file_schema, self.fields))

    def wanted(self, file: int) -> tuple[pa.Schema, str]:
        """Return the schema that a file must have, and the path of the first good file.

        The schema comes from the file's own first scan or, without a good scan, is `file_schema`.
        """
        scan = self.scans.get(file)
        return (scan.schema if scan is not None and _is_good(scan) else self.file_schema), self.path


def scan_first(
    store: Store,
    files: DataFiles,
    request: ScanRequest,
    partitioning: Hive | None,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> FirstScan:
    """Scan files in order until one is good (neither bad nor blank), or with missing="null" scan all of them.

    executor, on_progress: Options for a scan of all files; see `scan_files`.

    Raises:
        NoDataError: no file is good. ConfigError: a projected name is not a column, or the files do not decode and
            their names are of another format. SchemaError: partition values that do not fit the files' own column.
        DataError, StoreError: see `scan_files`.
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
            f"{files.source} was read as {request.format}, but its files have names of another format: {hint}."
        ) from error


def _learn(
    scans: Sequence[FileScan | BadFile], files: DataFiles, request: ScanRequest, partitioning: Hive | None
) -> FirstScan:
    good = [(entry.path, scan.schema) for entry, scan in zip(files.entries, scans, strict=False) if _is_good(scan)]
    if not good:
        raise _nothing_good(scans, files.source)
    path, file_schema = good[0]
    odd = _odd_columns(good)
    if request.missing == "null":
        plain = [(of, without_columns(schema, odd)) for of, schema in good]
        file_schema, differing = unified_schema(plain, request.columns)
        odd |= differing
    left_out: tuple[str, ...] = ()
    if odd:
        left_out = (f"columns are left out: {'; '.join(odd.values())}",)
        if request.columns is None:
            _log.warning("%s", left_out[0])
    partitions: tuple[PartitionColumn, ...] = ()
    fields: tuple[pa.Field, ...] = ()
    if partitioning is not None:
        texts = parse_partitions([entry.path for entry in files.entries], files.root)
        partitions, fields = type_partitions(texts, file_schema, partitioning, path)
    hidden_notes = note_hidden_columns(path, fields, file_schema)
    for note in hidden_notes:
        _log.warning("%s", note)
    schema = dataset_schema(without_columns(file_schema, odd), fields, keeps_required=request.schema is not None)
    of_paths = partial(type_hint, partitions, fields) if partitioning else partial(hive_hint, [path], files.root)
    hint = partial(_hint, odd, of_paths, files.root)
    if not request.finds_keys:
        is_first = request.missing != "null" and request.schema is None and len(files.entries) > 1
        others = f' These are the columns of {redact(path)}; missing="null" reads columns that only other files have.'
        check_columns(request.columns or (), schema, lambda name: hint(name) or (others if is_first else ""))
    return FirstScan(
        path=path,
        file_schema=file_schema,
        schema=schema,
        partitions=partitions,
        fields=fields,
        scans=dict(enumerate(scans)),
        hint=hint,
        left_out=left_out,
        hidden_notes=hidden_notes,
    )


def _odd_columns(schemas: Sequence[tuple[str, pa.Schema]]) -> dict[str, str]:
    """Return the columns that no batch can have, by name, each with path and reason."""
    found: dict[str, str] = {}
    known: pa.Schema | None = None
    for path, schema in schemas:
        if known is None or not schema.equals(known):
            known = schema
            for name, reason in odd_columns(schema).items():
                found.setdefault(name, f"{redact(path)} has column {name!r}, but {reason}")
    return found


def _hint(odd: Mapping[str, str], of_paths: Callable[[str], str], root: str, wanted: str) -> str:
    """Return the reasons for columns in `wanted`, the name of a column or the text of a filter, that are left out."""
    names = re.findall(r"\w+", wanted)
    reasons = [reason for name, reason in odd.items() if name == wanted or name in names]
    return f" {'; '.join(reasons)}." if reasons else of_paths(wanted) or inside_hint(root, wanted)


def _probe(store: Store, files: DataFiles, request: ScanRequest) -> Sequence[FileScan | BadFile]:
    """Return the scans of all files from their sidecar, or else of the files up to the first good file."""
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
    """Return the request without filter and line counts. Both need the schema, and it is not known yet."""
    return replace(request, count_rows=False, row_filter=None)


def _up_to_good(scans: Iterable[FileScan | BadFile]) -> list[FileScan | BadFile]:
    found: list[FileScan | BadFile] = []
    for scan in scans:
        found.append(scan)
        if _is_good(scan):
            break
    return found


def _is_good(scan: FileScan | BadFile) -> TypeGuard[FileScan]:
    """Return whether the scan has a schema."""
    return isinstance(scan, FileScan) and not scan.is_blank


def _nothing_good(scans: Sequence[FileScan | BadFile], source: str) -> NoDataError:
    bad = [scan for scan in scans if isinstance(scan, BadFile)]
    if bad:
        return none_left(bad, source)
    return NoDataError(f"{source}: no data here; all lines of {len(scans)} files are blank. Check the path.")
