"""Columns of a Delta table: void ones, types that are not read, names in another case, wrong statistics."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from tests.tables.delta.reading import deltalake_rows, in_order, read_rows
from tests.tables.delta.tables import INTEGER, LONG, STRING, HandTable, add, column
from torch_dataloader_utils import DeltaDataset, scan_delta
from torch_dataloader_utils.errors import CorruptFileError, SchemaError, UnsupportedFeatureError


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def table_of(root: Path, columns: list[dict[str, Any]], *files: pa.Table, **fields: Any) -> HandTable:
    table = HandTable(root)
    partitions = list(fields.pop("partitions", ()))
    root.mkdir(exist_ok=True)
    table.create(columns, *(add(table.file(rows), **fields) for rows in files), partitions=partitions)
    return table


VOID = {
    "top": ("void", [pa.null(), pa.int32(), None], [None, None]),
    "of Spark 2": ("null", [pa.null(), None], [None, None]),
    "struct": (
        struct(column("a"), column("v", "void")),
        [pa.struct({"a": pa.int64(), "v": pa.null()}), pa.struct({"a": pa.int64(), "v": pa.bool_()})],
        [{"a": 1, "v": None}, None],
    ),
    "list": (array("void"), [pa.list_(pa.null()), pa.list_(pa.int8())], [[None, None], []]),
    "map": (
        {"type": "map", "keyType": STRING, "valueType": "void", "valueContainsNull": True},
        [pa.map_(pa.string(), pa.null()), pa.map_(pa.string(), pa.int64())],
        [[("k", None)], []],
    ),
}


@pytest.mark.parametrize("kind", VOID)
def test_void_columns_are_nulls_whatever_files_hold_for_them(kind: str, tmp_path: Path) -> None:
    data_type, stored, values = VOID[kind]
    files = [pa.table({"x": [1, 2]} if each is None else {"x": [1, 2], "v": pa.array(values, each)}) for each in stored]
    table_of(tmp_path, [column("x"), column("v", data_type)], *files)
    assert [row["v"] for row in read_rows(tmp_path)] == values * len(files)
    assert read_rows(tmp_path, columns=["v"], filters=pc.field("x") == 1) == [{"v": values[0]}] * len(files)
    loader, _ = DeltaDataset.create_dataloader(tmp_path, num_workers=0, batch_size=2, output_format="dict")
    assert [batch["v"] for batch in loader] == [values] * len(files)


def test_a_column_that_deltalake_writes_as_void(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"x": [1, 2], "note": pa.array([None, None])}))
    assert in_order(read_rows(tmp_path)) == in_order(deltalake_rows(tmp_path))


def test_values_in_a_void_column_are_no_nulls(tmp_path: Path) -> None:
    table_of(tmp_path, [column("x", "void")], pa.table({"x": [1, None]}))
    with pytest.raises(SchemaError, match="field x is int64 in the file and null in the table"):
        read_rows(tmp_path)


def test_types_that_are_not_read_are_refused_with_the_columns_to_pass(tmp_path: Path) -> None:
    kinds = {"v": "quaternion", "g": array("geometry"), "s": struct(column("n", "interval"))}
    columns = [column("x"), column("y"), *(column(name, kind) for name, kind in kinds.items())]
    table_of(tmp_path, columns, pa.table({"x": [1], "y": [2]}))
    with pytest.raises(
        UnsupportedFeatureError, match=r"column v .* quaternion, g .* geometry, s .*columns=\['x', 'y'\]\."
    ):
        read_rows(tmp_path)
    with pytest.raises(UnsupportedFeatureError, match=r"column v holds .* Leave it out: columns=\['y'\]\."):
        read_rows(tmp_path, columns=["y", "v"])
    assert read_rows(tmp_path, columns=["x", "y"]) == [{"x": 1, "y": 2}]


PLAIN = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
SHREDDED = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.int64())])
VALUE = {"metadata": b"\1\0\0", "value": b"\x0c\7"}


@pytest.mark.parametrize(
    ("kind", "of_type", "of_value"),
    [
        ("variant", lambda each: each, lambda each: each),
        (array("variant"), pa.list_, lambda each: [each, each]),
        (struct(column("a"), column("v", "variant")), lambda each: pa.struct([("a", pa.int64()), ("v", each)]), None),
    ],
    ids=["top", "list", "struct"],
)
def test_variants_are_metadata_and_value(kind: Any, of_type: Any, of_value: Any, tmp_path: Path) -> None:
    of_value = of_value or (lambda each: {"a": 1, "v": each})
    values = [of_value(VALUE), of_value(None), None]
    files = [
        pa.table({"x": [1, 2, 3], "v": pa.array(values, of_type(PLAIN))}),
        pa.table({"x": [1, 2, 3], "v": pa.array(values, of_type(pa.struct(list(reversed(PLAIN)))))}),
        pa.table({"x": [1, 2, 3]}),
    ]
    table_of(tmp_path, [column("x"), column("v", kind)], *files)
    wanted = [{"v": value} for value in (*values, *values, None, None, None)]
    assert in_order(read_rows(tmp_path, columns=["v"])) == in_order(wanted)
    found = read_rows(tmp_path, columns=["v"], filters=pc.field("x") == 1)
    assert in_order(found) == in_order([wanted[0], wanted[0], {"v": None}])
    rows = pa.table({"x": [1, 2, 3], "v": pa.array(values, of_type(SHREDDED))})
    shredded = table_of(tmp_path / "shredded", [column("x"), column("v", kind)], rows)
    with pytest.raises(UnsupportedFeatureError, match=r"row group 0: variant \w+ is shredded.*columns=\[\.\.\.\]"):
        read_rows(shredded.root)
    assert len(read_rows(shredded.root, columns=["x"])) == 3


def test_a_variant_that_is_none_in_the_file_is_an_error(tmp_path: Path) -> None:
    rows = pa.table({"v": [{"value": b"", "other": b""}]})
    table_of(tmp_path, [column("v", "variant")], rows)
    with pytest.raises(SchemaError, match="variant v is a struct of value, other, and a variant has"):
        read_rows(tmp_path)


def test_a_struct_with_the_fields_of_a_variant_is_a_struct(tmp_path: Path) -> None:
    kind = struct(column("metadata", "binary"), column("value", "binary"))
    rows = [pa.table({"v": [{"value": b"1", "typed_value": 2}]}), pa.table({"v": [{"metadata": b"3"}]})]
    table_of(tmp_path, [column("v", kind)], *rows)
    wanted = [{"metadata": None, "value": b"1"}, {"metadata": b"3", "value": None}]
    assert in_order(read_rows(tmp_path)) == in_order({"v": value} for value in wanted)


@pytest.mark.parametrize("nested", [False, True])
def test_a_type_that_does_not_fit_is_an_error_that_speaks_of_no_other_format(nested: bool, tmp_path: Path) -> None:
    rows = pa.table({"x": [["a"] if nested else "a"]})
    table_of(tmp_path, [column("x", array(INTEGER) if nested else INTEGER)], rows)
    with pytest.raises(SchemaError, match=r"is string in the file and int32 in the table.*columns=\[") as caught:
        read_rows(tmp_path)
    assert "Iceberg" not in str(caught.value)


def test_a_schema_with_two_fields_of_one_name(tmp_path: Path) -> None:
    table_of(tmp_path, [column("x"), column("s", struct(column("a"), column("a")))], pa.table({"x": [1]}))
    with pytest.raises(CorruptFileError, match=r"two fields are called s\.a"):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    ("kind", "rows", "names"),
    [
        (LONG, {"X": [1]}, ("x", "X")),
        (struct(column("a"), column("b")), {"x": [{"a": 1, "B": 2}]}, ("x.b", "x.B")),
        (array(struct(column("b"))), {"x": [[{"B": 2}]]}, ("x.element.b", "x.element.B")),
        (struct(column("a")), {"X": [{"a": 1}]}, ("x", "X")),
    ],
)
def test_a_column_in_another_case_is_not_null(
    kind: Any, rows: dict[str, Any], names: tuple[str, str], tmp_path: Path
) -> None:
    table = table_of(tmp_path, [column("y"), column("x", kind)], pa.table({"y": [1], **rows}))
    error = f"the table has a column {names[0]!r}, and in its place the file has {names[1]!r}"
    for options in ({}, {"columns": ["x"]}, {"columns": ["y"], "filters": pc.field("x").is_valid()}):
        with pytest.raises(SchemaError, match=error):
            scan_delta(tmp_path, **options)
    assert read_rows(tmp_path, columns=["y"]) == [{"y": 1}]
    # A name of another column, and one beside the right one, are not in its place.
    table.commit(table.metadata([column("y"), column("x", kind), column("X", kind)]))
    if "X" in rows:
        assert read_rows(tmp_path, columns=["x", "X"]) == [{"x": None, "X": rows["X"][0]}]


def test_a_column_beside_one_in_another_case(tmp_path: Path) -> None:
    table_of(tmp_path, [column("x")], pa.table({"X": [1], "x": [2]}))
    assert read_rows(tmp_path) == [{"x": 2}]


def test_a_partition_value_in_another_case_is_not_null(tmp_path: Path) -> None:
    columns = [column("x"), column("p", STRING)]
    table_of(tmp_path, columns, pa.table({"x": [1]}), partitionValues={"P": "a"}, partitions=["p"])
    with pytest.raises(SchemaError, match=r"the table has a column 'p', and in its place the file has 'P'"):
        read_rows(tmp_path)


X, S = pc.field("x"), pc.field("s")
WRONG = {
    "bounds": {
        "numRecords": 3,
        "minValues": {"x": 9, "s": "z"},
        "maxValues": {"x": 1, "s": "a"},
        "nullCount": {"x": 0},
    },
    "more nulls than rows": {
        "numRecords": 3,
        "minValues": {"x": 7},
        "maxValues": {"x": 8},
        "nullCount": {"x": 4, "s": 4},
    },
    "nulls below 0": {"numRecords": 3, "minValues": {"x": 7}, "maxValues": {"x": 8}, "nullCount": {"x": -1, "s": -1}},
    "only nulls, and bounds": {
        "numRecords": 3,
        "minValues": {"x": 1, "s": "a"},
        "maxValues": {"x": 9, "s": "z"},
        "nullCount": {"x": 3, "s": 3},
    },
    "no rows": {"numRecords": 0, "nullCount": {"x": 0, "s": 0}},
    "no rows, and bounds": {
        "numRecords": 0,
        "minValues": {"x": 7},
        "maxValues": {"x": 8},
        "nullCount": {"x": 0, "s": 0},
    },
}


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("is_text", [True, False])
def test_statistics_that_contradict_themselves_leave_out_nothing(
    how: str, is_text: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.table({"x": pa.array([1, 5, 9]), "s": ["a", "k", "z"]})
    stats = json.dumps(WRONG[how]) if is_text else WRONG[how]
    table_of(tmp_path, [column("x"), column("s", STRING)], rows, stats=stats)
    for keeps in (X == 5, X != 5, X < 2, X >= 9, S == "k", X.is_valid(), (X == 5) & (S == "k"), ~(X == 5)):
        wanted = rows.filter(keeps).to_pylist()
        assert read_rows(tmp_path, filters=keeps, allow_empty=True) == wanted, str(keeps)
    assert ("contradict themselves and are not used" in caplog.text) == (how != "no rows")


def test_more_deleted_rows_than_the_statistics_count(tmp_path: Path) -> None:
    table = HandTable(tmp_path)
    rows = pa.table({"x": [1, 5, 9]})
    tmp_path.mkdir(exist_ok=True)
    path, stats = (
        table.file(rows),
        {"numRecords": 1, "minValues": {"x": 1}, "maxValues": {"x": 1}, "nullCount": {"x": 0}},
    )
    vector = table.vector([0, 1])
    table.create([column("x")], add(path, stats=json.dumps(stats), deletionVector=vector), features=["deletionVectors"])
    assert read_rows(tmp_path, filters=X == 9) == [{"x": 9}]
