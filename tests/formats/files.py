"""Real files of every format, with the tasks that a scan of them would make."""

import csv
import io
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import orc

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._core.table_file import TableFields, TableFile
from torch_dataloader_utils.tables.projection import ReadSpec


def identity(path: Path) -> str:
    """The identity a scan gives a local file."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def make_task(path: Path, file_format: FileFormat, ordinal: int, rows: int, **changes: Any) -> RowGroupTask:
    """A task of a local file; `changes` overrides fields."""
    facts: dict[str, Any] = {
        "path": str(path),
        "file_size": path.stat().st_size,
        "identity": identity(path),
        "file_format": file_format,
        "ordinal": ordinal,
        "first_row": 0,
        "physical_rows": rows,
        "live_rows": rows,
        "byte_offset": 0,
        "byte_length": 0,
    }
    return RowGroupTask(**(facts | changes))


def make_spec(schema: pa.Schema, **options: Any) -> ReadSpec:
    """A spec over a schema; `options` are the spec's fields."""
    return ReadSpec(schema=schema.serialize().to_pybytes(), **options)


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """The schema as a table's: every field has an id, those in structs and lists too."""
    ids = itertools.count(1)

    def numbered(field: pa.Field) -> pa.Field:
        data_type = field.type
        if pa.types.is_struct(data_type):
            data_type = pa.struct([numbered(each) for each in data_type])
        elif pa.types.is_list(data_type):
            data_type = pa.list_(numbered(data_type.value_field))
        return field.with_type(data_type).with_metadata({"PARQUET:field_id": str(next(ids))})

    return pa.schema([numbered(field) for field in schema])


def deleting(schema: pa.Schema, positions: Iterable[int]) -> TableFile:
    """What a table of this schema (with field ids) says of a data file of which these rows are deleted."""
    table = TableFields(schema=schema.serialize().to_pybytes(), keys=pa.schema([]).serialize().to_pybytes())
    return TableFile(table=table, positions=np.unique(np.array([*positions], dtype=np.int64)))


def parquet_tasks(path: Path, **changes: Any) -> list[RowGroupTask]:
    """One task a row group, rows from the footer."""
    metadata = pq.read_metadata(path)
    tasks, first = [], 0
    for ordinal in range(metadata.num_row_groups):
        rows = metadata.row_group(ordinal).num_rows
        facts: dict[str, Any] = {"first_row": first} | changes
        tasks.append(make_task(path, FileFormat.PARQUET, ordinal, rows, **facts))
        first += rows
    return tasks


def write_parquet(path: Path, table: pa.Table, group_rows: int = 1 << 20, **options: Any) -> list[RowGroupTask]:
    """Writes the table; its tasks."""
    pq.write_table(table, path, row_group_size=group_rows, **options)
    return parquet_tasks(path)


def write_orc(path: Path, table: pa.Table, stripe_bytes: int = 64 << 10, **options: Any) -> list[RowGroupTask]:
    """Writes the table; its tasks, stripe lengths from an independent walk of the file tail.

    With stripes of one byte, an uncompressed file with a column of floats gets a stripe a batch (`batch_size` rows).
    """
    orc.write_table(table, path, stripe_size=stripe_bytes, **options)
    file = orc.ORCFile(path)
    tasks, first = [], 0
    for ordinal, (offset, length, rows) in enumerate(_stripes(file)):
        facts = {"first_row": first, "byte_offset": offset, "byte_length": length}
        tasks.append(make_task(path, FileFormat.ORC, ordinal, rows, **facts))
        first += rows
    assert first == table.num_rows
    return tasks


def write_arrow(path: Path, table: pa.Table, group_rows: int, compression: str | None = None) -> list[RowGroupTask]:
    """Writes the table; its tasks. byte_offset and byte_length span the whole file: a scan knows better."""
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=group_rows)
    file = pa.ipc.open_file(path)
    return [
        make_task(path, FileFormat.ARROW, i, file.get_batch(i).num_rows, first_row=i * group_rows)
        for i in range(file.num_record_batches)
    ]


