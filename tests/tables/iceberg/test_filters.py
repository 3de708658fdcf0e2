"""Filters of tables: what they translate to, what is pruned by them, and exactly the rows that they keep."""

import datetime
import math
import struct
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThan, In, IsNull, NotNull
from pyiceberg.manifest import construct_partition_summaries
from pyiceberg.types import LongType, NestedField, StructType

from tests.effort import effort
from tests.tables.iceberg.reading import in_order, read_rows
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import IcebergDataset, plan_epoch, scan_iceberg
from torch_dataloader_utils._arrow.expressions import Call, FieldRef, Literal, parse_expression
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.tables.iceberg.filter_expressions import translate

# Filters and deletes that leave nothing are drawn too.
pytestmark = pytest.mark.filterwarnings("ignore:The epoch has no steps")

SCHEMA = pa.schema(
    {"a": pa.int64(), "s": pa.string(), "x": pa.float64(), "y": pa.float32(), "d": pa.date32(), "t": pa.timestamp("us")}
)


def regions(root: Path, *transforms: tuple[int, str]) -> TableWriter:
    table = TableWriter(root)
    table.evolve(field_of(1, "region_id", "int"), field_of(2, "v", "long"), field_of(3, "x", "double"))
    if transforms:
        table.partition_by(*transforms)
    for region in range(10):
        rows = [{"region_id": region, "v": 100 * region + i, "x": math.nan if i == 3 else float(i)} for i in range(20)]
        table.append(rows, rows_per_group=6, partition=(region,) if transforms else ())
    return table


def test_an_expression_is_walked_as_a_tree() -> None:
    tree = parse_expression((pc.field("a") > 5) & ~pc.field("s", "t").is_null())
    assert tree == Call(
        function="and_kleene",
        arguments=(
            Call(function="greater", arguments=(FieldRef(path=("a",)), Literal(value=pa.scalar(5)))),
            Call(
                function="invert",
                arguments=(
                    Call(
                        function="is_null",
                        arguments=(FieldRef(path=("s", "t")),),
                        options=parse_expression(pc.field("q").is_null()).options,  # type: ignore[union-attr]
                    ),
                ),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (pc.field("a") >= 5, "GreaterThanOrEqual(term=Reference(name='a'), literal=LongLiteral(5))"),
        (pc.scalar(5) < pc.field("a"), "GreaterThan(term=Reference(name='a'), literal=LongLiteral(5))"),
        (~(pc.field("a") == 5), "NotEqualTo(term=Reference(name='a'), literal=LongLiteral(5))"),
        (pc.field("s") == "a = 5 and b", "EqualTo(term=Reference(name='s'), literal=literal('a = 5 and b'))"),
        (pc.starts_with(pc.field("s"), "ab"), "StartsWith(term=Reference(name='s'), literal=literal('ab'))"),
        (pc.field("d") == datetime.date(1970, 1, 3), "EqualTo(term=Reference(name='d'), literal=LongLiteral(2))"),
        (pc.field("x").is_valid(), "NotNull(term=Reference(name='x'))"),
        (~(pc.field("x") > 5), "AlwaysTrue()"),  # NaN
        (pc.field("y") > 0.1, "AlwaysTrue()"),  # not a float32
        (pc.field("a") > 5.5, "AlwaysTrue()"),
        (pc.add(pc.field("a"), 1) > 5, "AlwaysTrue()"),
        (pc.field("a") == pc.field("y"), "AlwaysTrue()"),
        (pc.starts_with(pc.field("s"), "ab", ignore_case=True), "AlwaysTrue()"),
        (pc.field("a").isin([1, None]), "AlwaysTrue()"),
    ],
)
def test_translations(expression: pc.Expression, text: str) -> None:
    assert repr(translate(expression, SCHEMA)) == text


def expressions() -> st.SearchStrategy[pc.Expression]:
    numbers = st.sampled_from([-2, -1, 0, 1, 2, 3])
    floats = st.sampled_from([-1.5, 0.0, 0.5, 1.0, 2.0])
    texts = st.sampled_from(["", "a", "ab", "b"])
    operators = st.sampled_from(["__gt__", "__ge__", "__lt__", "__le__", "__eq__", "__ne__"])

    def compare(name: str, value: Any, operator: str) -> pc.Expression:
        return getattr(pc.field(name), operator)(value)

    leaves = st.one_of(
        st.builds(compare, st.just("a"), numbers | floats, operators),
        st.builds(compare, st.just("x"), floats | numbers, operators),
        st.builds(compare, st.just("s"), texts, operators),
        st.builds(compare, st.just("d"), numbers | st.just(1000) | floats, operators),
        st.builds(lambda values: pc.field("d").isin(values), st.lists(numbers | st.just(1000), min_size=1, max_size=3)),
        st.builds(lambda name: pc.field(name).is_null(), st.sampled_from(["a", "x", "s"])),
        st.builds(lambda name: pc.field(name).is_valid(), st.sampled_from(["a", "x", "s"])),
        st.builds(lambda flag: pc.field("x").is_null(nan_is_null=flag), st.booleans()),
        st.just(pc.is_nan(pc.field("x"))),
        st.builds(lambda values: pc.field("a").isin(values), st.lists(numbers | st.none(), min_size=1, max_size=3)),
        st.builds(lambda text: pc.starts_with(pc.field("s"), text), texts),
        st.builds(lambda value: pc.add(pc.field("a"), 1) > value, numbers),
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds(lambda a, b: a & b, inner, inner)
            | st.builds(lambda a, b: a | b, inner, inner)
            | inner.map(lambda a: ~a)
        ),
        max_leaves=5,
    )


row = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-2, 3),
        "s": st.sampled_from([None, "", "a", "ab", "abc", "b"]),
        "x": st.sampled_from([None, -1.5, 0.0, 0.5, 1.0, 2.0, math.nan]),
        "d": st.sampled_from([None, *map(Decimal, ("-1.50", "0.00", "0.75", "1.00", "3.00"))]),
    }
)


@pytest.mark.slow
@given(
    files=st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=4),
    row_filter=expressions(),
    spec=st.integers(0, 5),
    file_format=st.sampled_from(["parquet", "parquet", "orc"]),
)
@settings(max_examples=effort(50))
def test_pruning_never_loses_a_row_and_filtering_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[dict[str, Any]]],
    row_filter: pc.Expression,
    spec: int,
    file_format: str,
) -> None:
    table = TableWriter(tmp_path_factory.mktemp("t"))
    table.evolve(
        field_of(1, "a", "long"),
        field_of(2, "s", "string"),
        field_of(3, "x", "double"),
        field_of(4, "d", "decimal(4,2)"),
    )
    specs = [[], [(1, "identity")], [(2, "truncate[1]")], [(1, "bucket[4]")], [(3, "identity")], [(4, "identity")]]
    table.partition_by(*specs[spec])
    every = []
    for rows in files:
        # All rows of a file are of one partition: that of its first row.
        name = {1: "a", 2: "s", 3: "a", 4: "x", 5: "d"}.get(spec)
        rows = [each if name is None else {**each, name: rows[0][name]} for each in rows]
        parts = tuple(
            part.transform.transform(table.schema.find_field(part.source_id).field_type)(rows[0][name])
            for part in table.specs[0].fields
        )
        table.append(
            rows, rows_per_group=2 if file_format == "parquet" else 1000, partition=parts, file_format=file_format
        )
        every += rows
    # Floats hold the decimals exactly, and pyarrow compares floats with integers.
    kinds = {"a": pa.int64(), "s": pa.string(), "x": pa.float64(), "d": pa.float64(), "row": pa.int64()}
    floats = [
        {**each, "d": None if each["d"] is None else float(each["d"]), "row": number}
        for number, each in enumerate(every)
    ]
    kept = pa.Table.from_pylist(floats, pa.schema(kinds)).filter(row_filter)
    wanted = [every[number] for number in kept["row"].to_pylist()]
    assert in_order(read_rows(table.metadata, filters=row_filter, allow_empty=True)) == in_order(wanted)


