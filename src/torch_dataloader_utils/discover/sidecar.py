"""A `_metadata` file: the footers of a whole directory in one read, as Dask and Spark can write it.

It is believed only where it speaks of exactly the files that are there, at their sizes or less; otherwise it is
stale and every footer is read instead. Its statistics are never used: a file rewritten under its old name would
be pruned wrongly, while a wrong row count is caught on reading.
"""

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._parquet.trailer import check_footer
from torch_dataloader_utils._store import FileEntry, Store, redact
from torch_dataloader_utils.discover.file_scan import FileScan, ScanRequest
from torch_dataloader_utils.discover.footers import group_rows, projected_leaves, read_footer, with_uuids
from torch_dataloader_utils.errors import DataError

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
