"""Scan of all files of a directory by its `_metadata` file, which holds the footers of all files.

Source: parquet-format, "Metadata"; a `_metadata` file as Spark, Dask and pyarrow write it.
"""

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._store import FileEntry, Store, redact
from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.formats.checks import checked
from torch_dataloader_utils.formats.errors import corrupt
from torch_dataloader_utils.formats.file_scan import FileScan, ScanRequest, kept_nulls
from torch_dataloader_utils.formats.parquet.group_counts import group_rows
from torch_dataloader_utils.formats.parquet.scan import read_footer, with_uuids
from torch_dataloader_utils.formats.parquet.trailer import check_footer

_log = logging.getLogger(__name__)


def scan_sidecar(
    store: Store, sidecar: FileEntry, root: str, entries: Sequence[FileEntry], request: ScanRequest
) -> list[FileScan] | None:
    """Return the scan of each data file, in the order of `entries`; None if the sidecar cannot be used.

    A sidecar is not used, and the log says so, if it is damaged, contradicts itself, or does not describe the present
    files.
    """
    written = sidecar.stat.modified_ns
    if written is not None and any((entry.stat.modified_ns or 0) > written for entry in entries):
        _log.warning("%s is older than some of its files and is not used; write it again", redact(sidecar.path))
        return None
    try:
        scans = _scans(store, sidecar, root, entries, request)
    except (DataError, pa.ArrowException, OSError, ValueError) as error:
        _log.warning("%s does not decode and is not used: %s", redact(sidecar.path), error)
        return None
    if scans is None:
        _log.warning("%s does not describe the present files and is not used", redact(sidecar.path))
        return None
    _log.debug("%s serves the footers of %d files", redact(sidecar.path), len(entries))
    return scans


def _scans(
    store: Store, sidecar: FileEntry, root: str, entries: Sequence[FileEntry], request: ScanRequest
) -> list[FileScan] | None:
    """Return the checked scan of each data file; None if the sidecar is of other files, or of files of other sizes."""
    schema, rows, nulls, names = _read_sidecar(store, sidecar, request)
    places: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        places.setdefault(f"{root}/{name}" if name else "", []).append(index)
    sizes = {entry.path: entry.stat.size for entry in entries}
    stops = rows[:, 2] + rows[:, 3]
    if set(places) != set(sizes) or any(stops[indices].max() > sizes[path] for path, indices in places.items()):
        return None
    found = []
    for entry in entries:
        groups = np.array(places[entry.path])
        scan = FileScan(
            groups=rows[groups],
            size=entry.stat.size,
            identity=entry.stat.identity,
            schema=schema,
            nulls=kept_nulls(nulls[groups], None),
        )
        found.append(checked(entry.path, scan))
    return found


def _read_sidecar(
    store: Store, sidecar: FileEntry, request: ScanRequest
) -> tuple[pa.Schema, Int64s, Int64s, list[str]]:
    """Return the schema, the two results of `group_rows`, and the file name of each row group ("" without columns)."""
    tail = read_footer(store, sidecar)
    reader = pq.ParquetReader()
    reader.open(pa.BufferReader(tail.data), coerce_int96_timestamp_unit=request.int96_unit)
    metadata = reader.metadata
    check_footer(tail.data, metadata, redact(sidecar.path))
    schema = with_uuids(reader.schema_arrow, tail.data, request.int96_unit)
    rows, nulls = group_rows(sidecar.path, metadata, schema, request.columns, tail.data)
    _check_values(sidecar.path, metadata)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return schema, rows, nulls, [group.column(0).file_path if group.num_columns else "" for group in groups]


def _check_values(path: str, metadata: pq.FileMetaData) -> None:
    """Raise CorruptFileError unless the first column without lists has a value for each row of its row group."""
    leaves = range(metadata.num_columns)
    leaf = next((leaf for leaf in leaves if not metadata.schema.column(leaf).max_repetition_level), None)
    for group in map(metadata.row_group, range(metadata.num_row_groups if leaf is not None else 0)):
        values = group.column(leaf).num_values
        if not 0 <= values == group.num_rows:
            raise corrupt(path, f"a row group has {group.num_rows} rows and a column of {values} values")