@pytest.mark.parametrize("transforms", [(), ((1, "identity"),)])
def test_partitions_files_and_row_groups_are_pruned(tmp_path: Path, transforms: tuple[Any, ...]) -> None:
    table = regions(tmp_path, *transforms)
    inventory = scan_iceberg(table.metadata, filters=pc.field("region_id") >= 5)
    assert (inventory.num_files, inventory.num_rows) == (5, 100)
    groups = scan_iceberg(
        table.metadata, filters=(pc.field("region_id") == 5) & (pc.field("v") < 506), count_rows=False
    )
    assert (groups.num_files, groups.num_groups, groups.num_rows) == (1, 1, 6)


def test_rows_that_a_filter_keeps_are_counted_beside_deletes(tmp_path: Path) -> None:
    table = regions(tmp_path)
    table.delete_equal([2], [{"v": 503}, {"v": 700}])
    row_filter = (pc.field("region_id") >= 5) & (pc.field("x") < 10)
    rows = read_rows(table.metadata, filters=row_filter, num_ranks=2, columns=["v"])
    wanted = [100 * r + i for r in range(5, 10) for i in range(10) if i != 3 and 100 * r + i != 700]
    assert sorted(each["v"] for each in rows) == wanted
    assert plan_epoch(scan_iceberg(table.metadata, filters=row_filter)).rank_rows == (len(wanted),)


def test_a_filter_that_names_a_partition_is_told_its_column(tmp_path: Path) -> None:
    table = regions(tmp_path, (1, "bucket[4]"))
    with pytest.raises(ConfigError, match=r"p10 is a partition, bucket\[4\] of column 'region_id': write pc\.field"):
        scan_iceberg(table.metadata, filters=pc.field("p10") == 3)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_filters_for_infinity_find_it(tmp_path: Path, kind: str) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "x", kind))
    table.partition_by((1, "identity"))
    for x in (float("-inf"), 0.5, float("inf")):
        table.append([{"x": x}], partition=(x,))
    x, least, most = pc.field("x"), float("-inf"), float("inf")
    for row_filter in (x == most, x >= most, x.isin([most, 7.0]), x > 0.5):
        assert read_rows(table.metadata, filters=row_filter) == [{"x": most}]
    for row_filter in (x == least, x <= least, ~(x != least), x < 0.5):
        assert read_rows(table.metadata, filters=row_filter) == [{"x": least}]
    assert len(read_rows(table.metadata, filters=x != most)) == 2


def test_a_scan_filter_leaves_out_files_and_filters_no_rows(tmp_path: Path) -> None:
    table = regions(tmp_path)
    for scan_filter in (EqualTo("v", 305), "v = 305", In("v", {305, 306})):
        assert sorted(row["v"] for row in read_rows(table.metadata, scan_filter=scan_filter)) == list(range(300, 320))
    both = read_rows(table.metadata, scan_filter=GreaterThan("region_id", 7), filters=pc.field("v") < 905)
    assert len(both) == 25
    assert len(read_rows(table.metadata, scan_filter=NotNull("v"))) == 200
    assert len(read_rows(table.metadata, scan_filter=AlwaysTrue())) == 200
    with pytest.raises(ConfigError, match="does not fit the table's columns"):
        scan_iceberg(table.metadata, scan_filter=EqualTo("nope", 1))
    with pytest.raises(ConfigError, match="scan_filter='v = ' does not parse"):
        scan_iceberg(table.metadata, scan_filter="v = ")
    with pytest.raises(TypeError, match="scan_filter is an int"):
        scan_iceberg(table.metadata, scan_filter=5)
    with pytest.raises(TypeError, match="filters is a str"):
        IcebergDataset.create_dataloader(table.metadata, filters="v > 5")


def test_filters_name_columns_as_the_scanned_schema_does(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "old", "int"))
    table.append([{"old": i} for i in range(10)], rows_per_group=3)
    table.evolve(field_of(1, "new", "long"), field_of(2, "old", "string", initial_default=None))
    table.append([{"new": i, "old": "x"} for i in range(10, 20)], rows_per_group=3)
    assert len(read_rows(table.metadata, filters=(pc.field("new") > 5) & (pc.field("new") < 15))) == 9
    assert len(read_rows(table.metadata, filters=pc.field("old") == "x")) == 10
    assert len(read_rows(table.metadata, filters=pc.field("old").is_null())) == 10
    assert len(read_rows(table.metadata, filters=pc.field("old") > 5, snapshot_id=1001)) == 4


