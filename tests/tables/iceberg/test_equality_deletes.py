"""Equality deletes: which keys equal which, of which files, in which partitions, after schema changes too."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from tests.effort import effort
from tests.tables.iceberg.arrow_memory import counted_memory
from tests.tables.iceberg.reading import in_order, read_rows
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import scan_iceberg
from torch_dataloader_utils._store import Store, StoreAccess, open_store
from torch_dataloader_utils.errors import SchemaError
from torch_dataloader_utils.tables.iceberg.equality_deletes import KeySet, deleted_by_keys
from torch_dataloader_utils.tables.iceberg.stored_fields import FileColumn

ROWS = [{"id": i, "name": None if i % 7 == 0 else f"n{i % 5}", "x": i / 2} for i in range(60)]


def people(root: Path, **options: Any) -> TableWriter:
    table = TableWriter(root, **options)
    table.evolve(field_of(1, "id", "long"), field_of(2, "name", "string"), field_of(3, "x", "double"))
    return table


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("delete_format", ["parquet", "orc"])
def test_one_key_column_and_nulls_that_equal_nulls(tmp_path: Path, file_format: str, delete_format: str) -> None:
    table = people(tmp_path)
    table.append(ROWS, rows_per_group=16, file_format=file_format)
    table.delete_equal([2], [{"name": "n1"}, {"name": None}], file_format=delete_format)
    live = [row for row in ROWS if row["name"] not in ("n1", None)]
    assert in_order(read_rows(table.metadata)) == in_order(live)
    assert scan_iceberg(table.metadata).num_rows == len(live)


def test_several_key_columns_must_all_be_equal_and_need_not_be_projected(tmp_path: Path) -> None:
    table = people(tmp_path)
    table.append(ROWS, rows_per_group=16)
    table.delete_equal([1, 2], [{"id": 3, "name": "n3"}, {"id": 4, "name": "n3"}, {"id": 7, "name": None}])
    live = [row for row in ROWS if row["id"] not in (3, 7)]
    assert in_order(read_rows(table.metadata)) == in_order(live)
    assert sorted(row["x"] for row in read_rows(table.metadata, columns=["x"], num_ranks=3)) == [
        row["x"] for row in live
    ]


def test_only_older_files_are_touched_and_different_keys_mix(tmp_path: Path) -> None:
    table = people(tmp_path)
    table.append(ROWS[:30])
    table.delete_equal([1], [{"id": 5}, {"id": 35}])
    table.append(ROWS[30:])
    table.delete_equal([2], [{"name": "n2"}])
    path = table.append([{"id": 2, "name": "n2", "x": 0.0}, {"id": 99, "name": "n9", "x": 0.0}])
    table.delete_positions([(path, 1)])
    live = [row for row in ROWS if row["name"] != "n2" and row["id"] != 5]
    assert in_order(read_rows(table.metadata)) == in_order([*live, {"id": 2, "name": "n2", "x": 0.0}])


def test_a_delete_in_the_same_snapshot_as_the_file_does_not_touch_it(tmp_path: Path) -> None:
    table = people(tmp_path)
    table.append(ROWS[:5])
    table.delete_equal([1], [{"id": 1}])
    table.live = [type(each)(**{**vars(each), "sequence_number": 4}) for each in table.live]
    table.append(ROWS[5:6])
    assert len(read_rows(table.metadata)) == 6


def test_deletes_work_in_their_partition_and_unpartitioned_ones_everywhere(tmp_path: Path) -> None:
    table = people(tmp_path)
    table.append([{"id": 1, "name": "a", "x": 0.0}, {"id": 3, "name": "a", "x": 0.0}])  # spec 0: unpartitioned
    table.partition_by((2, "identity"))
    table.append([{"id": 1, "name": "b", "x": 0.0}, {"id": 2, "name": "b", "x": 0.0}], partition=("b",))
    table.append([{"id": 1, "name": "c", "x": 0.0}, {"id": 2, "name": "c", "x": 0.0}], partition=("c",))
    table.delete_equal([1], [{"id": 1}], partition=("b",))
    seen = sorted((row["id"], row["name"]) for row in read_rows(table.metadata))
    assert seen == [(1, "a"), (1, "c"), (2, "b"), (2, "c"), (3, "a")]
    table.delete_equal([1], [{"id": 2}], spec_id=0)  # global
    assert sorted((row["id"], row["name"]) for row in read_rows(table.metadata)) == [(1, "a"), (1, "c"), (3, "a")]


@pytest.mark.parametrize("value", [float("nan"), -0.0, 1.5, None])
def test_deletes_work_in_a_partition_of_floats(tmp_path: Path, value: float | None) -> None:
    table = people(tmp_path)
    table.partition_by((3, "identity"))
    for number, x in enumerate((float("nan"), 0.0, -0.0, 1.5, None)):
        table.append([{"id": number, "name": "a", "x": x}], partition=(x,))
    table.delete_equal([2], [{"name": "a"}], partition=(value,))
    places = {"nan": 0, "-0.0": 2, "1.5": 3, "None": 4}
    assert sorted(row["id"] for row in read_rows(table.metadata)) == sorted({*range(5)} - {places[repr(value)]})


def test_keys_that_were_promoted_renamed_or_dropped_since(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "int"), field_of(2, "name", "string"))
    table.append([{"id": i, "name": f"n{i}"} for i in range(6)])
    table.delete_equal([1], [{"id": 1}])
    table.delete_equal([2], [{"name": "n2"}])
    table.evolve(field_of(1, "number", "long"))
    table.append([{"number": i} for i in range(6, 8)])
    table.delete_equal([1], [{"number": 3}])
    assert sorted(row["number"] for row in read_rows(table.metadata)) == [0, 4, 5, 6, 7]


def test_a_key_column_that_a_file_does_not_have_is_null_or_its_default_there(tmp_path: Path) -> None:
    table = TableWriter(tmp_path, format_version=3)
    table.evolve(field_of(1, "id", "long"))
    table.append([{"id": 0}, {"id": 1}])
    table.evolve(field_of(1, "id", "long"), field_of(2, "kind", "string"), field_of(3, "v", "int", initial_default=7))
    table.append([{"id": 2, "kind": "a", "v": 7}, {"id": 3, "kind": None, "v": 8}])
    table.delete_equal([1, 2], [{"id": 0, "kind": None}, {"id": 2, "kind": None}])
    assert sorted(row["id"] for row in read_rows(table.metadata)) == [1, 2, 3]
    table.delete_equal([3], [{"v": 7}])
    assert read_rows(table.metadata) == [{"id": 3, "kind": None, "v": 8}]


def test_a_delete_file_without_its_key_column_is_refused(tmp_path: Path) -> None:
    struct = StructType(field_of(3, "x", "long"), field_of(4, "y", "long"))
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"), NestedField(2, "s", struct, required=False))
    table.append([{"id": 1, "s": {"x": 5}}, {"id": 2, "s": {"x": None}}, {"id": 3, "s": None}])
    beside = NestedField(2, "s", StructType(field_of(4, "y", "long")), required=False)
    table.delete_equal([2], [{"s": {"y": 5}}], schema=Schema(beside))
    deletes = table.live[-1]
    for key_id in (1, 3):
        deletes.arguments["equality_ids"] = [key_id]
        table.append([])
        with pytest.raises(SchemaError, match=f"lacks its key column of field id {key_id}"):
            scan_iceberg(table.metadata)


def test_nothing_is_deleted_by_an_empty_file(tmp_path: Path) -> None:
    table = people(tmp_path)
    table.append(ROWS)
    table.delete_equal([1, 2], [])
    assert len(read_rows(table.metadata)) == len(ROWS)


keys = st.lists(
    st.tuples(
        st.none() | st.integers(0, 3), st.none() | st.sampled_from("abc"), st.sampled_from([None, 0.5, float("nan")])
    ),
    max_size=12,
)


@given(wanted=keys, rows=keys)
@settings(max_examples=effort(100))
def test_a_key_set_contains_what_a_set_of_tuples_contains(wanted: list[Any], rows: list[Any]) -> None:
    def columns(values: list[Any]) -> list[pa.Array]:
        parts = list(zip(*values, strict=True)) if values else [(), (), ()]
        return [pa.array(part, kind) for part, kind in zip(parts, (pa.int64(), pa.string(), pa.float64()), strict=True)]

    def plain(row: Any) -> Any:
        return tuple("nan" if value != value else value for value in row)

    seen = KeySet.of(columns(wanted)).contains(columns(rows))
    assert np.array_equal(seen, [plain(row) in {plain(each) for each in wanted} for row in rows])


@given(
    wanted=st.lists(st.integers(-128, 127), max_size=20),
    rows=st.lists(st.none() | st.integers(-128, 127), max_size=20),
    also=st.sampled_from([(), (3, 4)]),
)
@settings(max_examples=effort(100))
def test_a_key_set_of_integers_contains_what_a_set_does(
    wanted: list[int], rows: list[int | None], also: tuple[int, ...]
) -> None:
    def columns(values: list[Any]) -> list[pa.Array]:
        others = [pa.array(np.arange(len(values)) % each, pa.uint64()) for each in also]
        return [pa.array(values, pa.int8()), *others]

    keys = set(zip(*(column.to_pylist() for column in columns(wanted)), strict=True))
    asked = zip(*(column.to_pylist() for column in columns(rows)), strict=True)
    assert KeySet.of(columns(wanted)).contains(columns(rows)).tolist() == [key in keys for key in asked]


def test_to_look_up_integers_takes_no_memory_for_each_key() -> None:
    keys = KeySet.of([pa.array(np.random.default_rng(0).permutation(1_000_000))])
    rows = pa.array(np.arange(1000))
    with counted_memory() as counted:
        assert keys.contains([rows]).all()
    assert counted.max_memory() < keys.nbytes // 100


def test_uuids_are_keys(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "uuid"), field_of(2, "x", "int"))
    keys = [UUID(int=number).bytes for number in range(4)]
    table.append([{"id": key, "x": number} for number, key in enumerate([*keys, None])], rows_per_group=2)
    table.delete_equal([1], [{"id": keys[1]}, {"id": None}])
    table.delete_equal([1, 2], [{"id": keys[2], "x": 2}, {"id": keys[3], "x": 2}])
    assert sorted(row["x"] for row in read_rows(table.metadata)) == [0, 3]


def test_keys_of_a_file_without_ids_follow_the_present_name_mapping(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"), field_of(2, "b", "long"))
    table.append([{"a": 1, "b": 2}, {"a": 2, "b": 1}])
    keys = table.delete_equal([1], [])
    pq.write_table(pa.table({"x": [1], "y": [2]}), keys)
    for name, left in (("x", {"a": 2, "b": 1}), ("y", {"a": 1, "b": 2})):
        table.properties["schema.name-mapping.default"] = json.dumps([{"field-id": 1, "names": [name]}])
        table.write_metadata()
        assert read_rows(table.metadata) == [left]


def test_each_delete_file_is_read_once_however_many_data_files_it_applies_to(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"))
    for number in range(6):
        table.append([{"id": number}, {"id": number + 1}])
        table.delete_equal([1], [{"id": number}])
    inventory = scan_iceberg(table.metadata, count_rows=False)
    opened = []

    def open_counted(path: str) -> Store:
        opened.append(path)
        return open_store(path, StoreAccess())

    columns = {1: FileColumn(name="id", index=0, type=pa.int64())}
    batch = pa.record_batch({"id": range(7)})
    deleted = [
        deleted_by_keys(inventory.task(0), batch, columns, extra, open_counted).tolist()
        for extra in inventory.files.extras
    ]
    assert deleted == [list(range(number, 6)) for number in range(6)]
    assert len(opened) == len(set(opened)) == 6
