"""Manifest lists and manifests: the files of a snapshot, up to format version 3.

pyiceberg 0.12 reads manifests by the schema of version 2, which has no deletion vectors. This module reads fields by
their ids, and only the used fields (Iceberg spec, "Manifests"). Sizes in manifests may be wrong and are not used.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._store import Buffer, redact
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt
from torch_dataloader_utils.tables.iceberg.metadata_errors import parsing

if TYPE_CHECKING:
    from pyiceberg.schema import Schema


_SYNC_BYTES = 16


def read_records(
    data: Buffer, wanted: Sequence[int], wanted_inside: Mapping[int, Sequence[int]] | None = None
) -> "tuple[Mapping[str, str], Schema, Iterator[list[Any]]]":
    """Return the file's properties and schema, and an iterator of records as lists of the `wanted` fields' values.

    wanted: Ids of fields. A value is None if the file lacks the field. wanted_inside: Ids of the wanted fields inside
    of struct fields, by the struct's field id. These structs come as lists too, other structs as pyiceberg's records
    with all fields. Fields that are not wanted are skipped, not decoded.
    """
    from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
    from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
    from pyiceberg.avro.resolver import construct_reader
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    content = bytes(data)
    header_decoder = StreamingBinaryDecoder(content)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(header_decoder)
    stored = json.loads(header.meta["avro.schema"], object_hook=_without_nanoseconds)
    file_schema = AvroSchemaConversion().avro_to_iceberg(stored)
    # The compiled decoder of pyiceberg 0.12 rounds doubles to floats (2.222 becomes 2.2219998836517334), and is ten
    # times as fast as the other decoder. Only manifests with doubles as partition values need the slow decoder.
    make_decoder = StreamingBinaryDecoder if _holds_doubles(file_schema) else new_decoder
    reader = _FieldsReader(file_schema.as_struct(), construct_reader(file_schema), wanted, wanted_inside or {})
    codec = header.compression_codec()
    blocks = StreamingBinaryDecoder(content[header_decoder.tell() :])
    left = len(content) - header_decoder.tell()

    def records() -> Iterator[list[Any]]:
        while blocks.tell() < left:
            count = blocks.read_int()
            block = blocks.read_bytes()
            decoder = make_decoder(codec.decompress(block) if codec else block)
            for _ in range(count):
                yield reader.read(decoder)
            if blocks.read(_SYNC_BYTES) != header.sync:
                raise ValueError("the sync marker after a block is wrong")

    return header.meta, file_schema, records()


def _without_nanoseconds(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a type of an Avro schema; a type of nanoseconds, unknown to pyiceberg, becomes its stored number."""
    is_nanoseconds = str(stored.get("logicalType")).endswith("timestamp-nanos")
    return {key: value for key, value in stored.items() if key != "logicalType"} if is_nanoseconds else stored


class _FieldsReader:
    """Reader of chosen fields of a struct, by id. It skips the other fields."""

    def __init__(self, struct: Any, reader: Any, wanted: Sequence[int], inside: Mapping[int, Sequence[int]]) -> None:
        places = {field_id: place for place, field_id in enumerate(wanted)}
        self._num_fields = len(wanted)
        self._steps: list[tuple[int | None, Callable[[Any], Any]]] = []
        for each, (_, child) in zip(struct.fields, reader.field_readers, strict=True):
            place = places.get(each.field_id)
            if place is None:
                self._steps.append((None, child.skip))
            elif each.field_id in inside:
                self._steps.append((place, _FieldsReader(each.field_type, child, inside[each.field_id], {}).read))
            else:
                self._steps.append((place, child.read))

    def read(self, decoder: Any) -> list[Any]:
        """Return the values, in the wanted order."""
        values: list[Any] = [None] * self._num_fields
        for place, step in self._steps:
            if place is None:
                step(decoder)
            else:
                values[place] = step(decoder)
        return values


def _holds_doubles(schema: "Schema") -> bool:
    from pyiceberg.schema import index_by_id
    from pyiceberg.types import DoubleType

    return any(isinstance(field.field_type, DoubleType) for field in index_by_id(schema).values())


FORMATS = {"parquet": FileFormat.PARQUET, "orc": FileFormat.ORC}
"""Supported formats of data and equality delete files, by their names in manifests."""

# First bytes of files of encrypted tables (Iceberg spec, "AES GCM Stream").
_ENCRYPTED = b"AGS1"
_ADDED, _DELETED = 1, 2
_PARTITION_ID, _DATA_FILE_ID = 102, 2
_SUMMARY_NAMES = {509: "contains_null", 518: "contains_nan", 510: "lower_bound", 511: "upper_bound"}


