"""Reads position deletes and deletion vectors: the deleted rows of each data file.

Paths inside delete files are compared as in `paths.PathIndex`. Deletes that name no data file of the snapshot
("dangling", normal after compaction) are counted and ignored.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

from torch_dataloader_utils._core.iceberg import stored_field_id
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._parquet.trailer import open_checked
from torch_dataloader_utils._store import Buffer, redact
from torch_dataloader_utils.discover.faults import corrupt, decoding
from torch_dataloader_utils.discover.iceberg.deletion_vectors import read_vector
from torch_dataloader_utils.discover.iceberg.files import Files
from torch_dataloader_utils.discover.iceberg.manifests import ManifestEntry
from torch_dataloader_utils.discover.iceberg.paths import PathIndex
from torch_dataloader_utils.errors import UnsupportedFeatureError

# Reserved field ids (Iceberg spec, "Reserved Field IDs").
_PATH_ID, _POSITION_ID = 2147483546, 2147483545

_PUFFIN = "puffin"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionDeletes:
    """positions: data file number to its deleted rows, ascending, each once. dangling: deletes that name no file."""

    positions: dict[int, Int64s]
    dangling: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetFiles:
    """All data files of a snapshot, and which of them the scan reads.

    sequence_numbers: int64, one a file. is_read: bool, one a file.
    """

    index: PathIndex
    sequence_numbers: Int64s
    is_read: Any


def find_deleted_positions(
    deletes: Sequence[ManifestEntry], data: TargetFiles, files: Files, *, allow_bare: bool
) -> PositionDeletes:
    """The deleted rows of the data files that are read.

    A file with a deletion vector has no other position deletes: the vector replaces them (spec v3). A delete applies
    to files of its own or a smaller sequence number.

    Raises:
        CorruptFileError: two vectors for one file, or a delete file that does not decode.
        UnsupportedFeatureError: a delete file in Avro, or a bare vector.
    """
    vectors, dangling = _vectors([each for each in deletes if each.file_format == _PUFFIN], data, files)
    positions = dict(
        files.map(lambda item: (item[0], _read_vector(files, item[1], allow_bare=allow_bare)), vectors.items())
    )
    found: dict[int, list[Int64s]] = {}
    lowest = int(data.sequence_numbers[data.is_read].min(initial=np.iinfo(np.int64).max))
    plain = [each for each in deletes if each.file_format != _PUFFIN and each.sequence_number >= lowest]
    for entry, rows in zip(plain, files.map(partial(_read_rows, files), plain), strict=True):
        for path, deleted in rows:
            number = data.index.find(files.rules.resolve(path))
            if number is None:
                dangling += len(deleted)
            elif data.is_read[number] and number not in vectors and _applies(entry, number, data):
                found.setdefault(number, []).append(deleted)
    positions.update((number, np.unique(np.concatenate(parts))) for number, parts in found.items())
    return PositionDeletes(positions=positions, dangling=dangling)


def _applies(entry: ManifestEntry, number: int, data: TargetFiles) -> bool:
    return bool(data.sequence_numbers[number] <= entry.sequence_number)


def _vectors(entries: Iterable[ManifestEntry], data: TargetFiles, files: Files) -> tuple[dict[int, ManifestEntry], int]:
    # Matched by the manifest alone: the footer of a Puffin file keeps the paths a table had before it was moved.
    found: dict[int, ManifestEntry] = {}
    dangling = 0
    for entry in entries:
        if entry.referenced_data_file is None or entry.content_offset is None or entry.content_size is None:
            raise corrupt(entry.path, "the manifest does not say where its deletion vector lies or what it belongs to")
        number = data.index.find(files.rules.resolve(entry.referenced_data_file))
        if number is None:
            dangling += entry.record_count
        elif data.is_read[number] and _applies(entry, number, data):
            if number in found:
                raise corrupt(entry.path, f"a second deletion vector of {redact(entry.referenced_data_file)}")
            found[number] = entry
    return found, dangling


def _read_vector(files: Files, entry: ManifestEntry, *, allow_bare: bool) -> Int64s:
    path = files.rules.resolve(entry.path)
    offset, size = entry.content_offset or 0, entry.content_size or 0
    return read_vector(files.store(path), path, offset, size, allow_bare=allow_bare)


def _read_rows(files: Files, entry: ManifestEntry) -> list[tuple[str, Int64s]]:
    """(data file path as written, positions in any order) of one delete file."""
    path = files.rules.resolve(entry.path)
    data = files.read(path)
    with decoding(path, "position delete file"):
        paths, positions = _columns(path, entry.file_format, data)
        # Rows without a path mean the file that the manifest names, if it names one.
        if entry.referenced_data_file is not None:
            paths = pc.fill_null(paths, entry.referenced_data_file)
        known = pc.and_(paths.is_valid(), positions.is_valid())
        paths, positions = paths.filter(known), positions.filter(known).cast(pa.int64()).to_numpy(zero_copy_only=False)
        encoded = paths.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    stops = np.searchsorted(codes[order], np.arange(len(encoded.dictionary)), side="right")
    parts = np.split(positions[order], stops)  # and nothing after the last stop
    return list(zip(encoded.dictionary.to_pylist(), parts, strict=False))


def _columns(path: str, file_format: str, data: Buffer) -> tuple[Any, Any]:
    match file_format:
        case "parquet":
            # One column may be a struct ("row"), which is not needed; columns are found by id, then by name.
            open_file = partial(pq.ParquetFile, pa.BufferReader(data), page_checksum_verification=True)
            file = open_checked(data, redact(path), open_file)
            names, num_rows = _names(path, file.schema_arrow), file.metadata.num_rows
            batches = file.iter_batches(8192, columns=list(names), use_threads=False)
        case "orc":
            stripes = pa_orc.ORCFile(pa.BufferReader(data))
            names, num_rows = _names(path, stripes.schema), stripes.nrows
            batches = iter(stripes.read(columns=list(names)).to_batches())
        case _:
            raise UnsupportedFeatureError(
                f"{redact(path)}: delete files in {file_format} are not supported; rewrite the table's deletes."
            )
    # Few paths, each once a deleted row: as texts 100 bytes a row. Arrow reads some encodings as texts only.
    parts = [
        (batch.column(names[0]).cast(pa.string()).dictionary_encode(), batch.column(names[1])) for batch in batches
    ]
    if (found := sum(len(positions) for _, positions in parts)) != num_rows:
        # Where the header of a page is damaged, Arrow gives the batches before it, and no error.
        raise corrupt(path, f"it has {found:,} of its {num_rows:,} rows")
    if not parts:
        return pa.array([], pa.string()), pa.array([], pa.int64())
    paths, positions = map(pa.concat_arrays, zip(*parts, strict=True))
    return paths, positions


def _names(path: str, schema: pa.Schema) -> tuple[str, str]:
    found = []
    for number, name in ((_PATH_ID, "file_path"), (_POSITION_ID, "pos")):
        by_id = [field.name for field in schema if stored_field_id(field) == number]
        found += by_id[:1] or [each for each in schema.names if each == name]
    if len(found) != 2:
        raise corrupt(path, f"a position delete file has the columns file_path and pos, this one {schema.names}")
    return found[0], found[1]
