"""Tables whose schema has changed: columns by id, defaults, promotions, name mappings."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

from tests.tables.iceberg.reading import in_order, pyiceberg_rows, read_rows
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import IcebergDataset, RowDataset, scan_iceberg
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, SchemaError, UnsupportedFeatureError


def optional(field_id: int, name: str, kind: Any) -> NestedField:
    return NestedField(field_id, name, kind, required=False)


def test_renames_reorders_additions_and_promotions_in_parquet_and_orc(tmp_path: Path) -> None:
    table = TableWriter(tmp_path, format_version=3)
    table.evolve(
        field_of(1, "a", "int"), field_of(2, "b", "float"), field_of(3, "c", "string"), field_of(5, "d", "decimal(5,2)")
    )
    old = [{"a": i, "b": i / 2, "c": f"c{i}", "d": Decimal(i) / 4} for i in range(5)]
    table.append(old)
    table.append(old, file_format="orc")
    table.evolve(
        field_of(3, "b", "string"),  # c renamed to a name that another column had
        field_of(1, "a2", "long"),
        field_of(6, "e", "int", initial_default=9),
        field_of(2, "x", "double"),
        field_of(5, "d", "decimal(9,2)"),
        field_of(7, "c", "long"),  # and a new column under c's old name
    )
    table.append([{"b": "n", "a2": 1 << 40, "e": None, "x": 0.1, "d": Decimal("1234567.25"), "c": 3}])
    rows = read_rows(table.metadata, batch_size=4)
    assert in_order(rows) == in_order(
        [
            *2
            * [
                {"b": f"c{i}", "a2": i, "e": 9, "x": i / 2, "d": Decimal(i) / 4 + Decimal("0.00"), "c": None}
                for i in range(5)
            ],
            {"b": "n", "a2": 1 << 40, "e": None, "x": 0.1, "d": Decimal("1234567.25"), "c": 3},
        ]
    )
    assert list(rows[0]) == ["b", "a2", "e", "x", "d", "c"]
    assert read_rows(table.metadata, columns=["c", "a2"])[0].keys() == {"c": 0, "a2": 0}.keys()


def test_pyiceberg_gives_the_same_rows_after_evolution(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "int"), field_of(2, "b", "float"))
    table.append([{"a": i, "b": i / 3} for i in range(9)], rows_per_group=4)
    table.evolve(field_of(2, "bb", "double"), field_of(1, "a", "long"), field_of(3, "c", "date"))
    table.append([{"a": i, "bb": i / 3, "c": datetime.date(2020, 1, 1)} for i in range(9)], rows_per_group=4)
    assert in_order(read_rows(table.metadata, num_ranks=2)) == in_order(pyiceberg_rows(table.metadata))


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_nested_fields_evolve_by_id(tmp_path: Path, file_format: str) -> None:
    before = StructType(optional(3, "x", IntegerType()), optional(4, "y", StringType()))
    table = TableWriter(tmp_path)
    table.evolve(
        optional(1, "id", LongType()),
        optional(2, "s", before),
        optional(5, "l", ListType(6, StructType(optional(7, "k", IntegerType())), element_required=False)),
        optional(
            8, "m", MapType(9, StringType(), 10, StructType(optional(11, "v", IntegerType())), value_required=False)
        ),
    )
    table.append(
        [
            {"id": 0, "s": {"x": 1, "y": "a"}, "l": [{"k": 1}, None, {"k": 2}], "m": [("p", {"v": 1}), ("q", None)]},
            {"id": 1, "s": None, "l": None, "m": None},
            {"id": 2, "s": {"x": None, "y": "b"}, "l": [], "m": []},
            {"id": 3, "s": {"x": 4, "y": None}, "l": [{"k": 9}], "m": [("r", {"v": 5})]},
        ],
        file_format=file_format,
        rows_per_group=2 if file_format == "parquet" else 1000,
    )
    after = StructType(optional(4, "why", StringType()), optional(12, "z", LongType()), optional(3, "x", LongType()))
    table.evolve(
        optional(2, "struct", after),
        optional(
            5,
            "l",
            ListType(
                6, StructType(optional(13, "n", StringType()), optional(7, "key", LongType())), element_required=False
            ),
        ),
        optional(
            8, "m", MapType(9, StringType(), 10, StructType(optional(11, "value", LongType())), value_required=False)
        ),
    )
    rows = read_rows(table.metadata)
    assert rows == [
        {
            "struct": {"why": "a", "z": None, "x": 1},
            "l": [{"n": None, "key": 1}, None, {"n": None, "key": 2}],
            "m": [("p", {"value": 1}), ("q", None)],
        },
        {"struct": None, "l": None, "m": None},
        {"struct": {"why": "b", "z": None, "x": None}, "l": [], "m": []},
        {"struct": {"why": None, "z": None, "x": 4}, "l": [{"n": None, "key": 9}], "m": [("r", {"value": 5})]},
    ]


def test_a_missing_struct_is_null_even_if_its_fields_have_defaults(tmp_path: Path) -> None:
    table = TableWriter(tmp_path, format_version=3)
    table.evolve(field_of(1, "id", "long"), optional(2, "s", StructType(optional(3, "x", IntegerType()))))
    table.append([{"id": 1, "s": {"x": 5}}, {"id": 2, "s": None}])
    defaulted = NestedField(4, "y", IntegerType(), required=False, initial_default=7)
    table.evolve(
        field_of(1, "id", "long"),
        optional(2, "s", StructType(optional(3, "x", IntegerType()), defaulted)),
        optional(5, "t", StructType(NestedField(6, "z", IntegerType(), required=False, initial_default=8))),
    )
    assert read_rows(table.metadata) == [
        {"id": 1, "s": {"x": 5, "y": 7}, "t": None},
        {"id": 2, "s": None, "t": None},
    ]


@pytest.mark.parametrize(
    "kind_and_value", [("int", 7), ("string", "de"), ("double", 2.222), ("date", 19000), ("string", None)]
)
def test_identity_partition_values_that_are_not_in_the_file(tmp_path: Path, kind_and_value: tuple[str, Any]) -> None:
    kind, value = kind_and_value
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"), field_of(2, "p", kind, initial_default=None))
    table.partition_by((2, "identity"))
    table.append([{"id": 1}, {"id": 2}], partition=(value,), without_columns=("p",))
    wanted = datetime.date(1970, 1, 1) + datetime.timedelta(days=value) if kind == "date" else value
    assert read_rows(table.metadata) == [{"id": 1, "p": wanted}, {"id": 2, "p": wanted}]


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_identity_partition_values_of_fields_inside_structs(tmp_path: Path, file_format: str) -> None:
    stored = optional(2, "s", StructType(optional(3, "x", LongType())))
    table = TableWriter(tmp_path)
    table.evolve(
        field_of(1, "id", "long"), optional(2, "s", StructType(optional(3, "x", LongType()), field_of(4, "p", "int")))
    )
    table.partition_by((4, "identity"))
    table.append(
        [{"id": 1, "s": {"x": 5}}, {"id": 2, "s": None}],
        partition=(7,),
        file_format=file_format,
        schema=Schema(field_of(1, "id", "long"), stored),
    )
    rows = [{"id": 1, "s": {"x": 5, "p": 7}}, {"id": 2, "s": None}]
    assert read_rows(table.metadata) == rows
    assert read_rows(table.metadata, filters=pc.field("s", "p") == 7) == rows[:1]


def test_files_without_ids_by_name_mapping_or_by_names_that_never_changed_meaning(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"), field_of(2, "b", "string"))
    table.append([{"a": 1, "b": "x"}], without_ids=True)
    table.evolve(field_of(2, "c", "string"), field_of(1, "a", "long"))
    assert read_rows(table.metadata) == [{"c": "x", "a": 1}]
    table.properties["schema.name-mapping.default"] = json.dumps([{"field-id": 1, "names": ["a", "other"]}])
    table.write_metadata()
    assert read_rows(table.metadata) == [{"c": None, "a": 1}]


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_column_in_another_case_is_not_null_in_files_without_ids(file_format: str, tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "X", "long"), field_of(2, "y", "long"))
    table.append([{"X": 1, "y": 2}], without_ids=True, file_format=file_format)
    mapping = [{"field-id": 1, "names": ["x"]}, {"field-id": 2, "names": ["y"]}]
    table.properties["schema.name-mapping.default"] = json.dumps(mapping)
    table.write_metadata()
    for options in ({}, {"columns": ["X"]}, {"columns": ["y"], "filters": pc.field("X") == 1}):
        with pytest.raises(SchemaError, match="the table has a column 'x', and in its place the file has 'X'"):
            read_rows(table.metadata, **options)
    assert read_rows(table.metadata, columns=["y"]) == [{"y": 2}]
    mapping[0]["names"] = ["x", "X"]
    table.properties["schema.name-mapping.default"] = json.dumps(mapping)
    table.write_metadata()
    assert read_rows(table.metadata) == [{"X": 1, "y": 2}]


def test_lengths_that_were_kept_are_those_of_the_present_name_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "cache"))
    table = TableWriter(tmp_path / "table")
    table.evolve(field_of(1, "a", "long"), field_of(2, "b", "long"))
    table.append([{"a": 1, "b": 7}, {"a": 2, "b": 8}], without_ids=True)
    fingerprints = set()
    for name, lengths in (("a", [1, 2]), ("b", [7, 8])):
        table.properties["schema.name-mapping.default"] = json.dumps([{"field-id": 1, "names": [name]}])
        table.write_metadata()
        inventory = scan_iceberg(table.metadata)
        fingerprints.add(inventory.fingerprint())
        assert RowDataset((), inventory=inventory, length_column="a").lengths.tolist() == lengths
    assert len(fingerprints) == 1  # the snapshot is the same


def test_a_name_that_meant_two_fields_is_refused_in_files_without_ids_and_only_there(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"), field_of(2, "b", "long"))
    table.append([{"a": 1, "b": 2}], without_ids=True)
    table.evolve(field_of(2, "b", "long"), field_of(1, "before", "long"))
    table.evolve(field_of(2, "b", "long"), field_of(1, "before", "long"), field_of(3, "a", "long"))
    for column in ("a", "before"):
        with pytest.raises(SchemaError, match=rf"no field ids, and its column a may be field {column} .*name-mapping"):
            read_rows(table.metadata, columns=[column])
    assert read_rows(table.metadata, columns=["b"]) == [{"b": 2}]
    names = [{"field-id": 1, "names": ["a"]}, {"field-id": 2, "names": ["b"]}]
    table.properties["schema.name-mapping.default"] = json.dumps(names)
    table.append([{"a": 5, "b": 3, "before": 4}])
    assert in_order(read_rows(table.metadata)) == in_order(
        [{"b": 2, "before": 1, "a": None}, {"b": 3, "before": 4, "a": 5}]
    )


def test_a_file_with_two_columns_of_one_name_is_refused_where_one_is_read(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"), field_of(2, "a", "long"), field_of(3, "b", "long"))
    path = table.append([{"id": 1, "a": 2, "b": 3}])
    stored = pq.read_table(path)
    pq.write_table(stored.rename_columns(["id", "x", "x"]), path)
    assert read_rows(table.metadata, columns=["id"]) == [{"id": 1}]
    with pytest.raises(SchemaError, match="two columns are called 'x'"):
        read_rows(table.metadata, columns=["b"])
    deletes = table.delete_equal([1], [{"id": 1}])
    pq.write_table(stored.rename_columns(["y", "y", "b"]), deletes)
    with pytest.raises(SchemaError, match="two columns are called 'y'"):
        scan_iceberg(table.metadata)


def test_types_that_are_no_promotion_are_refused_with_file_and_field(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "string"))
    table.append([{"a": "x"}])
    table.evolve(field_of(1, "a", "int"))
    with pytest.raises(SchemaError, match=r"\.parquet row group 0: field a is string in the file and int32"):
        read_rows(table.metadata)


def test_timestamps_stored_in_other_units_and_without_zone(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "t", "timestamptz"), field_of(2, "u", "timestamp"))
    when = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)
    path = table.append([{"t": when.replace(tzinfo=datetime.UTC), "u": when}])
    for write in ("int96", "orc"):
        plain = pa.table({"t": pa.array([when], pa.timestamp("ns")), "u": pa.array([when], pa.timestamp("ns"))})
        fields = [
            each.with_metadata({"PARQUET:field_id": str(i + 1), "iceberg.id": str(i + 1)})
            for i, each in enumerate(plain.schema)
        ]
        plain = plain.cast(pa.schema(fields))
        if write == "int96":
            pq.write_table(plain, path, use_deprecated_int96_timestamps=True)
        else:
            pa_orc.write_table(plain, path)
            table.live[0].arguments["file_format"] = type(table.live[0].arguments["file_format"]).ORC
            table.append([])
        assert read_rows(table.metadata) == [{"t": when.replace(tzinfo=datetime.UTC), "u": when}]


def test_microseconds_that_nanoseconds_cannot_hold_are_refused(tmp_path: Path) -> None:
    table = TableWriter(tmp_path, format_version=3)
    table.evolve(field_of(1, "t", "timestamp_ns"))
    rows = [{"t": datetime.datetime(2020, 1, 1)}, {"t": datetime.datetime(9999, 1, 1)}]
    for row in rows:
        table.append([row], schema=Schema(field_of(1, "t", "timestamp")))
    with pytest.raises(SchemaError, match=r"is timestamp\[us\] in the file and timestamp\[ns\] in the table"):
        read_rows(table.metadata)
    table.remove(table.live[-1].path)
    assert read_rows(table.metadata) == rows[:1]


@pytest.mark.parametrize("year", [1, 9999])
def test_times_far_away_that_spark_wrote_as_int96(tmp_path: Path, year: int) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "t", "timestamp"), field_of(2, "row", "long"))
    rows = [
        {"t": datetime.datetime(year, 12, 31, 1, 2, 3, 456), "row": 1},
        {"t": datetime.datetime(2020, 1, 1), "row": 2},
    ]
    path = table.append(rows)
    pq.write_table(pq.read_table(path), path, use_deprecated_int96_timestamps=True)
    assert read_rows(table.metadata) == rows
    table.delete_equal([1], rows[:1])
    assert read_rows(table.metadata) == rows[1:]


def test_mixed_formats_and_widths_have_one_output_schema(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"), field_of(2, "b", "string"))
    table.append([{"a": 1, "b": "x"}])
    table.append([{"a": 2, "b": "y"}], file_format="orc")
    loader, _ = IcebergDataset.create_dataloader(table.metadata, output_format="arrow", num_workers=0, batch_size=1)
    schemas = [batch.schema for batch in loader]
    assert all(schema == pa.schema({"a": pa.int64(), "b": pa.string()}) for schema in schemas)


def test_unknown_columns_are_named_with_near_ones(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "price", "double"))
    table.append([{"price": 1.0}])
    with pytest.raises(ConfigError, match="did you mean 'price'"):
        scan_iceberg(table.metadata, columns=["prise"])
    with pytest.raises(ConfigTypeError, match=r"one string 'price'"):
        scan_iceberg(table.metadata, columns="price")


def test_columns_of_unknown_types_are_refused_where_they_are_read(tmp_path: Path) -> None:
    table = TableWriter(tmp_path, format_version=3)
    table.evolve(field_of(1, "id", "long"), field_of(2, "place", "geometry"))
    table.append([{"id": 1, "place": b""}])
    with pytest.raises(UnsupportedFeatureError, match=r"column place holds values of .*geometry.*Leave it out"):
        read_rows(table.metadata)
    with pytest.raises(UnsupportedFeatureError, match="column place"):
        read_rows(table.metadata, columns=["id", "place"])
    assert read_rows(table.metadata, columns=["id"]) == [{"id": 1}]
    table.evolve(field_of(1, "id", "long"), optional(3, "spot", StructType(field_of(4, "place", "geometry"))))
    with pytest.raises(UnsupportedFeatureError, match=r"column spot holds values of Iceberg type geometry"):
        read_rows(table.metadata)


def test_files_in_avro_are_refused_at_plan_time(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    table.append([{"a": 1}])
    table.live[0].arguments["file_format"] = type(table.live[0].arguments["file_format"]).AVRO
    table.append([{"a": 2}])
    with pytest.raises(NotImplementedError, match="avro"):
        scan_iceberg(table.metadata)
