"""Deletes of an Iceberg table: position deletes, deletion vectors and equality deletes, for each data file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.table_file import EqualityDeleteFile, stored_field_id
from torch_dataloader_utils._store import Buffer, Store, redact
from torch_dataloader_utils.discover.roots import PathIndex
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.formats.parquet.trailer import open_checked
from torch_dataloader_utils.tables.deleted_rows import decode_framed
from torch_dataloader_utils.tables.iceberg.manifests import FORMATS, ManifestEntry
from torch_dataloader_utils.tables.table_files import TableFiles

_PUFFIN_MAGIC = b"PFA1"
_FRAME_BYTES = 12  # length, magic and CRC


def read_vector(store: Store, path: str, offset: int, size: int, *, allow_bare: bool) -> Int64s:
    """Return the deleted positions, ascending, each once. Only the vector and the file's first four bytes are read.

    Raises:
        CorruptFileError: the vector lies outside the file, has a wrong checksum, or is no vector.
        UnsupportedFeatureError: the file is not a Puffin file (but a bare vector), unless `allow_bare`.
    """
    now = store.stat(path)
    if offset < 0 or size < _FRAME_BYTES or offset + size > now.size:
        raise corrupt(path, f"a deletion vector of {size} bytes at {offset} does not lie in a file of {now.size} bytes")
    magic, blob = store.ranges(path, [(0, 4), (offset, size)], now.identity)
    if bytes(magic) != _PUFFIN_MAGIC and not allow_bare:
        raise UnsupportedFeatureError(
            f"{redact(path)}: this deletion vector is not inside a Puffin file (it does not begin with PFA1). Some "
            "writers left bare vectors before the format was settled; pass allow_bare_vectors=True to read them."
        )
    return decode_framed(path, bytes(blob))


# Reserved field ids (Iceberg spec, "Reserved Field IDs").
_PATH_ID, _POSITION_ID = 2147483546, 2147483545

_PUFFIN = "puffin"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionDeletes:
    """Deleted rows of data files, by position.

    positions: Deleted rows by number of the data file, ascending, each once. dangling: Number of deletes that name no
    file.
    """

    positions: dict[int, Int64s]
    dangling: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetFiles:
    """All data files of a snapshot, and whether the scan reads each file.

    sequence_numbers: int64, one a file. is_read: bool, one a file.
    """

    index: PathIndex
    sequence_numbers: Int64s
    is_read: npt.NDArray[np.bool_]


def find_deleted_positions(
    deletes: Sequence[ManifestEntry], data: TargetFiles, files: TableFiles, *, allow_bare: bool
) -> PositionDeletes:
    """Return the deleted rows of the data files that are read.

    A file with a deletion vector has no other position deletes: the vector replaces them (spec v3). A delete applies to
    files with its own or a smaller sequence number.

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


def _vectors(
    entries: Iterable[ManifestEntry], data: TargetFiles, files: TableFiles
) -> tuple[dict[int, ManifestEntry], int]:
    # Only the manifest matches vectors to files: the footer of a Puffin file keeps the paths from before a table moved.
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


def _read_vector(files: TableFiles, entry: ManifestEntry, *, allow_bare: bool) -> Int64s:
    path = files.rules.resolve(entry.path)
    offset, size = entry.content_offset or 0, entry.content_size or 0
    return read_vector(files.store(path), path, offset, size, allow_bare=allow_bare)


def _read_rows(files: TableFiles, entry: ManifestEntry) -> list[tuple[str, Int64s]]:
    """Return (data file path as written, positions in any order) of one delete file."""
    path = files.rules.resolve(entry.path)
    data = files.read(path)
    with decoding(path, "position delete file"):
        paths, positions = _columns(path, entry.file_format, data)
        # A row without a path means the file that the manifest names.
        if entry.referenced_data_file is not None:
            paths = pc.fill_null(paths, entry.referenced_data_file)
        known = pc.and_(paths.is_valid(), positions.is_valid())
        paths, positions = paths.filter(known), positions.filter(known).cast(pa.int64()).to_numpy(zero_copy_only=False)
        encoded = paths.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    stops = np.searchsorted(codes[order], np.arange(len(encoded.dictionary)), side="right")
    parts = np.split(positions[order], stops)  # the part after the last stop is empty
    return list(zip(encoded.dictionary.to_pylist(), parts, strict=False))


