"""A small writer of Iceberg tables, for what pyiceberg cannot write: deletes of every kind, ORC, files without ids.

Every call makes one snapshot. All live files are listed anew in each: those of earlier snapshots as EXISTING with their
sequence numbers, new ones as ADDED, whose numbers readers must inherit.
"""

import json
import struct
import uuid
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    construct_partition_summaries,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField
from pyroaring import BitMap

PATH_ID, POSITION_ID = 2147483546, 2147483545
_IO = PyArrowFileIO()


@dataclass(frozen=True)
class LiveFile:
    """One entry of the next manifest."""

    content: DataFileContent
    path: str
    arguments: dict[str, Any]
    spec_id: int
    partition: tuple[Any, ...]
    sequence_number: int | None
    snapshot_id: int


@dataclass
class TableWriter:
    """A table under `root`; `metadata` is the path of its newest metadata file."""

    root: Path
    format_version: int = 2
    path_prefix: str | None = None  # how the metadata spells the root
    with_manifest_metadata: bool = False  # many writers leave out what readers can find by id
    with_row_ids: bool = False  # row lineage, of format version 3
    next_row_id: int = 0
    schemas: list[Schema] = field(default_factory=list)
    specs: list[PartitionSpec] = field(default_factory=lambda: [PartitionSpec(spec_id=0)])
    live: list[LiveFile] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    refs: dict[str, dict[str, Any]] = field(default_factory=dict)
    table_uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    _counter: int = 0

    def __post_init__(self) -> None:
        for name in ("data", "metadata"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    @property
    def schema(self) -> Schema:
        return self.schemas[-1]

    @property
    def snapshot_id(self) -> int:
        return int(self.snapshots[-1]["snapshot-id"])

    @property
    def metadata(self) -> str:
        return str(self.root / "metadata" / f"v{self._counter}.metadata.json")

    def evolve(self, *fields: NestedField) -> None:
        """The fields of the table from now on."""
        self.schemas.append(Schema(*fields, schema_id=len(self.schemas)))
        if self.snapshots:
            self.write_metadata()

    def partition_by(self, *parts: tuple[int, str]) -> None:
        """From now on partitioned by (source id, transform)."""
        number = len(self.specs) * 10
        fields = [
            PartitionField(
                source_id=source, field_id=1000 + number + i, transform=parse_transform(text), name=f"p{number + i}"
            )
            for i, (source, text) in enumerate(parts)
        ]
        spec = PartitionSpec(*fields, spec_id=len(self.specs))
        self.specs = [spec] if not self.snapshots else [*self.specs, spec]
        if len(self.specs) == 1:
            self.specs = [PartitionSpec(*fields, spec_id=0)]

    # -- data

    def append(self, rows: list[dict[str, Any]], **options: Any) -> str:
        """One data file, see `new_file`; its path as the metadata spells it."""
        entry = self.new_file(rows, **options)
        self.commit("append", [entry])
        return entry.path

    def new_file(
        self,
        rows: list[dict[str, Any]],
        *,
        partition: tuple[Any, ...] = (),
        rows_per_group: int = 1000,
        file_format: str = "parquet",
        without_ids: bool = False,
        without_columns: tuple[str, ...] = (),
        with_split_offsets: bool | int = True,  # a number: so many of them
        schema: Schema | None = None,
    ) -> LiveFile:
        """A data file that is in no snapshot yet."""
        arrow = small_types(schema_to_pyarrow(schema or self.schema, file_format=_format(file_format)))
        arrow = pa.schema([each for each in arrow if each.name not in without_columns])
        table = pa.Table.from_pylist([{k: v for k, v in row.items() if k in arrow.names} for row in rows], arrow)
        if without_ids:
            table = table.cast(_without_metadata(arrow))
        path = self._new_path("data", file_format)
        offsets = write_file(table, self._local(path), file_format, rows_per_group)
        arguments = self._facts(path, len(rows), file_format) | _statistics(schema or self.schema, table)
        if with_split_offsets and offsets:
            arguments["split_offsets"] = offsets if with_split_offsets is True else offsets[:with_split_offsets]
        return self._entry(DataFileContent.DATA, path, arguments, partition)

    def remove(self, *paths: str) -> None:
        """A snapshot without these data files."""
        self.live = [each for each in self.live if each.path not in paths]
        self.commit("overwrite", [])

    # -- deletes

    def delete_positions(
        self,
        deletes: list[tuple[str | None, int]],
        *,
        partition: tuple[Any, ...] = (),
        file_format: str = "parquet",
        referenced: str | None = None,
    ) -> str:
        """One position delete file of (data file path, position) in the order given."""
        schema = Schema(
            NestedField(PATH_ID, "file_path", _type("string"), required=False),
            NestedField(POSITION_ID, "pos", _type("long"), required=False),
        )
        arrow = small_types(schema_to_pyarrow(schema, file_format=_format(file_format)))
        table = pa.table([[path for path, _ in deletes], [position for _, position in deletes]], schema=arrow)
        path = self._new_path("data", file_format)
        write_file(table, self._local(path), file_format, 1000)
        arguments = self._facts(path, len(deletes), file_format)
        if referenced is not None:
            arguments["referenced_data_file"] = referenced
        self.commit("delete", [self._entry(DataFileContent.POSITION_DELETES, path, arguments, partition)])
        return path

    def delete_equal(
        self,
        key_ids: list[int],
        rows: list[dict[str, Any]],
        *,
        partition: tuple[Any, ...] = (),
        spec_id: int | None = None,
        file_format: str = "parquet",
        schema: Schema | None = None,
    ) -> str:
        """One equality delete file: rows equal to one of `rows` in the fields of `key_ids`."""
        schema = schema or self.schema
        chosen = Schema(*(each for each in schema.fields if each.field_id in key_ids))
        arrow = small_types(schema_to_pyarrow(chosen, file_format=_format(file_format)))
        path = self._new_path("data", file_format)
        write_file(pa.Table.from_pylist(rows, arrow), self._local(path), file_format, 1000)
        arguments = self._facts(path, len(rows), file_format) | {"equality_ids": key_ids}
        entry = self._entry(DataFileContent.EQUALITY_DELETES, path, arguments, partition)
        self.commit("delete", [replace(entry, spec_id=entry.spec_id if spec_id is None else spec_id)])
        return path

    def delete_vectors(
        self,
        deletes: dict[str, list[int]],
        *,
        partition: tuple[Any, ...] = (),
        footer_paths: dict[str, str] | None = None,
    ) -> str:
        """One Puffin file with a deletion vector for each data file (format version 3)."""
        path = self._new_path("data", "puffin")
        content, places = puffin({(footer_paths or {}).get(file, file): rows for file, rows in deletes.items()})
        Path(self._local(path)).write_bytes(content)
        entries = []
        for (file, rows), (offset, size) in zip(deletes.items(), places, strict=True):
            arguments = self._facts(path, len(rows), "puffin") | {
                "referenced_data_file": file,
                "content_offset": offset,
                "content_size_in_bytes": size,
            }
            entries.append(self._entry(DataFileContent.POSITION_DELETES, path, arguments, partition))
        gone = set(deletes)
        self.live = [each for each in self.live if each.arguments.get("referenced_data_file") not in gone]
        self.commit("delete", entries)
        return path

    # -- metadata

    def _new_path(self, folder: str, extension: str) -> str:
        self._counter += 1
        root = str(self.root) if self.path_prefix is None else self.path_prefix
        return f"{root}/{folder}/{self._counter:05d}-{uuid.uuid4().hex[:6]}.{extension}"

    def _local(self, path: str) -> str:
        return path if self.path_prefix is None else path.replace(self.path_prefix, str(self.root), 1)

    def _facts(self, path: str, record_count: int, file_format: str) -> dict[str, Any]:
        return {
            "file_format": _format(file_format),
            "record_count": record_count,
            "file_size_in_bytes": Path(self._local(path)).stat().st_size,
        }

    def _entry(
        self, content: DataFileContent, path: str, arguments: dict[str, Any], partition: tuple[Any, ...]
    ) -> LiveFile:
        return LiveFile(
            content=content,
            path=path,
            arguments=arguments,
            spec_id=self.specs[-1].spec_id,
            partition=partition,
            sequence_number=len(self.snapshots) + 1,
            snapshot_id=0,
        )

    def commit(self, operation: str, added: list[LiveFile]) -> None:
        """A snapshot with these files too."""
        sequence_number = len(self.snapshots) + 1
        snapshot_id = 1000 + sequence_number
        self.live += [replace(each, snapshot_id=snapshot_id) for each in added]
        manifests = [
            self._write_manifest(part, spec, snapshot_id, sequence_number, is_delete=is_delete)
            for is_delete in (False, True)
            for spec in self.specs
            for part in self._parts(spec, snapshot_id, is_delete=is_delete)
        ]
        first_row_id = self.next_row_id if self.with_row_ids else None
        self._count_row_ids(snapshot_id)
        self.snapshots.append(
            {
                "snapshot-id": snapshot_id,
                "parent-snapshot-id": snapshot_id - 1 if self.snapshots else None,
                "sequence-number": sequence_number,
                "timestamp-ms": 1_700_000_000_000 + 1000 * sequence_number,
                "manifest-list": self._write_list(manifests, snapshot_id),
                "summary": {"operation": operation},
                "schema-id": self.schema.schema_id,
                "first-row-id": first_row_id,
            }
        )
        self.write_metadata()

    def _count_row_ids(self, snapshot_id: int) -> None:
        """Keep the row ids that readers infer for new data files; later snapshots write them down."""
        for each in self.live if self.with_row_ids else ():
            if each.content == DataFileContent.DATA and "first_row_id" not in each.arguments:
                assert each.snapshot_id == snapshot_id
                each.arguments["first_row_id"] = self.next_row_id
                self.next_row_id += each.arguments["record_count"]

    def _parts(self, spec: PartitionSpec, snapshot_id: int, *, is_delete: bool) -> list[list[LiveFile]]:
        """New and existing live files of one spec and kind, each a manifest of its own."""
        chosen = [
            each
            for each in self.live
            if (each.content != DataFileContent.DATA) == is_delete and each.spec_id == spec.spec_id
        ]
        parts = [[each for each in chosen if (each.snapshot_id == snapshot_id) == is_new] for is_new in (True, False)]
        return [part for part in parts if part]

    def _write_manifest(
        self, part: list[LiveFile], spec: PartitionSpec, snapshot_id: int, sequence_number: int, *, is_delete: bool
    ) -> ManifestFile:
        version = self.format_version
        partition_type = spec.partition_type(self._everything())
        entry_schema = manifest_entry_schema_with_data_file(version, data_file_with_partition(partition_type, version))
        path = self._new_path("metadata", "avro")
        about = {
            "schema": self.schema.model_dump_json(),
            "partition-spec": json.dumps([json.loads(each.model_dump_json()) for each in spec.fields]),
            "partition-spec-id": str(spec.spec_id),
            "format-version": str(version),
            "content": "deletes" if is_delete else "data",
        }
        about = about if self.with_manifest_metadata else {}
        with AvroOutputFile(
            _IO.new_output(self._local(path)), entry_schema, "manifest_entry", entry_schema, about
        ) as writer:
            for each in part:
                is_new = each.snapshot_id == snapshot_id
                data_file = DataFile.from_args(
                    _table_format_version=version,
                    content=each.content,
                    file_path=each.path,
                    partition=Record(*each.partition),
                    **each.arguments,
                )
                entry = ManifestEntry.from_args(
                    _table_format_version=version,
                    status=ManifestEntryStatus.ADDED if is_new else ManifestEntryStatus.EXISTING,
                    snapshot_id=each.snapshot_id,
                    sequence_number=None if is_new else each.sequence_number,
                    file_sequence_number=None if is_new else each.sequence_number,
                    data_file=data_file,
                )
                writer.write_block([entry])
        return ManifestFile.from_args(
            _table_format_version=version,
            manifest_path=path,
            manifest_length=Path(self._local(path)).stat().st_size,
            partition_spec_id=spec.spec_id,
            content=ManifestContent.DELETES if is_delete else ManifestContent.DATA,
            sequence_number=sequence_number,
            min_sequence_number=min(each.sequence_number or 0 for each in part),
            **({"first_row_id": self.next_row_id} if self.with_row_ids and not is_delete else {}),
            added_snapshot_id=snapshot_id,
            added_files_count=sum(each.snapshot_id == snapshot_id for each in part),
            existing_files_count=sum(each.snapshot_id != snapshot_id for each in part),
            deleted_files_count=0,
            added_rows_count=0,
            existing_rows_count=0,
            deleted_rows_count=0,
            partitions=construct_partition_summaries(spec, self._everything(), [Record(*e.partition) for e in part]),
        )

    def _write_list(self, manifests: list[ManifestFile], snapshot_id: int) -> str:
        path = self._new_path("metadata", "avro")
        schema = MANIFEST_LIST_FILE_SCHEMAS[self.format_version]
        metadata = {"snapshot-id": str(snapshot_id), "format-version": str(self.format_version)}
        with AvroOutputFile(_IO.new_output(self._local(path)), schema, "manifest_file", schema, metadata) as writer:
            writer.write_block(manifests)
        return path

    def _everything(self) -> Schema:
        """Every field the table ever had, for partition specs over dropped columns; a name may have come twice."""
        fields = {each.field_id: each for schema in self.schemas for each in schema.fields}
        return Schema(*(each.model_copy(update={"name": f"field-{key}"}) for key, each in fields.items()))

    def write_metadata(self) -> None:
        self._counter += 1
        root = str(self.root) if self.path_prefix is None else self.path_prefix
        current = self.snapshots[-1]["snapshot-id"] if self.snapshots else None
        refs = dict(self.refs)
        if current is not None:
            refs["main"] = {"snapshot-id": current, "type": "branch"}
        metadata = {
            "format-version": self.format_version,
            "table-uuid": self.table_uuid,
            "location": root,
            "last-sequence-number": len(self.snapshots),
            "last-updated-ms": 1_700_000_000_000 + 1000 * len(self.snapshots),
            "last-column-id": max(each.highest_field_id for each in self.schemas),
            "schemas": [json.loads(each.model_dump_json()) for each in self.schemas],
            "current-schema-id": self.schema.schema_id,
            "partition-specs": [json.loads(each.model_dump_json()) for each in self.specs],
            "default-spec-id": self.specs[-1].spec_id,
            "last-partition-id": 2000,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": self.properties,
            "snapshots": [{k: v for k, v in each.items() if v is not None} for each in self.snapshots],
            "snapshot-log": [
                {"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]} for each in self.snapshots
            ],
            "metadata-log": [],
            "refs": refs,
        }
        if current is not None:
            metadata["current-snapshot-id"] = current
        if self.format_version == 3:
            metadata["next-row-id"] = self.next_row_id
        Path(self.metadata).write_text(json.dumps(metadata))


def field_of(field_id: int, name: str, iceberg_type: str, **options: Any) -> NestedField:
    """A field by the name of its primitive type."""
    return NestedField(field_id, name, _type(iceberg_type), required=False, **options)


def numbered(root: Path, **options: Any) -> TableWriter:
    """An empty table of one column, `id`; options are those of TableWriter."""
    table = TableWriter(root, **options)
    table.evolve(field_of(1, "id", "long"))
    return table


def ids(start: int, stop: int) -> list[dict[str, int]]:
    """Rows of such a table."""
    return [{"id": number} for number in range(start, stop)]


def puffin(vectors: dict[str, list[int]]) -> tuple[bytes, list[tuple[int, int]]]:
    """A Puffin file of deletion vectors, and the (offset, size) of each."""
    content = b"PFA1"
    places, blobs = [], []
    for path, rows in vectors.items():
        blob = vector_blob(rows)
        places.append((len(content), len(blob)))
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(rows))},
            }
        )
        content += blob
    payload = json.dumps({"blobs": blobs}).encode()
    content += b"PFA1" + payload + struct.pack("<I", len(payload)) + b"\0\0\0\0" + b"PFA1"
    return content, places