def write_csv(path: Path, table: pa.Table, group_rows: int) -> list[RowGroupTask]:
    """Writes the table as a header and rows; tasks of `group_rows` rows, the header in none of them."""
    lines = [table.schema.names, *([_text(value) for value in row.values()] for row in table.to_pylist())]
    encoded = []
    for line in lines:
        text = io.StringIO()
        csv.writer(text).writerow(line)
        encoded.append(text.getvalue().encode())
    blocks = [encoded[1:][i : i + group_rows] for i in range(0, max(1, table.num_rows), group_rows)]
    return _write_blocks(path, FileFormat.CSV, blocks, encoded[0])


def write_stream(path: Path, table: pa.Table, group_rows: int) -> list[RowGroupTask]:
    """Writes the table in the Arrow stream format; its tasks."""
    return write_stream_batches(path, table.to_batches(max_chunksize=group_rows), table.schema)


def write_stream_batches(
    path: Path, batches: list[pa.RecordBatch], schema: pa.Schema, *, deltas: bool = False
) -> list[RowGroupTask]:
    """Writes these batches in the Arrow stream format; their tasks, offsets by reading message after message."""
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(path, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    tasks: list[RowGroupTask] = []
    first = 0
    data = pa.BufferReader(path.read_bytes())
    while data.tell() < data.size():
        start = data.tell()
        try:
            message = pa.ipc.read_message(data)
        except EOFError:
            break
        if message.type == "record batch":
            facts = {"first_row": first, "byte_offset": start, "byte_length": data.tell() - start}
            rows = batches[len(tasks)].num_rows
            tasks.append(make_task(path, FileFormat.ARROW, len(tasks), rows, **facts))
            first += rows
    return tasks


def write_json(path: Path, table: pa.Table, group_rows: int) -> list[RowGroupTask]:
    """Writes the table as JSON lines; tasks of `group_rows` rows."""
    lines = [f"{json.dumps(row)}\n".encode() for row in table.to_pylist()]
    blocks = [lines[i : i + group_rows] for i in range(0, max(1, table.num_rows), group_rows)]
    return _write_blocks(path, FileFormat.JSON, blocks, b"")


def oracle(paths: list[Path], schema: pa.Schema, columns: list[str], row_filter: Any) -> list[dict[str, Any]]:
    """What pyarrow.dataset says the rows are."""
    data = ds.dataset([str(path) for path in paths], schema=schema, format="parquet")
    return data.to_table(columns=columns, filter=row_filter, use_threads=False).to_pylist()


def _write_blocks(path: Path, file_format: FileFormat, blocks: list[list[bytes]], header: bytes) -> list[RowGroupTask]:
    path.write_bytes(header + b"".join(line for block in blocks for line in block))
    tasks, offset, first = [], len(header), 0
    for ordinal, block in enumerate(blocks):
        length = sum(map(len, block))
        facts = {"first_row": first, "byte_offset": offset, "byte_length": length}
        tasks.append(make_task(path, file_format, ordinal, len(block), **facts))
        offset, first = offset + length, first + len(block)
    return tasks


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _stripes(file: orc.ORCFile) -> list[tuple[int, int, int]]:
    # FileTail.footer (2).stripes (3): offset 1, index 2, data 3, footer 4, rows 5.
    tail = file.reader.serialized_file_tail()
    footer = next(value for number, value in _fields(bytes(tail)) if number == 2)
    stripes = [dict(_fields(value)) for number, value in _fields(footer) if number == 3]
    return [(s.get(1, 0), s.get(2, 0) + s.get(3, 0) + s.get(4, 0), s.get(5, 0)) for s in stripes]


def _fields(data: bytes) -> list[tuple[int, Any]]:
    found, at = [], 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
            case 1:
                value, at = data[at : at + 8], at + 8
            case 5:
                value, at = data[at : at + 4], at + 4
            case _:
                length, at = _varint(data, at)
                value, at = data[at : at + length], at + length
        found.append((tag >> 3, value))
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
