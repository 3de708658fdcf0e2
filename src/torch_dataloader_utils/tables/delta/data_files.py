"""Row groups of the data files of a Delta table, from their footers."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from torch_dataloader_utils._arrow.schema import all_nullable
from torch_dataloader_utils._core.skipping import OnError
from torch_dataloader_utils._core.table_file import field_id, stored_field_id
from torch_dataloader_utils._runtime.parallel import OnProgress, watched
from torch_dataloader_utils._store import FileEntry, redact
from torch_dataloader_utils.errors import NoDataError
from torch_dataloader_utils.formats.bad_files import BadFile, unless_bad
from torch_dataloader_utils.formats.checks import checked
from torch_dataloader_utils.formats.errors import decoding
from torch_dataloader_utils.formats.file_scan import FileScan
from torch_dataloader_utils.formats.parquet.group_counts import group_rows
from torch_dataloader_utils.formats.parquet.scan import read_footer, scan_of_footer
from torch_dataloader_utils.formats.parquet.statistics import judge_groups
from torch_dataloader_utils.formats.parquet.trailer import check_metadata
from torch_dataloader_utils.tables.delta.schema import DeltaSchema
from torch_dataloader_utils.tables.table_files import TableFiles

# Delta has no finer times; finer times are cut.
_PARQUET = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataScanRequest:
    """Part of a scan that is the same for all data files.

    projected: Names of the columns that are read, None for all. row_filter: None, or a filter over `filter_columns`
    that partition values do not decide.
    """

    table: DeltaSchema
    projected: tuple[str, ...] | None
    row_filter: pc.Expression | None
    filter_columns: tuple[str, ...]
    on_error: OnError = "raise"


def is_plain(file_schema: pa.Schema, table: DeltaSchema) -> bool:
    """Return whether a file's columns are the table's: of the same name and type, or missing (then null)."""
    return table.mode == "none" and all(_fits(file_schema, field) for field in table.stored)


def scan_data_files(
    paths: Sequence[str], request: DataScanRequest, files: TableFiles, on_progress: OnProgress | None = None
) -> list[FileScan | BadFile]:
    """Return the scan of every file, in the order of the paths.

    Raises:
        NoDataError: a file is gone. DataError, StoreError: a file cannot be read.
    """

    def scan(path: str) -> FileScan | BadFile:
        return unless_bad(lambda: checked(path, _scan(path, request, files)), request.on_error)

    return list(watched(files.map(scan, paths), len(paths), on_progress))


def _scan(path: str, request: DataScanRequest, files: TableFiles) -> FileScan:
    store = files.store(path)
    try:
        tail = read_footer(store, FileEntry(path=path, stat=store.stat(path)))
    except NoDataError as error:
        raise NoDataError(
            f"{redact(path)} is in the table's log but does not exist: it was removed (VACUUM removes files of old "
            "versions). Choose a later version, or restore the file."
        ) from error
    with decoding(path, "Parquet footer"):
        fragment = _PARQUET.make_fragment(pa.BufferReader(tail.data))
        metadata, schema = fragment.metadata, fragment.physical_schema
        check_metadata(tail.data, metadata, redact(path))
        names = None if request.projected is None else _names_in_file(request, schema)
        rows, nulls = group_rows(path, metadata, schema, names, tail.data)
        verdict = None
        if request.row_filter is not None and _can_judge(request, schema):
            verdict = judge_groups(
                fragment, (), request.row_filter, request.filter_columns, tail=tail.data, where=redact(path)
            )
    return scan_of_footer(tail, schema, rows, nulls, verdict)


def _can_judge(request: DataScanRequest, file_schema: pa.Schema) -> bool:
    """Return whether the statistics of the file describe the filter's columns. Arrow judges by names and types."""
    table = request.table
    return table.mode == "none" and all(
        file_schema.get_field_index(name) >= 0
        and name not in table.partitions
        and _fits(file_schema, table.schema.field(name))
        for name in request.filter_columns
    )


def _fits(file_schema: pa.Schema, field: pa.Field) -> bool:
    # Not `file_schema.names`, which pyarrow makes anew each time.
    places = file_schema.get_all_field_indices(field.name)
    if len(places) != 1:
        return not places
    return bool(all_nullable(file_schema.field(places[0]).type) == field.type)


def _names_in_file(request: DataScanRequest, file_schema: pa.Schema) -> tuple[str, ...]:
    table = request.table
    wanted = [name for name in request.projected or () if name not in table.partitions]
    if table.mode != "id":
        return tuple(table.physical[name] for name in wanted)
    ids = {stored_field_id(field): field.name for field in file_schema}
    numbers = [field_id(table.schema.field(name)) for name in wanted]
    return tuple(ids[number] for number in numbers if number in ids)