class _ListRecord(NamedTuple):
    """Stored record of a manifest list. Each field has its id in the spec, and is None if it is missing."""

    manifest_path: Annotated[str, 500]
    partition_spec_id: Annotated[int, 502]
    content: Annotated[int | None, 517]
    sequence_number: Annotated[int | None, 515]
    added_snapshot_id: Annotated[int | None, 503]
    partitions: Annotated[Sequence[Any] | None, 507]
    first_row_id: Annotated[int | None, 520]


class _EntryRecord(NamedTuple):
    """Stored record of a manifest. data_file: Values of a `_FileRecord`."""

    status: Annotated[int, 0]
    snapshot_id: Annotated[int | None, 1]
    sequence_number: Annotated[int | None, 3]
    data_file: Annotated[Sequence[Any], _DATA_FILE_ID]


class _FileRecord(NamedTuple):
    """File of a record. Fields with a default are statistics for filters, which are not always read."""

    content: Annotated[int | None, 134]
    file_path: Annotated[str, 100]
    file_format: Annotated[str, 101]
    partition: Annotated[Any, _PARTITION_ID]
    record_count: Annotated[int, 103]
    split_offsets: Annotated[Sequence[int] | None, 132]
    equality_ids: Annotated[Sequence[int] | None, 135]
    referenced_data_file: Annotated[str | None, 143]
    content_offset: Annotated[int | None, 144]
    content_size_in_bytes: Annotated[int | None, 145]
    first_row_id: Annotated[int | None, 142]
    null_value_counts: Annotated[dict[int, int] | None, 110]
    value_counts: Annotated[dict[int, int] | None, 109] = None
    nan_value_counts: Annotated[dict[int, int] | None, 137] = None
    lower_bounds: Annotated[dict[int, bytes] | None, 125] = None
    upper_bounds: Annotated[dict[int, bytes] | None, 128] = None


def _field_ids(record: type) -> tuple[int, ...]:
    """Return the ids beside the fields of a record, in their order."""
    return tuple(hint.__metadata__[0] for hint in get_type_hints(record, include_extras=True).values())


_LIST_IDS, _ENTRY_IDS, _FILE_IDS = map(_field_ids, (_ListRecord, _EntryRecord, _FileRecord))
_NUM_STATISTICS = len(_FileRecord._field_defaults)


class Content(IntEnum):
    """Content of a file in a manifest."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One entry of a manifest list. partitions: Field summaries, as pyiceberg's manifest evaluator reads them.

    spec_id, snapshot_id: None if only the manifest itself has them (version 1).
    """

    manifest_path: str
    spec_id: int | None
    holds_deletes: bool
    sequence_number: int
    snapshot_id: int | None
    partitions: tuple[Any, ...] | None
    first_row_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManifestEntry:
    """One live file. Statistics have the names that pyiceberg's metrics evaluator looks for.

    partition: (partition field id, value) in the file's spec, values as stored (days, microseconds).
    sequence_number: Data sequence number, inherited if the entry has none.
    referenced_data_file, content_offset, content_size: Fields of deletion vectors.
    first_row_id: First row id of a data file, inherited if the entry has none; None in snapshots without row ids.
    """

    content: Content
    path: str
    file_format: str
    spec_id: int
    partition: tuple[tuple[int, Any], ...]
    sequence_number: int
    is_added: bool
    snapshot_id: int | None
    record_count: int
    value_counts: dict[int, int] | None
    null_value_counts: dict[int, int] | None
    nan_value_counts: dict[int, int] | None
    lower_bounds: dict[int, bytes] | None
    upper_bounds: dict[int, bytes] | None
    split_offsets: tuple[int, ...]
    equality_ids: tuple[int, ...]
    referenced_data_file: str | None
    content_offset: int | None
    content_size: int | None
    first_row_id: int | None


def read_manifest_list(path: str, data: Buffer) -> list[Manifest]:
    """Return the manifests of a snapshot, in the order of the list.

    Raises:
        CorruptFileError: the list does not decode. UnsupportedFeatureError: the list is encrypted.
    """
    _check_plain(path, data)
    with parsing(path, "manifest list"):
        _, schema, records = read_records(data, _LIST_IDS)
        return [
            Manifest(
                manifest_path=record.manifest_path,
                spec_id=record.partition_spec_id,
                holds_deletes=record.content == 1,
                sequence_number=record.sequence_number or 0,
                snapshot_id=record.added_snapshot_id,
                partitions=None if record.partitions is None else _summaries(schema, record.partitions),
                first_row_id=record.first_row_id,
            )
            for record in map(_ListRecord._make, records)
        ]