def _columns(path: str, file_format: str, data: Buffer) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    match file_format:
        case "parquet":
            # One column may be a struct ("row") that is not needed. Columns are found by id, then by name.
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
    # Few paths repeat in many rows: texts take 100 bytes a row. Arrow reads some encodings only as texts.
    parts = [
        (batch.column(names[0]).cast(pa.string()).dictionary_encode(), batch.column(names[1])) for batch in batches
    ]
    if (found := sum(len(positions) for _, positions in parts)) != num_rows:
        # If the header of a page is damaged, Arrow gives the batches before it, and no error.
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
        raise corrupt(path, f"a position delete file needs the columns file_path and pos, and has {schema.names}")
    return found[0], found[1]


Scope = tuple[int, tuple[object, ...]]
_EVERYWHERE: Scope = (-1, ())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EqualityIndex:
    """Index of the equality delete files of a snapshot.

    by_scope: (sequence number, file) by partition, ascending. chosen: Results of `of`, kept so that data files with the
    same deletes share one object, which is pickled once.
    """

    by_scope: dict[Scope, list[tuple[int, EqualityDeleteFile]]] = field(default_factory=dict)
    chosen: dict[tuple[Scope, int], tuple[EqualityDeleteFile, ...]] = field(default_factory=dict)

    def of(self, entry: ManifestEntry) -> tuple[EqualityDeleteFile, ...]:
        """Return the delete files that apply to a data file, sorted by path."""
        if not self.by_scope:
            return ()
        scope = _scope(entry)
        key = (scope, entry.sequence_number)
        if key not in self.chosen:
            near = (*self.by_scope.get(scope, ()), *self.by_scope.get(_EVERYWHERE, ()))
            applying = {file.path: file for number, file in near if number > entry.sequence_number}
            self.chosen[key] = tuple(applying[path] for path in sorted(applying))
        return self.chosen[key]

    @property
    def key_ids(self) -> frozenset[int]:
        """All field ids of keys."""
        return frozenset(key for files in self.by_scope.values() for _, file in files for key in file.key_ids)


def index_equality_deletes(
    entries: Sequence[ManifestEntry], unpartitioned: frozenset[int], files: TableFiles
) -> EqualityIndex:
    """Return the index of these delete files, each with its present identity.

    unpartitioned: Ids of specs with deletes that apply everywhere.

    Raises:
        UnsupportedFeatureError: a delete file in Avro. CorruptFileError: a delete file without key columns.
    """
    index = EqualityIndex()
    for entry, file in zip(entries, files.map(lambda entry: _delete_file(entry, files), entries), strict=True):
        scope = _EVERYWHERE if entry.spec_id in unpartitioned else _scope(entry)
        index.by_scope.setdefault(scope, []).append((entry.sequence_number, file))
    return index


def _delete_file(entry: ManifestEntry, files: TableFiles) -> EqualityDeleteFile:
    path = files.rules.resolve(entry.path)
    if entry.file_format not in FORMATS:
        raise UnsupportedFeatureError(
            f"{redact(path)}: delete files in {entry.file_format} are not supported; rewrite the table's deletes."
        )
    if not entry.equality_ids:
        raise corrupt(path, "the manifest names no key columns for this equality delete file")
    now = files.store(path).stat(path)
    return EqualityDeleteFile(
        path=path,
        file_size=now.size,
        identity=now.identity,
        file_format=FORMATS[entry.file_format],
        key_ids=tuple(sorted(set(entry.equality_ids))),
    )


def _scope(entry: ManifestEntry) -> Scope:
    # As text, NaN equals NaN, and -0.0 and 0.0 differ, as partitions do.
    values = (repr(value) if isinstance(value, float) else value for _, value in entry.partition)
    return (entry.spec_id, tuple(values))
