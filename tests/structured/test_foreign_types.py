"""Types that not every writer or reader has: UUIDs, intervals, rows without columns."""

import ctypes
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import RowDataset, StructuredDataset, scan_files
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils.errors import ConfigError, SchemaError

IDS = [UUID(int=n << 64) for n in range(6)]


def read(path: Path, file_format: str = "parquet", **options: Any) -> list[Any]:
    settings = {"num_workers": 0, "output_format": "dict", **options}
    return list(StructuredDataset.create_dataloader(path, file_format, **settings)[0])


def uuids(ids: list[UUID]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array([each.bytes for each in ids], pa.binary(16)))


@pytest.mark.parametrize("is_of_arrow", [False, True], ids=["another writer", "arrow"])
@pytest.mark.parametrize("has_sidecar", [False, True])
def test_uuids_are_uuids_whoever_wrote_the_file(tmp_path: Path, is_of_arrow: bool, has_sidecar: bool) -> None:
    items = pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), uuids(IDS))
    raw = pa.array([each.bytes for each in IDS], pa.binary(16))
    text = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"] * 6))
    table = pa.table({"row": range(6), "id": uuids(IDS), "items": items, "raw": raw, "text": text})
    if not is_of_arrow:
        table = table.set_column(4, "text", pa.array(["{}"] * 6))
    footers: list[Any] = []
    options: dict[str, Any] = {"metadata_collector": footers} if has_sidecar else {}
    for number, name in enumerate(["a.parquet", "b.parquet"]):
        part = table.slice(3 * number, 3)
        pq.write_table(part, tmp_path / name, store_schema=is_of_arrow, **options)
        if has_sidecar:
            footers[-1].set_file_path(name)
    if has_sidecar:
        pq.write_metadata(pq.read_schema(tmp_path / "a.parquet"), tmp_path / "_metadata", metadata_collector=footers)
    assert decode_schema(scan_files(tmp_path).schema).field("id").type == pa.uuid()
    (batch,) = read(tmp_path)
    assert batch["id"] == IDS
    assert batch["items"] == [[each] for each in IDS]
    assert batch["raw"] == [each.bytes for each in IDS]
    (batch,) = read(tmp_path, columns=["id"], shuffle_rows=3, output_format="torch")
    assert sorted(batch["id"]) == IDS
    (batch,) = read(tmp_path, columns=["id"], filters=pc.field("row") > 3)
    assert batch["id"] == IDS[4:]
    (batch,) = read(tmp_path, columns=["row"], filters=pc.field("id").cast(pa.binary(16)) == IDS[2].bytes)
    assert batch["row"] == [2]


