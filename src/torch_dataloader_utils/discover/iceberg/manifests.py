"""Manifest lists and manifests: which files a snapshot has, with all fields up to format version 3.

pyiceberg 0.12 reads manifests by the schema of version 2, which has no deletion vectors; here fields are asked for by
their ids, and exactly those that are used (Iceberg spec, "Manifests"). Sizes in manifests may be wrong and are not
looked at.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._store import Buffer, redact
from torch_dataloader_utils.discover.faults import corrupt
from torch_dataloader_utils.discover.iceberg.avro import read_records
from torch_dataloader_utils.discover.iceberg.faults import parsing

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

FORMATS = {"parquet": FileFormat.PARQUET, "orc": FileFormat.ORC}
"""Formats of data and equality delete files that are read, by their names in manifests."""

_ADDED, _DELETED = 1, 2
_PARTITION_ID, _DATA_FILE_ID = 102, 2

# Field ids, in the order in which they are taken apart below.
_LIST_FIELDS = (500, 502, 517, 515, 503, 507)
_ENTRY_FIELDS = (0, 1, 3, _DATA_FILE_ID)
_FILE_FIELDS = (134, 100, 101, _PARTITION_ID, 103, 132, 135, 143, 144, 145)
_STATISTICS_NAMES = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
_STATISTICS = (109, 110, 137, 125, 128)
_SUMMARY_NAMES = {509: "contains_null", 518: "contains_nan", 510: "lower_bound", 511: "upper_bound"}


class Content(IntEnum):
    """What a file in a manifest holds."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One entry of a manifest list. partitions: field summaries, as pyiceberg's manifest evaluator reads them."""

    manifest_path: str
    spec_id: int
    holds_deletes: bool
    sequence_number: int
    snapshot_id: int | None
    partitions: tuple[Any, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManifestEntry:
    """One live file. Statistics have the names that pyiceberg's metrics evaluator looks for.

    partition: (partition field id, value) in the file's spec, values as stored (days, microseconds).
    sequence_number: the data sequence number, inherited where the entry has none.
    referenced_data_file, content_offset, content_size: of deletion vectors.
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


def read_manifest_list(path: str, data: Buffer) -> list[Manifest]:
    """The manifests of a snapshot, in the order of the list."""
    with parsing(path, "manifest list"):
        schema, records = read_records(data, _LIST_FIELDS)
        return [
            Manifest(
                manifest_path=record[0],
                spec_id=record[1],
                holds_deletes=record[2] == 1,
                sequence_number=record[3] or 0,
                snapshot_id=record[4],
                partitions=None if record[5] is None else _summaries(schema, record[5]),
            )
            for record in records
        ]


def read_manifest(manifest: Manifest, path: str, data: Buffer, *, with_statistics: bool) -> list[ManifestEntry]:
    """The live entries of a manifest.

    path: where the bytes come from, for messages. with_statistics: also the per-column ones, which take most of the
        time and memory.

    Raises:
        CorruptFileError: it does not decode, or an entry has no sequence number it could inherit.
    """
    with parsing(path, "manifest"):
        fields = (*_FILE_FIELDS, *(_STATISTICS if with_statistics else ()))
        file_schema, records = read_records(data, _ENTRY_FIELDS, {_DATA_FILE_ID: fields})
        partition_ids = _ids_inside(file_schema, _PARTITION_ID)
        return list(_entries(manifest, path, partition_ids, records))


def _entries(manifest: Manifest, path: str, partition_ids: Sequence[int], records: Iterator[Any]) -> Iterator[Any]:
    for status, snapshot_id, sequence_number, file in records:
        if status == _DELETED:
            continue
        # Only added entries inherit; version 1 has no sequence numbers, and all count as 0.
        if sequence_number is None and (status == _ADDED or manifest.sequence_number == 0):
            sequence_number = manifest.sequence_number
        if sequence_number is None:
            raise corrupt(path, f"the entry of {redact(file[1])} has no sequence number")
        yield ManifestEntry(
            content=Content(file[0] or 0),
            path=file[1],
            file_format=str(file[2]).lower(),
            spec_id=manifest.spec_id,
            partition=tuple(zip(partition_ids, _values(file[3]), strict=True)),
            sequence_number=sequence_number,
            is_added=status == _ADDED,
            snapshot_id=manifest.snapshot_id if snapshot_id is None else snapshot_id,
            record_count=file[4],
            split_offsets=tuple(file[5] or ()),
            equality_ids=tuple(file[6] or ()),
            referenced_data_file=file[7],
            content_offset=file[8],
            content_size=file[9],
            **dict(zip(_STATISTICS_NAMES, file[10:] or [None] * 5, strict=True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary:
    """A partition field summary, as pyiceberg's manifest evaluator reads it."""

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
