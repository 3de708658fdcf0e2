"""From a path to an inventory: the discovery stage, step by step."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.cpus import available_cpus
from torch_dataloader_utils._core.executor import Executor
from torch_dataloader_utils._core.inventory import FileFormat, FileTable, GroupTable, Int64s, Inventory, PartitionColumn
from torch_dataloader_utils._core.strings import StringColumn
from torch_dataloader_utils._store import FileStat, Secret, Store, StoreAccess
from torch_dataloader_utils.discover.assemble import assemble_groups
from torch_dataloader_utils.discover.bad_files import BadFile, OnError, check_on_error, none_left, report_bad_files
from torch_dataloader_utils.discover.file_scan import FileScan, ScanItem, ScanRequest, TextOptions, Verdict
from torch_dataloader_utils.discover.formats import file_format_of, format_hint, scan_file
from torch_dataloader_utils.discover.hive import hive_hint, parse_partitions, partition_values, type_partitions
from torch_dataloader_utils.discover.parallel import map_in_order, map_quick, watched
from torch_dataloader_utils.discover.paths import DataFiles, PathLike, find_files
from torch_dataloader_utils.discover.prune import judge_partitions
from torch_dataloader_utils.discover.schemas import (
    check_columns,
    check_distinct_names,
    check_same_schema,
    dataset_schema,
)
from torch_dataloader_utils.discover.sidecar import scan_sidecar
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, DataError
from torch_dataloader_utils.row_filter import filter_columns

_log = logging.getLogger(__name__)

CountRows = Literal["auto"] | bool

# A footer is one request of some ten milliseconds on a remote store and 0.2 ms of decoding on a local one.
_REMOTE_THREADS = 32
_MOST_LOCAL_THREADS = 8


def scan_files(
    path: PathLike | Sequence[PathLike],
    format: str = "parquet",  # noqa: A002 - the public name
    *,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
    partitioning: Literal["hive"] | None = None,
    storage_options: Mapping[str, Any] | Secret | StoreAccess | None = None,
    count_rows: CountRows = "auto",
    schema: pa.Schema | None = None,
    text: TextOptions | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_error: OnError = "raise",
) -> Inventory:
    """The inventory of the files at `path`, from metadata alone.

    Args:
        path: file, directory (recursive), pattern, or a list of those; local or any fsspec URL.
        format: parquet, orc, csv, json, jsonl or arrow. File names need no extension.
        columns: the projection that `projected_bytes` counts; None for all.
        filters: a pyarrow expression. Files and row groups that partition values and statistics rule out are left
            out; those proven fully in keep their rows; the others have UNKNOWN live rows until someone counts.
        partitioning: "hive" reads columns from directory names.
        storage_options: for the storage client; kept out of the inventory.
        count_rows: False leaves text files whole and uncounted. True and "auto" count their lines.
        schema: of text files, which carry none; otherwise inferred from the first one.
        text: how text files are cut.
        executor: scans files in it instead of in own threads; a pool of processes or a cluster will do.
        on_progress: called here after each file with (files done, files to scan).
        on_error: "skip" leaves out files whose metadata does not decode, with a warning that names them; how many
            rows that is, nobody can say.

    Returns:
        Files sorted by path; row groups in file order, without empty ones.

    Raises:
        NoDataError: nothing there. ConfigError: an unknown format, column or filter.
        SchemaError: files that do not share one schema. CorruptFileError: metadata that cannot be.
        StoreError: the storage refused.
    """
    file_format = file_format_of(format)
    _check_options(columns, partitioning, count_rows)
    check_on_error(on_error)
    request = ScanRequest(
        file_format=file_format,
        columns=None if columns is None else tuple(columns),
        count_rows=count_rows is not False,
        text=text or TextOptions(),
        on_error=on_error,
    )
    store, files = find_files(path, storage_options)
    try:
        frame = _frame(store, files, request, partitioning, schema)
    except DataError as error:
        hint = format_hint(files.entries[0].path, file_format)
        if not hint:
            raise
        raise ConfigError(f"{files.source} was read as {format}, and its files are named otherwise: {hint}.") from error
    request, verdicts = _with_filter(request, frame, filters, len(files.entries))
    chosen = np.flatnonzero(verdicts != Verdict.OUT).tolist()
    with ExitStack() as stack:
        scans = _scans(store, files, request, frame, chosen, executor, stack)
        stats, groups, bad = _collect(files, frame, chosen, watched(scans, len(chosen), on_progress), verdicts)
    _log.debug("%s: %d files, %d row groups to read", files.source, len(files.entries), len(groups))
    return Inventory(
        files=_file_table(files, stats, file_format, frame.partitions),
        groups=groups,
        schema=frame.schema.serialize().to_pybytes(),
        source=files.source,
        row_filter="" if filters is None else str(filters),
        projection=request.columns,
        notes=report_bad_files(bad, len(chosen), files.source),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Frame:
    """What the first good file and the paths say of the whole; scans by file that need no other read.

    hint: what to do about names that are no columns, for messages.
    """

    hint: Callable[[str], str]
    first_path: str
    file_schema: pa.Schema
    schema: pa.Schema
    partitions: tuple[PartitionColumn, ...]
    fields: tuple[pa.Field, ...]
    ready: Mapping[int, FileScan | BadFile]


def _frame(
    store: Store, files: DataFiles, request: ScanRequest, partitioning: str | None, text_schema: pa.Schema | None
) -> _Frame:
    scans: Sequence[FileScan | BadFile] | None = None
    if files.sidecar is not None and request.file_format is FileFormat.PARQUET:
        scans = scan_sidecar(store, files.sidecar, files.root, files.entries, request)
    if scans is None:
        # Only its schema is wanted yet, so that text is not counted here.
        probe = replace(request, count_rows=False, text_schema=text_schema)
        scans = _up_to_good(scan_file(store, probe, ScanItem(entry=entry)) for entry in files.entries)
    number, first = next(((i, scan) for i, scan in enumerate(scans) if isinstance(scan, FileScan)), (0, None))
    if first is None:
        raise none_left([scan for scan in scans if isinstance(scan, BadFile)], files.source)
    first_path, file_schema = files.entries[number].path, first.schema
    check_distinct_names(file_schema, first_path)
    partitions: tuple[PartitionColumn, ...] = ()
    fields: tuple[pa.Field, ...] = ()
    if partitioning is not None:
        texts = parse_partitions([entry.path for entry in files.entries], files.root)
        partitions, fields = type_partitions(texts, file_schema, first_path)
    schema = dataset_schema(file_schema, fields)
    hint = partial(hive_hint, [first_path] if partitioning is None else [], files.root)
    check_columns(request.columns or (), schema, "columns", hint)
    return _Frame(
        hint=hint,
        first_path=first_path,
        file_schema=file_schema,
        schema=schema,
        partitions=partitions,
        fields=fields,
        ready=dict(enumerate(scans)),
    )


def _up_to_good(scans: Iterable[FileScan | BadFile]) -> list[FileScan | BadFile]:
    """The scans up to the first good one."""
    found: list[FileScan | BadFile] = []
    for scan in scans:
        found.append(scan)
        if isinstance(scan, FileScan):
            break
    return found


def _with_filter(
    request: ScanRequest, frame: _Frame, filters: pc.Expression | None, num_files: int
) -> tuple[ScanRequest, Int64s]:
    """The request for all files, and a Verdict a file; the filter is in the request only if files can add to it."""
    request = replace(request, text_schema=frame.file_schema)
    if filters is None:
        return request, np.full(num_files, Verdict.IN, dtype=np.int64)
    used = filter_columns(filters, frame.schema, frame.hint(str(filters)))
    verdicts = judge_partitions(filters, used, frame.schema, frame.partitions, num_files)
    if used and set(used) <= {field.name for field in frame.fields}:
        return request, verdicts
    return replace(request, row_filter=filters, filter_columns=used), verdicts


def _collect(
    files: DataFiles, frame: _Frame, chosen: Sequence[int], scans: Iterable[FileScan | BadFile], file_verdicts: Int64s
) -> tuple[list[FileStat], GroupTable, list[tuple[str, BadFile]]]:
    """The stats of all files, the row groups of the chosen ones as their scans come in, and which of them are bad."""
    stats = [entry.stat for entry in files.entries]
    paths = [entry.path for entry in files.entries]
    groups: list[Int64s] = [np.zeros((0, 4), dtype=np.int64)]
    verdicts: list[Int64s] = [np.zeros(0, dtype=np.int64)]
    counts = np.zeros(len(paths), dtype=np.int64)
    bad: list[tuple[str, BadFile]] = []
    for file, scan in zip(chosen, scans, strict=True):
        if isinstance(scan, BadFile):
            bad.append((paths[file], scan))
            continue
        check_same_schema(frame.file_schema, frame.first_path, scan.schema, paths[file])
        stats[file] = FileStat(size=scan.size, identity=scan.identity)
        counts[file] = len(scan.groups)
        groups.append(scan.groups)
        judged = scan.verdict
        verdicts.append(np.full(len(scan.groups), file_verdicts[file]) if judged is None else judged)
    file_of_group = np.repeat(np.arange(len(paths), dtype=np.int32), counts)
    return stats, assemble_groups(file_of_group, np.concatenate(groups), np.concatenate(verdicts)), bad


def _scans(
    store: Store,
    files: DataFiles,
    request: ScanRequest,
    frame: _Frame,
    chosen: Sequence[int],
    executor: Executor | None,
    stack: ExitStack,
) -> Iterator[FileScan | BadFile]:
    is_text = request.file_format in (FileFormat.CSV, FileFormat.JSON)
    ready = {} if is_text or request.row_filter is not None else frame.ready
    missing = [file for file in chosen if file not in ready]
    items = (
        ScanItem(entry=files.entries[file], partition=partition_values(frame.partitions, frame.fields, file))
        for file in missing
    )
    scan = partial(scan_file, store, request)
    threads = min(available_cpus(), _MOST_LOCAL_THREADS) if store.is_local else _REMOTE_THREADS
    brings_executor = executor is not None
    if executor is None:
        executor = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="tdu-scan"))
    # Remote stores are waited for, lines of text files are counted, and an executor was brought to be used.
    map_scans = map_in_order if brings_executor or is_text or not store.is_local else map_quick
    scans = map_scans(scan, items, executor, 4 * threads)
    for file in chosen:
        yield ready[file] if file in ready else next(scans)


def _file_table(
    files: DataFiles, stats: Sequence[FileStat], file_format: FileFormat, partitions: tuple[PartitionColumn, ...]
) -> FileTable:
    return FileTable(
        paths=StringColumn.of(entry.path for entry in files.entries),
        sizes=np.array([stat.size for stat in stats], dtype=np.int64),
        identities=StringColumn.of(stat.identity for stat in stats),
        formats=np.full(len(stats), file_format, dtype=np.uint8),
        partitions=partitions,
    )


def _check_options(columns: Sequence[str] | None, partitioning: str | None, count_rows: CountRows) -> None:
    if isinstance(columns, str):
        raise ConfigTypeError(
            f"columns is a list of names; got the one string {columns!r}. Write columns=[{columns!r}]."
        )
    if partitioning not in (None, "hive"):
        raise ConfigError(f'partitioning={partitioning!r} is unknown; use "hive" or None.')
    if count_rows not in ("auto", True, False):
        raise ConfigError(f'count_rows={count_rows!r} is unknown; use "auto", True or False.')