def unlisted_manifest(path: str) -> Manifest:
    """Return a manifest of a version 1 snapshot that has no manifest list and names its manifests itself."""
    return Manifest(
        manifest_path=path,
        spec_id=None,
        holds_deletes=False,
        sequence_number=0,
        snapshot_id=None,
        partitions=None,
        first_row_id=None,
    )


def read_manifest(manifest: Manifest, path: str, data: Buffer, *, with_statistics: bool) -> list[ManifestEntry]:
    """Return the live entries of a manifest.

    path: Source of the bytes, for messages. with_statistics: Whether statistics for filters are read too; they take
    most of the time and memory.

    Raises:
        CorruptFileError: the manifest does not decode, or an entry has no sequence number and can inherit none.
        UnsupportedFeatureError: the manifest is encrypted.
    """
    _check_plain(path, data)
    with parsing(path, "manifest"):
        file_ids = _FILE_IDS if with_statistics else _FILE_IDS[:-_NUM_STATISTICS]
        about, file_schema, records = read_records(data, _ENTRY_IDS, {_DATA_FILE_ID: file_ids})
        partition_ids = _ids_inside(file_schema, _PARTITION_ID)
        spec_id = int(about.get("partition-spec-id", 0)) if manifest.spec_id is None else manifest.spec_id
        return list(_entries(manifest, spec_id, path, partition_ids, records))


def _check_plain(path: str, data: Buffer) -> None:
    if bytes(data[: len(_ENCRYPTED)]) == _ENCRYPTED:
        raise UnsupportedFeatureError(
            f"{redact(path)} is encrypted. Encrypted tables are not supported; read a copy that is not encrypted."
        )


def _entries(
    manifest: Manifest, spec_id: int, path: str, partition_ids: Sequence[int], records: Iterator[Any]
) -> Iterator[ManifestEntry]:
    next_row_id = manifest.first_row_id
    for entry in map(_EntryRecord._make, records):
        if entry.status == _DELETED:
            continue
        file, sequence_number, is_added = _FileRecord(*entry.data_file), entry.sequence_number, entry.status == _ADDED
        # Only added entries inherit; version 1 has no sequence numbers, and all count as 0.
        if sequence_number is None and (is_added or manifest.sequence_number == 0):
            sequence_number = manifest.sequence_number
        if sequence_number is None:
            raise corrupt(path, f"the entry of {redact(file.file_path)} has no sequence number")
        first_row_id = file.first_row_id
        if first_row_id is None and next_row_id is not None:
            first_row_id, next_row_id = next_row_id, next_row_id + file.record_count
        yield ManifestEntry(
            content=Content(file.content or 0),
            path=file.file_path,
            file_format=str(file.file_format).lower(),
            spec_id=spec_id,
            partition=tuple(zip(partition_ids, _values(file.partition), strict=True)),
            sequence_number=sequence_number,
            is_added=is_added,
            snapshot_id=manifest.snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
            record_count=file.record_count,
            value_counts=file.value_counts,
            null_value_counts=file.null_value_counts,
            nan_value_counts=file.nan_value_counts,
            lower_bounds=file.lower_bounds,
            upper_bounds=file.upper_bounds,
            split_offsets=tuple(file.split_offsets or ()),
            equality_ids=tuple(file.equality_ids or ()),
            referenced_data_file=file.referenced_data_file,
            content_offset=file.content_offset,
            content_size=file.content_size_in_bytes,
            first_row_id=None if next_row_id is None else first_row_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary:
    """Summary of a partition field, as pyiceberg's manifest evaluator reads it."""

    contains_null: bool
    contains_nan: bool | None = None
    lower_bound: bytes | None = None
    upper_bound: bytes | None = None


def _summaries(schema: "Schema", records: Sequence[Any]) -> tuple[_Summary, ...]:
    names = [_SUMMARY_NAMES.get(field_id, "") for field_id in _ids_inside(schema, 508)]
    return tuple(
        _Summary(**{name: value for name, value in zip(names, _values(record), strict=True) if name})
        for record in records
    )


def _values(record: Any) -> list[Any]:
    return [record[index] for index in range(len(record))]


def _ids_inside(schema: "Schema", struct_id: int) -> list[int]:
    struct: Any = schema.find_field(struct_id).field_type
    return [field.field_id for field in struct.fields]
