"""`scan_files`: from a path to an inventory.

list the files  →  scan the first  →  judge all by their partition values  →  scan the remaining files  →  assemble

With missing="null" the first scan reads all files, since each file may have columns of its own.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import filter_text, fit_filter, shown_filter
from torch_dataloader_utils._arrow.schema import column_names, flat_schema, nested_path
from torch_dataloader_utils._core.arguments import (
    check_choice,
    check_column_names,
    check_count_rows,
    check_executor,
    check_function,
)
from torch_dataloader_utils._core.inventory import (
    FileTable,
    GroupTable,
    Int64s,
    Inventory,
    PartitionColumn,
    StringColumn,
)
from torch_dataloader_utils._core.option_values import FileIdentity, check_identity
from torch_dataloader_utils._core.skipping import OnError, check_on_error
from torch_dataloader_utils._runtime.parallel import OnProgress, watched
from torch_dataloader_utils._runtime.threads import Executor
from torch_dataloader_utils._store import Credentials, FileEntry, FileStat, RemoteOptions, Store, StoreAccess
from torch_dataloader_utils.discover.content import identified
from torch_dataloader_utils.discover.first_scan import FirstScan, scan_first
from torch_dataloader_utils.discover.group_table import assemble_groups
from torch_dataloader_utils.discover.hive import (
    Hive,
    check_partitioning,
    has_partitions,
    partition_values,
    unread_directories,
)
from torch_dataloader_utils.discover.known_nulls import known_nulls
from torch_dataloader_utils.discover.paths import DataFiles, PathLike, find_files, find_format, other_files_named
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError, of_type
from torch_dataloader_utils.formats.bad_files import BadFile, report_bad_files
from torch_dataloader_utils.formats.file_format import Format
from torch_dataloader_utils.formats.file_scan import (
    FileScan,
    Int96Unit,
    Missing,
    ScanItem,
    ScanRequest,
    TextOptions,
    Verdict,
    check_missing,
)
from torch_dataloader_utils.formats.registry import AUTO, format_wanted, scanned
from torch_dataloader_utils.formats.schemas import check_columns, check_same_schema, without_columns
from torch_dataloader_utils.formats.statistics import judge_partitions

_log = logging.getLogger(__name__)

CountRows = Literal["auto"] | bool


def scan_files(
    path: PathLike | Sequence[PathLike],
    format: str = "parquet",  # noqa: A002 - the public name
    *,
    columns: Sequence[str] | None = None,
    filters: pc.Expression | None = None,
    partitioning: Literal["hive", "auto"] | Hive | None = None,
    storage_options: Mapping[str, Any] | None = None,
    credentials: Credentials | None = None,
    remote: RemoteOptions | None = None,
    count_rows: CountRows = "auto",
    schema: pa.Schema | None = None,
    text: TextOptions | None = None,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_error: OnError = "raise",
    allow_bare_files: bool = False,
    int96_unit: Int96Unit = "ns",
    missing: Missing = "error",
    identity: FileIdentity = "strict",
) -> Inventory:
    """Return the inventory of the files at `path`, from metadata alone.

    Args:
        path: File, directory (recursive), pattern, or a list of them; local or any fsspec URL.
        format: parquet, orc, csv, tsv, csv-semicolon, csv-pipe, json, jsonl or arrow; file names need no extension.
            "auto": the format that the names end in, or else by which the first file begins.
        columns: Names of the projection that `projected_bytes` counts; None for all. Other columns that differ between
            files are left out of the data set, with a note.
        filters: A pyarrow expression. Files and row groups that partition values and statistics rule out are left out;
            row groups proven fully in keep their rows; other row groups have UNKNOWN live rows until someone counts.
        partitioning: "hive" reads columns from directory names, "auto" does if there are such directories; Hive(types)
            also sets their types.
        storage_options: Options for the storage client; kept out of the inventory.
        credentials, remote: See `StructuredDataset.create_dataloader`.
        count_rows: False leaves text files whole and uncounted. True and "auto" count their lines.
        schema: Schema of text files, which carry none. Without it, CSV has the schema of the start of the first file,
            JSON the schema of all lines. A key that the schema lacks is an error, unless `columns` leaves it out.
        text: Options that cut text files into row groups.
        executor: Scans files in this executor instead of in own threads; a pool of processes or a cluster will do.
        on_progress: Called in the caller's thread after each file with (files done, files to scan).
        on_error: "skip" leaves out files whose metadata does not decode, with a warning that names them; the number of
            their rows is not known.
        allow_bare_files: See `StructuredDataset.create_dataloader`.
        int96_unit: "us" reads INT96 timestamps of Parquet as microseconds, which hold years that nanoseconds do not;
            finer times are cut.
        missing: "null" accepts files that lack some columns, or have them in narrower types: the data set has the
            columns of all files, each in the widest type, and is null where a file lacks a column. CSV needs a schema
            then; JSON lines always have the keys of all files.
        identity: "content" knows files by all their bytes, which are read, so that states and fingerprints fit the same
            data in another place; see `StructuredDataset.create_dataloader`.

    Returns:
        Files sorted by path; row groups in file order, without empty row groups.

    Raises:
        NoDataError: no data. ConfigError: an unknown format, column or filter. StoreError: the storage refused.
        SchemaError: files do not share one schema. CorruptFileError: impossible metadata.
    """
    columns = check_column_names("columns", columns)
    _check_text_options(format, schema, text)
    check_on_error("on_error", on_error)
    check_choice("int96_unit", int96_unit, ("ns", "us"))
    check_executor(executor)
    check_function("on_progress", on_progress)
    request = ScanRequest(
        format=format_wanted(format),
        columns=columns,
        row_filter=filters,
        count_rows=check_count_rows("count_rows", count_rows),
        text=text or TextOptions(),
        schema=schema,
        on_error=on_error,
        int96_unit=int96_unit,
        missing=check_missing("missing", missing),
        identity=check_identity("identity", identity),
    )
    access = StoreAccess.of(storage_options, credentials, remote)
    inventory = scan_paths(
        path,
        access,
        request,
        finds_format=format == AUTO,
        partitioning=partitioning,
        allow_bare_files=allow_bare_files,
        executor=executor,
        on_progress=on_progress,
    )
    return identified(inventory, identity, access)


def scan_paths(
    path: PathLike | Sequence[PathLike],
    access: StoreAccess,
    request: ScanRequest,
    *,
    finds_format: bool = False,
    partitioning: Literal["hive", "auto"] | Hive | None = None,
    allow_bare_files: bool = False,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> Inventory:
    """Return the inventory as `scan_files`, with an access that readers of the files share, and with it a client.

    finds_format: Whether the files decide the format, instead of the request; see `find_format`.
    """
    hive = check_partitioning("partitioning", partitioning)
    is_text = request.format.is_text
    store, files = find_files(path, access, empty_has_no_rows=is_text, allow_bare_files=allow_bare_files)
    if finds_format:
        request = replace(request, format=find_format(store, files))
    if hive == "auto":
        hive = Hive() if has_partitions((entry.path for entry in files.entries), files.searched) else None
    if (
        request.missing == "null"
        and request.format.is_text
        and request.format.join_schemas is None
        and request.schema is None
    ):
        raise ConfigError(
            'missing="null" needs a schema for CSV, which carries none: pass inventory=scan_files(path, format, '
            'schema=..., missing="null").'
        )
    return scan_listed(store, files, request, partitioning=hive, executor=executor, on_progress=on_progress)


def scan_listed(
    store: Store,
    files: DataFiles,
    request: ScanRequest,
    *,
    partitioning: Hive | None = None,
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
) -> Inventory:
    """Return the inventory of files that are listed already; otherwise as `scan_files`.

    request: Request for the scan; with `schema` None, the schema is learned from the first file.
    """
    asked = request
    with other_files_named(files, request.format):
        paths = _path_column(files.entries)
        first = scan_first(store, files, request, partitioning, executor, on_progress)
        request, verdicts = _judge_files(request, first, len(files.entries))
        chosen = np.flatnonzero(verdicts != Verdict.OUT).tolist()
        ready = first.scans if _is_answered_by_first(request) else first.bad
        left = [file for file in chosen if file not in ready]
        with scanned(store, request, _items(files, first, left), executor) as scans:
            in_order = (ready[file] if file in ready else next(scans) for file in chosen)
            heard = on_progress if left or request.missing == "error" else None
            scans_heard = watched(in_order, len(chosen), heard)
            found = _collect(files, first, chosen, scans_heard, verdicts, request)
    if found.differing:
        first = first.with_schema(without_columns(first.file_schema, found.differing))
    if request.finds_keys and request.format.join_schemas is not None:
        first = _with_all_keys(first, request.format.join_schemas(found.schemas, asked.columns), asked)
    unread = () if partitioning else unread_directories(first.path, files.root, first.schema.names)
    left_out, differing = (*first.left_out, *unread), tuple(_left_out(found.differing))
    _log.debug("%s: %d files, %d row groups to read", files.source, len(files.entries), len(found.groups))
    return Inventory(
        files=_file_table(paths, found.stats, request.format, first.partitions),
        groups=found.groups,
        schema=first.schema.serialize().to_pybytes(),
        source=files.source,
        row_filter=filter_text(asked.row_filter),
        projection=request.columns,
        notes=(
            *report_bad_files(found.bad, len(chosen), files.source),
            *(left_out if asked.columns is None else ()),
            *first.hidden_notes,
            *differing,
        ),
        left_out=(*left_out, *differing),
        nulls=found.nulls,
    )


def _judge_files(request: ScanRequest, first: FirstScan, num_files: int) -> tuple[ScanRequest, Int64s]:
    """Return the request for all files, and one Verdict for each file from its partition values alone.

    The filter stays in the request only if it uses columns of the files.
    """
    if not request.finds_keys:
        request = replace(request, schema=first.file_schema)
    if request.row_filter is None:
        return request, np.full(num_files, Verdict.IN, dtype=np.int64)
    try:
        row_filter, used = fit_filter(request.row_filter, first.schema, first.hint(shown_filter(request.row_filter)))
    except ConfigError:
        if not request.finds_keys:
            raise
        return request, np.full(num_files, Verdict.MAYBE, dtype=np.int64)  # a later file may have the filter's columns
    verdicts = judge_partitions(row_filter, used, first.schema, first.partitions, num_files)
    if used and set(used) <= {field.name for field in first.fields}:
        return replace(request, row_filter=None), verdicts
    return replace(request, row_filter=row_filter, filter_columns=used), verdicts


def _is_answered_by_first(request: ScanRequest) -> bool:
    """Return whether the scans of `scan_first` serve this request too: without line counts and judged row groups."""
    has_statistics = request.format.has_statistics
    return not request.format.is_text and (request.row_filter is None or not has_statistics)


def _items(files: DataFiles, first: FirstScan, numbers: Iterable[int]) -> Iterator[ScanItem]:
    for file in numbers:
        yield ScanItem(entry=files.entries[file], partition=partition_values(first.partitions, first.fields, file))


def _left_out(differing: Mapping[str, str]) -> Iterator[str]:
    if differing:
        yield f"columns that differ between files are left out: {'; '.join(differing.values())}"


class _Collected(NamedTuple):
    """Results of the scans of all chosen files.

    stats: Size and identity of every file. groups: Row groups of the good files. bad: (path, fault) of each bad file.
    nulls: See `known_nulls`. schemas: Schemas of the good files, each with the first path that has it. differing:
    Columns that nobody needs and that differ between files, each with the first difference.
    """

    stats: list[FileStat]
    groups: GroupTable
    bad: list[tuple[str, BadFile]]
    nulls: Mapping[str, int]
    schemas: Mapping[pa.Schema, str]
    differing: Mapping[str, str]


def _collect(
    files: DataFiles,
    first: FirstScan,
    chosen: Sequence[int],
    scans: Iterable[FileScan | BadFile],
    file_verdicts: Int64s,
    request: ScanRequest,
) -> _Collected:
    """Return the results of the scans, one scan for each chosen file.

    Raises:
        SchemaError: unless the request finds keys, a file that has a needed column not as the first file has it.
    """
    finds_keys, needed = request.finds_keys, None
    if request.columns is not None:
        needed = {*column_names(first.schema, request.columns), *request.filter_columns}
    differing: dict[str, str] = {}
    # Not every schema can be hashed: a third party's extension type may define equality alone.
    schemas = {first.file_schema: first.path} if finds_keys else {}
    stats = [entry.stat for entry in files.entries]
    paths = [entry.path for entry in files.entries]
    groups: list[Int64s] = [np.zeros((0, 4), dtype=np.int64)]
    verdicts: list[Int64s] = [np.zeros(0, dtype=np.int64)]
    counts = np.zeros(len(paths), dtype=np.int64)
    bad: list[tuple[str, BadFile]] = []
    whole: list[FileScan] = []
    for file, scan in zip(chosen, scans, strict=True):
        if isinstance(scan, BadFile):
            bad.append((paths[file], scan))
            continue
        if finds_keys:
            schemas.setdefault(scan.schema, paths[file])
        else:
            differing = check_same_schema(*first.wanted(file), scan.schema, paths[file], needed) | differing
        if (stats[file].size, stats[file].identity) != (scan.size, scan.identity):
            stats[file] = replace(stats[file], size=scan.size, identity=scan.identity)
        counts[file] = len(scan.groups)
        groups.append(scan.groups)
        judged = scan.verdict
        if judged is not None or file_verdicts[file] == Verdict.IN:
            whole.append(scan)
        verdicts.append(np.full(len(scan.groups), file_verdicts[file]) if judged is None else judged)
    file_of_group = np.repeat(np.arange(len(paths), dtype=np.int32), counts)
    names = {field.name for field in first.schema}.difference(field.name for field in first.fields)
    kept = without_columns(first.schema, differing)
    inside = names.union(flat_schema(first.file_schema).names)
    nulls = known_nulls(whole, inside, lambda schema: (name if name in inside else None for name in schema.names))
    table = assemble_groups(file_of_group, np.concatenate(groups), np.concatenate(verdicts))
    if differing:
        nulls = {name: count for name, count in nulls.items() if nested_path(kept, name)}
    return _Collected(stats=stats, groups=table, bad=bad, nulls=nulls, schemas=schemas, differing=differing)


def _with_all_keys(first: FirstScan, joined: pa.Schema, request: ScanRequest) -> FirstScan:
    """Return the facts about files that have the columns `joined` together; check projection and filter by them.

    request: The original request, with all columns and the whole filter.
    """
    first = first.with_schema(joined)
    check_columns(request.columns or (), first.schema, first.hint)
    if request.row_filter is not None:
        fit_filter(request.row_filter, first.schema, first.hint(shown_filter(request.row_filter)))
    return first


def _file_table(
    paths: StringColumn, stats: Sequence[FileStat], file_format: Format, partitions: tuple[PartitionColumn, ...]
) -> FileTable:
    # Times come from the listing, so that a file that changes before its footer is read is noticed too.
    changed = [stat.changed_ns for stat in stats]
    return FileTable(
        paths=paths,
        sizes=np.array([stat.size for stat in stats], dtype=np.int64),
        identities=StringColumn.of(stat.identity for stat in stats),
        formats=np.full(len(stats), file_format.number, dtype=np.uint8),
        partitions=partitions,
        changed_ns=None if None in changed else np.array(changed, dtype=np.int64),
    )


def _check_text_options(file_format: str, schema: Any, text: Any) -> None:
    if schema is not None and not isinstance(schema, pa.Schema):
        raise ConfigTypeError(f"schema is {of_type(schema)}: pass a pyarrow.schema([...]).")
    if text is not None and not isinstance(text, TextOptions):
        raise ConfigTypeError(f"text is {of_type(text)}: pass TextOptions(...).")
    if file_format == AUTO and not (schema is None and text is None):
        raise ConfigError('schema= and text= are for text files. With them, pass format="csv" or format="json".')
    if format_wanted(file_format).is_text:
        return
    if schema is not None:
        raise ConfigError(
            f"schema= is for text files, which have no schema; files of format={file_format!r} have one. Leave it out; "
            "columns= chooses the columns to read."
        )
    if text is not None:
        raise ConfigError(f"text= says how text files are cut, and format={file_format!r} is not text. Leave it out.")


def _path_column(entries: Sequence[FileEntry]) -> StringColumn:
    try:
        return StringColumn.of(entry.path for entry in entries)
    except UnicodeEncodeError as error:
        raise UnsupportedFeatureError(
            f"{os.fsencode(error.object)!r}: the name of this data file is not UTF-8. Rename it, or leave it out."
        ) from error