def with_c_format(batch: pa.RecordBatch, name: str, c_format: bytes, kept: list[Any]) -> pa.RecordBatch:
    """The batch with another type of a column, by its name in Arrow's C data interface; kept: must outlive it."""
    schema, array = batch.__arrow_c_array__()
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    words = ctypes.POINTER(ctypes.c_void_p)
    # ArrowSchema: format, name, metadata, flags, n_children, children.
    children = ctypes.cast(ctypes.cast(address(schema, b"arrow_schema"), words)[5], words)
    kept.append(ctypes.create_string_buffer(c_format))
    ctypes.cast(children[batch.schema.get_field_index(name)], words)[0] = ctypes.addressof(kept[-1])
    return pa.RecordBatch._import_from_c_capsule(schema, array)


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_intervals_that_pyarrow_has_no_arrays_of_are_refused_where_they_are_asked_for(
    tmp_path: Path, make: Any, output_format: str
) -> None:
    kept: list[Any] = []
    batch = pa.record_batch({"x": [1, 2], "months": pa.array([1, -2], pa.int32()), "days": pa.array([1, 2])})
    batch = with_c_format(with_c_format(batch, "months", b"tiM", kept), "days", b"tiD", kept)
    with make(str(tmp_path / "a.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    for name, kind in {"months": "month_interval", "days": "day_time_interval"}.items():
        with pytest.raises(
            ConfigError, match=f"column '{name}', but pyarrow .* cannot read its type, {kind}: write it"
        ):
            read(tmp_path, "arrow", columns=["x", name], output_format=output_format)
    assert list(RowDataset(tmp_path, "arrow", output_format="dict")[0]) == ["x"]
    for columns in (["x"], None):
        (batch,) = read(tmp_path, "arrow", columns=columns)
        assert batch == {"x": [1, 2]}


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_intervals_of_months_days_and_nanoseconds_are_delivered(tmp_path: Path, output_format: str) -> None:
    table = pa.table({"gap": pa.array([(1, 2, 3), None, (0, 0, -1)], pa.month_day_nano_interval())})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    (batch,) = read(tmp_path, "arrow", output_format=output_format)
    gaps = batch.column("gap").to_pylist() if output_format == "arrow" else batch["gap"]
    assert gaps == table["gap"].to_pylist()


TIMES = [datetime(1, 1, 1), datetime(9999, 12, 31), None, datetime(2020, 1, 1, 0, 0, 0, 123456)]


@pytest.mark.parametrize("store_schema", [False, True])
@pytest.mark.parametrize("row_filter", [None, pc.field("row") >= 0, pc.field("t") < datetime(9999, 1, 1)])
def test_int96_timestamps_of_any_year_are_read_as_microseconds_if_asked(
    tmp_path: Path, store_schema: bool, row_filter: Any
) -> None:
    times = pa.array(TIMES, pa.timestamp("us"))
    items = pa.ListArray.from_arrays([0, 1, 2, 3, 4], times)
    table = pa.table({"row": range(4), "t": times, "items": items})
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        pq.write_table(table, tmp_path / name, use_deprecated_int96_timestamps=True, store_schema=store_schema)
    with pytest.raises(SchemaError, match=r'scan_files\(\.\.\., int96_unit="us"\)'):
        read(tmp_path)
    inventory = scan_files(tmp_path, filters=row_filter, int96_unit="us")
    assert decode_schema(inventory.schema).field("t").type == pa.timestamp("us")
    rows = [row for batch in read(tmp_path, inventory=inventory, filters=row_filter) for row in batch["t"]]
    wanted = table if row_filter is None else table.filter(row_filter)
    assert rows == wanted["t"].to_pylist() * 3
    (batch,) = read(tmp_path, inventory=scan_files(tmp_path / "a.parquet", int96_unit="us"), columns=["items"])
    assert batch["items"] == [[each] for each in TIMES]


def test_int96_timestamps_in_structs_are_nanoseconds_or_refused_with_their_names(tmp_path: Path) -> None:
    for year in (2020, 9999):
        times = pa.array([datetime(2020, 1, 2), None, datetime(year, 1, 1)], pa.timestamp("us"))
        path = tmp_path / f"{year}.parquet"
        structs = pa.StructArray.from_arrays([pa.array(range(3)), times], ["row", "t"])
        pq.write_table(pa.table({"s": structs}), path, use_deprecated_int96_timestamps=True, store_schema=False)
    (batch,) = read(tmp_path / "2020.parquet", nulls="fill", output_format="torch")
    assert batch["s"]["t"].tolist() == [1577923200 * 10**9, 0, 1577836800 * 10**9]
    with pytest.raises(SchemaError, match=r'column s\.t has timestamps .*int96_unit="us"'):
        read(tmp_path / "9999.parquet", nulls="fill", output_format="torch")


def test_an_unknown_unit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"int96_unit='ms': pass .ns. or .us."):
        scan_files(tmp_path, int96_unit="ms")


@pytest.mark.parametrize("output_format", ["torch", "arrow"])
@pytest.mark.parametrize("kind", ["file", "stream", "json"])
def test_rows_without_columns_are_counted(tmp_path: Path, kind: str, output_format: str) -> None:
    batch = pa.record_batch({"x": [1, 2]}).select([])
    path = tmp_path / "a"
    if kind == "json":
        path.write_text("{}\n" * 4)
    else:
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(str(path), batch.schema) as writer:
            writer.write_batch(batch)
            writer.write_batch(batch)
    file_format = "json" if kind == "json" else "arrow"
    for options in ({}, {"shuffle_rows": 4}):
        batches = read(path, file_format, batch_size=3, output_format=output_format, **options)
        assert [each.num_rows for each in batches] == [3, 1]
    assert len(RowDataset(path, file_format)) == 4
