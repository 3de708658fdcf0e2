"""An inventory as an Arrow table and JSON values: one row for each data file, with its row groups as nested lists.

The JSON values hold everything else, among it each distinct partition value once, typed, in Arrow streams.
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.inventory import FileFormat, FileTable, GroupTable, Inventory, PartitionColumn
from torch_dataloader_utils._core.strings import StringColumn
from torch_dataloader_utils._store import redact

_GROUP_COLUMNS = tuple(name for name in GroupTable.__slots__ if name != "file")
_GROUP_TYPES = {name: np.dtype(np.int32 if name == "ordinal" else np.int64) for name in _GROUP_COLUMNS}
_CODES = "partition_codes."


def to_table(inventory: Inventory) -> tuple[pa.Table, dict[str, Any]]:
    """The files and row groups of an inventory, and all else about it as JSON values."""
    files, groups = inventory.files, inventory.groups
    offsets = np.searchsorted(groups.file, np.arange(len(files) + 1)).astype(np.int32)
    columns: dict[str, pa.Array] = {
        "path": _strings(files.paths),
        "size": pa.array(files.sizes),
        "identity": _strings(files.identities),
        "format": pa.array(files.formats),
    }
    for column in files.partitions:
        columns[_CODES + column.name] = pa.array(column.codes)
    for name in _GROUP_COLUMNS:
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(getattr(groups, name)))
    about = {
        "source": redact(inventory.source),
        "row_filter": inventory.row_filter,
        "snapshot": inventory.snapshot,
        "notes": inventory.notes,
        "projection": inventory.projection,
        "schema": _text(inventory.schema),
        "partitions": [[column.name, _text(_values(inventory, column))] for column in files.partitions],
    }
    return pa.table(columns), about


def from_table(table: pa.Table, about: Mapping[str, Any]) -> Inventory:
    """The inventory that `to_table` took apart.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException: the parts do not fit together.
    """
    files = FileTable(
        paths=_string_column(table["path"]),
        sizes=_numbers(table["size"]),
        identities=_string_column(table["identity"]),
        formats=_numbers(table["format"]),
        partitions=tuple(
            PartitionColumn(name=name, values=_read_values(values), codes=_numbers(table[_CODES + name]))
            for name, values in about["partitions"]
        ),
    )
    lists = {name: _one_chunk(table[name]) for name in _GROUP_COLUMNS}
    counts = lists["ordinal"].value_lengths().to_numpy()
    if not all(np.array_equal(each.value_lengths().to_numpy(zero_copy_only=False), counts) for each in lists.values()):
        raise ValueError("its lists differ in length")
    groups = GroupTable(
        file=np.repeat(np.arange(len(files), dtype=np.int32), counts),
        **{name: lists[name].flatten().to_numpy() for name in _GROUP_COLUMNS},
    )
    projection = about["projection"]
    inventory = Inventory(
        files=files,
        groups=groups,
        schema=_bytes(about["schema"]),
        source=about["source"],
        row_filter=about["row_filter"],
        projection=None if projection is None else tuple(projection),
        # Early versions saved neither.
        snapshot=about.get("snapshot", ""),
        notes=tuple(about.get("notes", ())),
    )
    _check(inventory)
    return inventory


def _check(inventory: Inventory) -> None:
    """Raises ValueError, or an error of Arrow's, unless all parts have their types and fit together."""
    files, groups = inventory.files, inventory.groups
    for name, wanted in _GROUP_TYPES.items():
        if getattr(groups, name).dtype != wanted:
            raise ValueError(f"{name} is no {wanted}")
    if files.sizes.dtype != np.int64 or files.formats.dtype != np.uint8:
        raise ValueError("sizes and formats have other types")
    if not np.isin(files.formats, list(FileFormat)).all():
        raise ValueError("it names formats that do not exist")
    names = decode_schema(inventory.schema).names
    for column in files.partitions:
        if column.name not in names or column.codes.dtype != np.int32:
            raise ValueError(f"partition column {column.name!r} is not in the schema, or its codes are no int32")
        if len(column.codes) and not (column.codes.min() >= 0 and column.codes.max() < len(column.values)):
            raise ValueError(f"partition column {column.name!r} has codes without a value")
    about = (inventory.source, inventory.row_filter, inventory.snapshot)
    if not all(isinstance(text, str) for text in (*about, *(inventory.projection or ()), *inventory.notes)):
        raise ValueError("source, filter, projection, snapshot and notes are no text")


def _values(inventory: Inventory, column: PartitionColumn) -> bytes:
    field = decode_schema(inventory.schema).field(column.name)
    batch = pa.record_batch([pa.array(column.values, field.type)], names=["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read_values(text: str) -> tuple[Any, ...]:
    with pa.ipc.open_stream(_bytes(text)) as reader:
        values = reader.read_all().column("value")
    values.validate(full=True)
    return tuple(values.to_pylist())


def _strings(column: StringColumn) -> pa.Array:
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(np.ascontiguousarray(column.data))]
    return pa.Array.from_buffers(pa.large_string(), len(column), buffers)


def _string_column(column: pa.ChunkedArray) -> StringColumn:
    array = _one_chunk(column).cast(pa.large_string())
    array.validate(full=True)
    if array.null_count:
        raise ValueError("a text is missing")
    _, offsets, data = array.buffers()
    starts = (
        np.frombuffer(offsets, dtype=np.int64, count=len(array) + 1, offset=8 * array.offset)
        if len(array)
        else np.zeros(1, np.int64)
    )
    text = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, np.uint8)
    return StringColumn(data=text[int(starts[0]) : int(starts[-1])], offsets=starts - starts[0])


def _numbers(column: pa.ChunkedArray) -> Any:
    return _one_chunk(column).to_numpy(zero_copy_only=False)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.chunks else pa.array([], column.type)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