def vector_blob(rows: list[int]) -> bytes:
    """A framed deletion vector."""
    keys = sorted({row >> 32 for row in rows})
    body = b"\xd1\xd3\x39\x64" + struct.pack("<Q", len(keys))
    for key in keys:
        body += struct.pack("<I", key) + BitMap(row & 0xFFFFFFFF for row in rows if row >> 32 == key).serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def write_file(table: pa.Table, path: str, file_format: str, rows_per_group: int) -> list[int]:
    """Writes the table; the offsets of its row groups."""
    if file_format == "orc":
        pa_orc.write_table(table, path, stripe_size=1024, batch_size=rows_per_group)
        return []
    pq.write_table(table, path, row_group_size=rows_per_group, write_page_checksum=True)
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [group.column(0).dictionary_page_offset or group.column(0).data_page_offset for group in groups]


def small_types(schema: pa.Schema) -> pa.Schema:
    """Arrow's plain types for the large ones of pyiceberg, at the top level."""
    plain = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return pa.schema([each.with_type(plain.get(each.type, each.type)) for each in schema])


def _without_metadata(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(each.name, each.type) for each in schema])


def _format(name: str) -> Any:
    return FileFormat[name.upper()]


def _type(name: str) -> Any:
    return NestedField.model_validate({"id": 1, "name": "x", "type": name, "required": False}).field_type


def _statistics(schema: Schema, table: pa.Table) -> dict[str, Any]:
    counts, nulls, lower, upper = {}, {}, {}, {}
    for each in schema.fields:
        if each.name not in table.column_names or not each.field_type.is_primitive:
            continue
        column = table.column(each.name)
        counts[each.field_id], nulls[each.field_id] = len(column), column.null_count
        values = [value for value in column.to_pylist() if value is not None and value == value]
        if values and str(each.field_type) in ("int", "long", "string", "double"):
            lower[each.field_id] = to_bytes(each.field_type, min(values))
            upper[each.field_id] = to_bytes(each.field_type, max(values))
    return {"value_counts": counts, "null_value_counts": nulls, "lower_bounds": lower, "upper_bounds": upper}
