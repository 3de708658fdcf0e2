"""Table metadata in a form that pyiceberg parses, with the parts beside it that pyiceberg would refuse the table for.

    stored JSON ─► acceptable JSON ─► pyiceberg's TableMetadata ─► Beside, from one of its properties

A type, a default or a transform that pyiceberg does not know costs its column, not the table. Metadata from a file and
(see `metadata_io`) from a catalog all come through here. Damaged metadata stays as it is, and pyiceberg refuses it.
Source: Iceberg spec, "Table Metadata", Appendix C.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_PROPERTY = "torch-dataloader-utils.beside"
GZIP = b"\x1f\x8b"
"""First bytes of a metadata file that is compressed."""

# Version 1 did not number partition fields; its writers counted from this number.
_FIRST_PARTITION_ID = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Parts of the metadata that pyiceberg's classes have no place for.

    types: Types of fields that are not read, by field id. defaults: Initial defaults by field id, as JSON. manifests:
    Paths of the manifests of snapshots that have no manifest list (version 1), by snapshot id.
    """

    types: dict[int, str] = field(default_factory=dict)
    defaults: dict[int, Any] = field(default_factory=dict)
    manifests: dict[int, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: "TableMetadata") -> "Beside":
        """Return the parts that `acceptable` kept in this metadata; empty parts for other metadata."""
        stored = json.loads(metadata.properties.get(_PROPERTY, "{}"))
        return cls(**{name: {int(key): value for key, value in part.items()} for name, part in stored.items()})


def acceptable(data: bytes) -> bytes:
    """Return the text of a metadata file as pyiceberg parses it."""
    return _changed(data, lambda stored: stored)


def acceptable_answer(data: bytes) -> bytes:
    """Return the answer of a REST catalog with its metadata as pyiceberg parses it."""
    return _changed(data, lambda stored: stored.get("metadata"))


def _changed(data: bytes, part: Callable[[dict[str, Any]], Any]) -> bytes:
    try:
        stored = json.loads(data)
        metadata = part(stored) if isinstance(stored, dict) else None
        if not isinstance(metadata, dict) or "format-version" not in metadata:
            return data
        _accept(metadata)
        return json.dumps(stored).encode()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return data


def _accept(metadata: dict[str, Any]) -> None:
    beside = Beside()
    is_old = metadata["format-version"] == 1
    # The current schema comes last: its types are read, so its defaults have to win.
    schemas = [*_dicts([metadata.get("schema")]), *_dicts(metadata.get("schemas"))]
    for schema in sorted(schemas, key=lambda each: each.get("schema-id") == metadata.get("current-schema-id")):
        _accept_fields(schema.get("fields"), beside)
    specs = [metadata.get("partition-spec"), *(spec.get("fields") for spec in _dicts(metadata.get("partition-specs")))]
    for spec in specs:
        for number, part in enumerate(_dicts(spec)):
            _accept_part(part, _FIRST_PARTITION_ID + number if is_old else None)
    for snapshot in _dicts(metadata.get("snapshots")):
        _accept_snapshot(snapshot, beside, is_old=is_old)
    # Sort orders and statistics are not used here, and pyiceberg does not know all of them from later writers.
    metadata.update({"sort-orders": [{"order-id": 0, "fields": []}], "default-sort-order-id": 0})
    for name in ("sort-order", "statistics", "partition-statistics"):
        metadata.pop(name, None)
    kept = {name: part for name in Beside.__slots__ if (part := getattr(beside, name))}
    properties = metadata.get("properties") or {}
    metadata["properties"] = {key: value for key, value in properties.items() if key != _PROPERTY}
    if kept:
        metadata["properties"][_PROPERTY] = json.dumps(kept)


def _dicts(values: Any) -> Iterator[dict[str, Any]]:
    return (each for each in (values if isinstance(values, list) else ()) if isinstance(each, dict))


def _accept_fields(fields: Any, beside: Beside) -> None:
    for each in _dicts(fields):
        each.pop("write-default", None)
        default = each.pop("initial-default", None)
        if default is not None:
            beside.defaults[int(each["id"])] = default
        each["type"] = _accepted_type(each.get("type"), each.get("id"), beside)


def _accepted_type(kind: Any, field_id: Any, beside: Beside) -> Any:
    match kind:
        case {"type": "struct"}:
            _accept_fields(kind.get("fields"), beside)
        case {"type": "list"}:
            kind["element"] = _accepted_type(kind.get("element"), kind.get("element-id"), beside)
        case {"type": "map"}:
            for part in ("key", "value"):
                kind[part] = _accepted_type(kind.get(part), kind.get(f"{part}-id"), beside)
        case str(name) | {"type": str(name)} if not (isinstance(kind, str) and _is_type(name)):
            beside.types[int(field_id)] = name
            return "unknown"
    return kind


@cache
def _is_type(name: str) -> bool:
    from pyiceberg.types import IcebergType

    return _parses(lambda: IcebergType.model_validate(name))


@cache
def _is_transform(name: str) -> bool:
    from pyiceberg.transforms import parse_transform

    return _parses(lambda: parse_transform(name))


def _parses(parse: Callable[[], Any]) -> bool:
    try:
        parse()
    except Exception:  # noqa: BLE001 - any error of pyiceberg or pydantic: the text is not known
        return False
    return True


def _accept_part(part: dict[str, Any], number: int | None) -> None:
    """Make a field of a partition spec acceptable. number: Id for a field without an id, where that is allowed."""
    if number is not None:
        part.setdefault("field-id", number)
    sources = part.pop("source-ids", None) or [part.get("source-id")]
    part["source-id"] = sources[0]
    # The rows that are read stay the same: files are not judged by an unknown transform.
    if len(sources) > 1 or not _is_transform(str(part.get("transform"))):
        part["transform"] = "unknown"


def _accept_snapshot(snapshot: dict[str, Any], beside: Beside, *, is_old: bool) -> None:
    if is_old and "manifest-list" not in snapshot and isinstance(snapshot.get("manifests"), list):
        beside.manifests[int(snapshot["snapshot-id"])] = [str(path) for path in snapshot["manifests"]]
        snapshot["manifest-list"] = ""
    summary = snapshot.get("summary")
    if isinstance(summary, dict) and summary.get("operation") not in ("append", "replace", "overwrite", "delete"):
        summary["operation"] = "overwrite"  # for increments: a change that may be more than an append