def test_files_of_one_row_group_are_judged_by_their_manifest_without_a_footer(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"), field_of(2, "x", "double"), field_of(3, "s", "string"))
    rows = [[{"a": 10 * f + i, "x": float(i), "s": f"{f}"} for i in range(10)] for f in range(6)]
    rows[4][3]["a"] = None
    paths = [table.append(each) for each in rows]
    for path in paths:  # a scan that reads footers would fail
        damaged = Path(path).read_bytes()
        Path(path).write_bytes(damaged[:-20] + bytes(20))
    inventory = scan_iceberg(table.metadata, filters=pc.field("a") >= 15, count_rows=False)
    live = dict(zip([inventory.files.paths[f] for f in inventory.groups.file], inventory.groups.live_rows, strict=True))
    # Left out by its bounds; maybe; surely; surely; a null; surely.
    assert [live.get(path) for path in paths] == [None, -1, 10, 10, -1, 10]
    for row_filter in (pc.field("x") >= 0, pc.field("s") >= "0"):  # NaN is not counted, text may be shortened
        inventory = scan_iceberg(table.metadata, filters=row_filter, count_rows=False)
        assert set(inventory.groups.live_rows.tolist()) == {-1}


@pytest.mark.slow
def test_a_row_is_never_lost_to_a_manifest_that_judges(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    values = [[1, 2, 3], [None, 2], [5, 5], [None], [9, -9]]
    for part in values:
        table.append([{"a": value} for value in part])
    column = pc.field("a")
    filters = [
        column > 2,
        ~(column > 2),
        column == 5,
        column != 5,
        column.is_null(),
        column.is_valid(),
        ~column.is_null(),
    ]
    filters += [column.isin([2, 5]), ~column.isin([2, 5]), (column > 1) & (column < 6), (column < 0) | column.is_null()]
    everything = pa.table({"a": pa.array([value for part in values for value in part], pa.int64())})
    for row_filter in filters:
        wanted = everything.filter(row_filter)["a"].to_pylist()
        seen = [row["a"] for row in read_rows(table.metadata, filters=row_filter)]
        assert sorted(seen, key=str) == sorted(wanted, key=str), str(row_filter)


def one(bound: int | float) -> dict[int, bytes]:
    return {1: struct.pack("<q" if isinstance(bound, int) else "<d", bound)}


@pytest.mark.parametrize(
    "statistics",
    [
        {"lower_bounds": one(9), "upper_bounds": one(1)},
        {"null_value_counts": {1: 4}},
        {"null_value_counts": {1: 5}, "lower_bounds": one(7), "upper_bounds": one(9)},
        {"null_value_counts": {1: -1}, "lower_bounds": one(7), "upper_bounds": one(9)},
        {"value_counts": {1: 3}, "null_value_counts": {1: 3}, "lower_bounds": {}, "upper_bounds": {}},
        {"value_counts": {1: 5}, "lower_bounds": one(7), "upper_bounds": one(9)},
    ],
    ids=["inverted", "all-null", "nulls-5-of-4", "nulls-below-0", "values-3-of-4", "values-5-of-4"],
)
@pytest.mark.parametrize("rows_per_group", [2, 4])
def test_statistics_of_a_manifest_that_disprove_themselves_lose_no_row(
    tmp_path: Path, statistics: dict[str, Any], rows_per_group: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    file = table.new_file([{"a": value} for value in (1, 2, 5, 9)], rows_per_group=rows_per_group)
    table.commit("append", [replace(file, arguments=file.arguments | statistics)])
    column = pc.field("a")
    for row_filter, wanted in ((column == 5, [5]), (column > 2, [5, 9]), (column < 2, [1]), (column != 5, [1, 2, 9])):
        assert [row["a"] for row in read_rows(table.metadata, filters=row_filter)] == wanted
    assert "contradict themselves and are not used" in caplog.text


def test_a_manifest_list_whose_bounds_are_exchanged_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    table.partition_by((1, "identity"))

    def exchanged(*arguments: Any) -> list[Any]:
        found = construct_partition_summaries(*arguments)
        for each in found:
            each[2], each[3] = each[3], each[2]
        return found

    monkeypatch.setattr("tests.tables.iceberg.tables.construct_partition_summaries", exchanged)
    files = [table.new_file([{"a": value}], partition=(value,)) for value in (1, 5, 9)]
    table.commit("append", files)
    assert read_rows(table.metadata, filters=pc.field("a") == 5) == [{"a": 5}]
    assert "contradict themselves and are not used" in caplog.text


struct_values = st.none() | st.fixed_dictionaries({name: st.none() | st.integers(0, 3) for name in "ab"})


@pytest.mark.slow
@given(
    versions=st.lists(
        st.tuples(st.permutations([10, 11, 12]), st.sampled_from([5, 6]), st.lists(struct_values, min_size=1)),
        min_size=2,
        max_size=4,
    ),
    # Arrow writes wrong values into ORC for a struct in a struct beside null ones.
    shape=st.sampled_from([("parquet", False), ("parquet", True), ("orc", False)]),
    comparison=st.sampled_from(["is_null", "is_valid", "__gt__", "__lt__", "__eq__", "__ne__"]),
)
@settings(max_examples=effort(50))
def test_filters_inside_structs_find_fields_by_id_whatever_they_were_called_before(
    tmp_path_factory: pytest.TempPathFactory,
    versions: list[tuple[list[int], int, list[dict[str, Any] | None]]],
    shape: tuple[str, bool],
    comparison: str,
) -> None:
    # Each version of the table has fields a and b in a struct, with other ids (dropped, added again, swapped); the last
    # version's are asked for.
    file_format, is_deep = shape
    table = TableWriter(tmp_path_factory.mktemp("t"))
    (*_, (last_ids, last_outer, _)) = versions
    names = dict(zip(last_ids[:2], "ab", strict=True))
    wanted_rows = []
    for ids, outer, values in versions:
        inner = StructType(field_of(ids[0], "a", "long"), field_of(ids[1], "b", "long"))
        deep = StructType(NestedField(outer, "t", inner, required=False))
        table.evolve(NestedField(1, "s", deep if is_deep else inner, required=False))
        table.append(
            [{"s": {"t": each} if is_deep else each} for each in values], rows_per_group=2, file_format=file_format
        )
        for each in values:
            by_id = {number: each[name] for number, name in zip(ids, "ab", strict=False)} if each else {}
            kept = each is not None and (not is_deep or outer == last_outer)
            wanted_rows.append({name: by_id.get(number) for number, name in names.items()} if kept else None)
    path = ("s", "t", "a") if is_deep else ("s", "a")
    row_filter = getattr(pc.field(*path), comparison)(*([1] if comparison.startswith("__") else []))
    inside = pa.struct({"a": pa.int64(), "b": pa.int64()})
    plain = pa.table(
        {
            "s": pa.array(
                [{"t": each} if is_deep else each for each in wanted_rows],
                pa.struct({"t": inside}) if is_deep else inside,
            )
        }
    )
    wanted = plain.filter(row_filter).to_pylist()
    assert in_order(read_rows(table.metadata, filters=row_filter, allow_empty=True)) == in_order(wanted)


def test_nulls_of_a_required_field_are_found_in_older_files_and_in_null_structs(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"), NestedField(2, "s", StructType(field_of(3, "x", "long")), required=False))
    old = [{"a": 1, "s": None}, {"a": None, "s": {"x": 1}}]
    table.append(old)
    a, x = (NestedField(number, name, LongType(), required=True) for number, name in ((1, "a"), (3, "x")))
    table.evolve(a, NestedField(2, "s", StructType(x), required=False))
    table.append([{"a": 2, "s": {"x": 2}}])
    for row_filter in (pc.field("a").is_null(), ~pc.field("a").is_valid()):
        assert read_rows(table.metadata, filters=row_filter) == old[1:]
    assert read_rows(table.metadata, filters=pc.field("s", "x").is_null()) == old[:1]
    assert read_rows(table.metadata, scan_filter=IsNull("a")) == old
    assert old[0] in read_rows(table.metadata, scan_filter=IsNull("s.x"))
