"""Files with columns added, dropped, reordered and widened: the rows that pyarrow has of them under one schema."""

import json
import tempfile
import warnings
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.structured.test_filtered_rows import conditions
from torch_dataloader_utils import RowDataset, StructuredDataset, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils.errors import ConfigError, NullValueError, SchemaError

TYPES = {
    "i": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "u": [pa.uint8(), pa.uint32(), pa.int64()],
    "g": [pa.int32(), pa.float64()],
    "f": [pa.null(), pa.float32(), pa.float64()],
    "d": [pa.decimal128(5, 2), pa.decimal128(30, 2)],
    "t": [pa.date32(), pa.timestamp("ms"), pa.timestamp("ns")],
    "s": [pa.null(), pa.string()],
    "c": [pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string()), pa.string()],
    "b": [pa.bool_()],
    "l": [pa.list_(pa.int16()), pa.list_(pa.int64())],
    "L": [pa.list_(pa.int16()), pa.large_list(pa.int16()), pa.large_list(pa.int64())],
    "r": [pa.struct([("in", pa.int8())]), pa.struct([("in", pa.int64())])],
    "m": [pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32())],
}
"""Each type holds the values of those before it."""
VALUES: dict[str, list[Any]] = {
    "i": [-128, -1, 0, 1, 127],
    "u": [0, 1, 255],
    "g": [-(2**31), -1, 0, 1, 2**31 - 1],
    "f": [float("-inf"), -1.5, 0.0, 2.0, float("nan")],
    "d": [Decimal("-9.99"), Decimal("0.00"), Decimal("2.00")],
    "t": [date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)],
    "s": ["", "a", "é"],
    "c": ["", "a", "é"],
    "b": [False, True],
    "l": [[], [1, 2], [None, -1]],
    "L": [[], [1, 2], [None, -1]],
    "r": [{"in": -1}, {"in": None}, {"in": 5}],
    "m": [[], [("a", 1), ("b", None)]],
}
FILTERED = [(types[-1], pc.field(name)) for name, types in TYPES.items() if name in "iugfdtscb"]
FORMATS = {"parquet": "iugfdtscblLrm", "arrow": "iugfdtscblLrm", "orc": "idblr"}


def cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Without the casts that pyarrow does not have of every type."""
    return pa.chunked_array([pa.nulls(len(column), kind)]) if pa.types.is_null(column.type) else column.cast(kind)


@st.composite
def files(draw, names: str) -> tuple[list[pa.Table], pa.Table]:
    """Tables of files, and the table of all of them: null where a file lacks a column."""
    tables, seen, start = [], {}, 0
    for _ in range(draw(st.integers(1, 5))):
        rows = draw(st.integers(1, 6))
        columns = {"row": pa.array(range(start, start + rows))}
        start += rows
        for name in draw(st.permutations(names))[: draw(st.integers(0, 4))]:
            number = draw(st.integers(0, len(TYPES[name]) - 1))
            kind = TYPES[name][number]
            some = [None] if kind == pa.null() else [*VALUES[name], None]
            values = draw(st.lists(st.sampled_from(some), min_size=rows, max_size=rows))
            columns[name] = pa.array(values, TYPES[name][0] if kind != pa.null() and "t" in name else kind).cast(kind)
            seen[name] = max(seen.get(name, 0), number)
        order = draw(st.permutations(list(columns)))
        tables.append(pa.table({name: columns[name] for name in order}))
    names_of_all = list(dict.fromkeys(name for table in tables for name in table.schema.names))
    kinds = {name: TYPES[name][seen[name]] for name in names_of_all if name != "row"} | {"row": pa.int64()}
    parts = [
        pa.table(
            {
                name: cast(table.column(name), kinds[name])
                if name in table.schema.names
                else pa.nulls(len(table), kinds[name])
                for name in names_of_all
            }
        )
        for table in tables
    ]
    return tables, pa.concat_tables(parts)


def write(folder: str, file_format: str, tables: Sequence[pa.Table], group_rows: int) -> None:
    for number, table in enumerate(tables):
        path = f"{folder}/{number}.{file_format}"
        if file_format == "parquet":
            pq.write_table(table, path, row_group_size=group_rows, store_schema=number % 2 == 0 or has_nulls(table))
        elif file_format == "orc":
            orc.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=group_rows)


def has_nulls(table: pa.Table) -> bool:
    """Whether a type is one that only Arrow's own schema in a Parquet file keeps."""
    words = ("null", "second", "large", "dictionary")
    return any(word in str(kind) for kind in table.schema.types for word in words)


def loaded(path: str, file_format: str, **options: Any) -> pa.Table:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The epoch has no steps")
        loader, _ = StructuredDataset.create_dataloader(
            path, file_format, 3, output_format="arrow", missing="null", **options
        )
    batches = list(loader)
    assert len(loader) == len(batches)
    return pa.Table.from_batches(batches) if batches else None


@pytest.mark.slow
@pytest.mark.parametrize("file_format", list(FORMATS))
@settings(max_examples=effort(60), deadline=None)
@given(data=st.data())
def test_the_rows_are_those_of_a_table_of_all_files(file_format: str, data) -> None:
    tables, wanted = data.draw(files(FORMATS[file_format]))
    with tempfile.TemporaryDirectory() as folder:
        write(folder, file_format, tables, data.draw(st.integers(1, 4)))
        inventory = scan_files(folder, file_format, missing="null")
        assert decode_schema(inventory.schema) == wanted.schema
        assert inventory.num_rows == len(wanted)
        columns = data.draw(st.permutations(wanted.schema.names))[: data.draw(st.integers(1, 4))]
        seen = loaded(folder, file_format, columns=columns)
        assert seen.schema == wanted.select(columns).schema
        assert str(seen.to_pydict()) == str(wanted.select(columns).to_pydict())  # as text, since no NaN equals another


@pytest.mark.slow
@pytest.mark.parametrize("file_format", list(FORMATS))
@settings(max_examples=effort(100), deadline=None)
@given(data=st.data())
def test_filters_keep_the_rows_that_they_keep_of_a_table_of_all_files(file_format: str, data) -> None:
    tables, wanted = data.draw(files(FORMATS[file_format]))
    known = [
        (kind, column)
        for (_, column), name in zip(FILTERED, "iugfdtscb", strict=True)
        if name in wanted.schema.names and (kind := wanted.schema.field(name).type) in _COMPARED
    ]
    if not known:
        return
    with tempfile.TemporaryDirectory() as folder:
        write(folder, file_format, tables, data.draw(st.integers(1, 4)))
        for row_filter in data.draw(st.lists(conditions(known), min_size=1, max_size=4)):
            try:
                rows = wanted.filter(row_filter).column("row").to_pylist()
            except pa.ArrowException:
                continue  # a value that does not fit, or a comparison that Arrow does not have
            seen = loaded(folder, file_format, filters=row_filter, columns=["row"])
            assert ([] if seen is None else seen.column("row").to_pylist()) == rows


_COMPARED = {pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.decimal128(5, 2)}
_COMPARED |= {pa.decimal128(30, 2), pa.date32(), pa.timestamp("ns")}


@pytest.mark.slow
@settings(max_examples=effort(40), deadline=None)
@given(data=st.data())
def test_ranks_shuffles_and_resumes_give_every_row_once(data) -> None:
    tables, wanted = data.draw(files("ifsl"))
    ranks = data.draw(st.integers(1, 3))
    options = {"missing": "null", "shuffle": True, "shuffle_rows": 4, "num_ranks": ranks, "output_format": "arrow"}
    rows, stop = [], data.draw(st.integers(0, 3))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows
        write(folder, "parquet", tables, 2)
        for rank in range(ranks):
            loader, _ = StructuredDataset.create_dataloader(folder, batch_size=2, rank=rank, **options)
            batches = iter(loader)
            rows += islice(batches, stop)
            state = loader.state_dict()
            again, _ = StructuredDataset.create_dataloader(folder, batch_size=2, rank=rank, **options)
            again.load_state_dict(state)
            rows += list(again)
    found = {row["row"]: row for batch in rows for row in batch.to_pylist()}
    if sum(batch.num_rows for batch in rows) == len(wanted):  # else a rank repeats a row to take its last step
        assert len(found) == len(wanted)
    assert str([found[row["row"]] for row in wanted.to_pylist()]) == str(wanted.to_pylist())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of two columns each, one of them in both."""
    pq.write_table(pa.table({"x": pa.array([1, 2], pa.int32()), "y": [0.5, 1.5]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"z": ["p", "q"], "x": pa.array([3, 2**40])}), tmp_path / "b.parquet")
    return tmp_path


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_tensors_of_missing_columns_are_what_nulls_are(folder: Path, num_workers: int) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, missing="null", num_workers=num_workers)
    (batch,) = loader
    assert batch["x"].tolist() == [1, 2, 3, 2**40]
    assert batch["y"][:2].tolist() == [0.5, 1.5]
    assert batch["y"][2:].isnan().all()
    assert batch["z"] == [None, None, "p", "q"]


def test_missing_numbers_need_a_value(folder: Path) -> None:
    pq.write_table(pa.table({"w": [7]}), folder / "c.parquet")
    options: dict[str, Any] = {"columns": ["x", "w"], "missing": "null", "num_workers": 0}
    with pytest.raises(NullValueError, match="column 'w'"):
        list(StructuredDataset.create_dataloader(folder, **options)[0])
    (batch,) = StructuredDataset.create_dataloader(folder, nulls={"x": "mask", "w": ("fill", -1)}, **options)[0]
    assert batch["w"].tolist() == [-1, -1, -1, -1, 7]
    assert batch["x_mask"].tolist() == [True] * 4 + [False]


def test_without_it_the_error_names_the_option(folder: Path) -> None:
    for scan in (scan_files, StructuredDataset.create_dataloader):
        with pytest.raises(SchemaError, match=r"b\.parquet has column 'x' as int64;.*missing=\"null\""):
            scan(folder)


def test_rows_by_number_and_saved_inventories_have_them_too(folder: Path) -> None:
    inventory = scan_files(folder, missing="null")
    save_inventory(inventory, folder.parent / "saved.parquet")
    assert load_inventory(folder.parent / "saved.parquet").fingerprint() == inventory.fingerprint()
    rows = RowDataset(folder, missing="null", output_format="dict")
    assert rows[3] == RowDataset(folder, inventory=inventory, output_format="dict")[3]
    assert rows[0] == {"x": 1, "y": 0.5, "z": None}
    assert rows[3] == {"x": 2**40, "y": None, "z": "q"}


def test_row_groups_of_files_without_a_compared_column_are_left_out(folder: Path) -> None:
    for row_filter, files in ((pc.field("z") == "p", [1]), (pc.field("z").is_null(), [0]), (pc.field("y") > 1, [0])):
        inventory = scan_files(folder, missing="null", filters=row_filter)
        assert inventory.groups.file.tolist() == files
        assert inventory.groups.live_rows.tolist() == [-1]


def test_partitions_and_a_column_of_files_are_one(tmp_path: Path) -> None:
    for year, columns in ((2023, {"x": [1]}), (2024, {"y": [2], "year": pa.array([1], pa.int16())})):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table(columns), tmp_path / f"year={year}" / "a.parquet")
    seen = loaded(str(tmp_path), "parquet", partitioning="hive", filters=pc.field("x").is_null())
    assert seen.to_pylist() == [{"x": None, "y": 2, "year": 2024}]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.float32()),
        (pa.int32(), pa.uint32()),
        (pa.int64(), pa.string()),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
        (pa.list_(pa.int64()), pa.list_(pa.float64())),
        (pa.dictionary(pa.int8(), pa.string()), pa.int64()),
    ],
    ids=str,
)
def test_types_of_which_none_holds_the_other_name_both_files(tmp_path: Path, one, other) -> None:
    for name, kind in (("a", one), ("b", other)):
        with pa.ipc.new_file(tmp_path / name, pa.schema([("x", kind)])) as writer:
            writer.write_table(pa.table({"x": pa.nulls(1, kind)}))
    with pytest.raises(SchemaError, match=r"b has column 'x' as .*a as .*Neither holds all values of the other"):
        scan_files(tmp_path, "arrow", missing="null")


def test_columns_that_nobody_needs_may_have_types_of_which_none_holds_the_other(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, 2], pa.int32()), "v": [1, 2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"v": [0.5], "x": [2**40]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"v": ["a"], "y": [True]}), tmp_path / "2.parquet")
    with pytest.raises(
        SchemaError, match=r"'v' as double; .* Neither .* leave the column out by columns= with the names"
    ):
        loaded(str(tmp_path), "parquet")
    seen = loaded(str(tmp_path), "parquet", columns=["x", "y"])
    assert seen.to_pylist() == [{"x": x, "y": y} for x, y in [(1, None), (2, None), (2**40, None), (None, True)]]
    for columns, row_filter, error in [
        (["x", "v"], None, SchemaError),
        (["x"], pc.field("v") > 1, ConfigError),
    ]:
        with pytest.raises(error, match=r"has column 'v' as double.* Neither holds all values of the other"):
            loaded(str(tmp_path), "parquet", columns=columns, filters=row_filter)


def test_the_widest_type_may_come_last(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.uint8(), pa.int8(), pa.int16())):
        pq.write_table(pa.table({"x": pa.array([1], kind)}), tmp_path / f"{number}.parquet")
    assert loaded(str(tmp_path), "parquet").column("x").type == pa.int16()


def test_times_that_the_finer_unit_does_not_hold_are_errors(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([datetime(1, 1, 1)], pa.timestamp("us"))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"t": pa.array([datetime(2020, 1, 1)], pa.timestamp("ns"))}), tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=r"column t is timestamp\[us\] in the file and timestamp\[ns\]"):
        loaded(str(tmp_path), "parquet")


@pytest.mark.parametrize("file_format", ["csv", "jsonl"])
def test_text_may_have_a_schema_and_csv_needs_one(tmp_path: Path, file_format: str) -> None:
    rows = [[{"x": 1, "y": "a\nb"}, {"x": 2, "y": ""}], [{"y": "c"}], [{"x": 3}]]
    for number, of_file in enumerate(rows):
        path = tmp_path / f"{number}.{file_format}"
        if file_format == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in of_file))
        else:
            lines = [of_file[0], *(row.values() for row in of_file)]
            path.write_text("".join(",".join(f'"{value}"' for value in line) + "\n" for line in lines))
    for scan in (scan_files, StructuredDataset.create_dataloader) if file_format == "csv" else ():
        with pytest.raises(ConfigError, match="needs a schema"):
            scan(tmp_path, file_format, missing="null")
    schema = pa.schema({"w": pa.float32(), "y": pa.string(), "x": pa.int64()})
    inventory = scan_files(tmp_path, file_format, schema=schema, missing="null")
    assert inventory.num_rows == 4
    seen = loaded(str(tmp_path), file_format, inventory=inventory)
    assert seen.schema == schema
    assert seen.column("x").to_pylist() == [1, 2, None, 3]
    assert seen.column("y").to_pylist() == ["a\nb", "", "c", None]
    assert seen.column("w").null_count == 4
    assert loaded(str(tmp_path), file_format, inventory=inventory, columns=["w"]).num_rows == 4


def test_a_header_with_other_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,z\n1,2\n")
    with pytest.raises(SchemaError, match="the CSV header is x, z; wanted x, y"):
        scan_files(tmp_path, "csv", schema=pa.schema({"x": pa.int8(), "y": pa.int8()}), missing="null")


def test_files_that_do_not_decode_are_skipped_and_have_no_columns(folder: Path) -> None:
    (folder / "0.parquet").write_bytes(b"no Parquet file")
    for filters in (None, pc.field("x") > 1):
        with pytest.warns(UserWarning, match=r"0\.parquet"):
            inventory = scan_files(folder, missing="null", on_error="skip", filters=filters)
        assert decode_schema(inventory.schema).names == ["x", "y", "z"]


def test_progress_is_of_all_files(folder: Path) -> None:
    heard: list[tuple[int, int]] = []
    scan_files(folder, missing="null", on_progress=lambda *done: heard.append(done))
    assert heard == [(1, 2), (2, 2)]


def test_lists_of_a_file_that_lacks_them_are_empty(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([[1, 2], [3]], pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"row": [1, 2]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"t": pa.array([[2**40]], pa.list_(pa.int64()))}), tmp_path / "c.parquet")
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, columns=["t"], missing="null", nulls="mask", num_workers=0
    )
    (batch,) = loader
    assert batch["t"].values.tolist() == [1, 2, 3, 2**40]
    assert batch["t"].offsets.tolist() == [0, 2, 3, 3, 3, 4]
    assert torch.equal(batch["t_mask"], torch.tensor([True, True, False, False, True]))


@pytest.mark.parametrize("value", ["Null", None, True])
def test_other_words_are_refused(tmp_path: Path, value: Any) -> None:
    for scan in (scan_files, StructuredDataset.create_dataloader):
        with pytest.raises(ConfigError, match='pass "error" or "null"'):
            scan(tmp_path, missing=value)


def test_names_that_differ_in_case_only_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"x": [1], "k": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"X": [2], "k": [2]}), tmp_path / "b.parquet")
    assert scan_files(tmp_path, missing="null").num_rows == 2
    assert "a.parquet has a column 'x', " in caplog.text
    assert "b.parquet has 'X', and no file has both: they are two columns" in caplog.text
    caplog.clear()
    pq.write_table(pa.table({"X": [3], "x": [3]}), tmp_path / "c.parquet")
    assert scan_files(tmp_path, missing="null").num_rows == 3
    assert not caplog.records


@pytest.mark.filterwarnings("ignore:The epoch has no steps")
@settings(max_examples=effort(30), deadline=None)
@given(
    files=st.lists(st.sets(st.sampled_from("abc")).map(sorted), min_size=1, max_size=4),
    types=st.lists(st.sampled_from([pa.int32(), pa.int64()]), min_size=4, max_size=4),
    columns=st.sampled_from([["row"], ["a", "row"], ["row", "b", "c"]]),
    filters=st.sampled_from([None, pc.field("row") > 4, pc.field("a") > 2]),
    file_format=st.sampled_from(["parquet", "arrow"]),
)
def test_a_column_that_nobody_asks_for_may_differ_and_the_rows_are_the_same(
    files: list[list[str]], types: list[pa.DataType], columns: list[str], filters: Any, file_format: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, (names, kind) in enumerate(zip(files, types, strict=False)):
            start = 5 * number
            table = pa.table({"row": range(start, start + 5), **{name: pa.array(range(5), kind) for name in names}})
            if file_format == "parquet":
                pq.write_table(table, f"{folder}/{number}.parquet", row_group_size=2)
            else:
                with pa.ipc.new_file(f"{folder}/{number}.arrow", table.schema) as writer:
                    writer.write_table(table)
        asked = {*columns} | ({"a"} if filters is not None and "a" in str(filters) else set())
        kinds = {(name, types[n] if name in names else None) for n, names in enumerate(files) for name in "abc"}
        is_same = all(len({kind for each, kind in kinds if each == name}) == 1 for name in asked - {"row"})
        options = {"format": file_format, "columns": columns, "filters": filters, "output_format": "arrow"}
        if not is_same or any((name, None) in kinds for name in asked):
            with pytest.raises((SchemaError, ConfigError)):
                StructuredDataset(folder, **options)
            return
        found, wanted = (
            [row for batch in StructuredDataset(folder, **options, missing=missing) for row in batch.to_pylist()]
            for missing in ("error", "null")
        )
        assert found == wanted
        assert found or filters is not None


def test_a_column_that_differs_is_left_out_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": [None], "z": ["a"]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": [2], "y": [2.5], "w": [1]}), tmp_path / "1.parquet")
    inventory = scan_files(tmp_path, columns=["x"])
    assert decode_schema(inventory.schema).names == ["x"]
    assert not inventory.nulls
    (note,) = inventory.notes
    assert "columns that differ between files are left out: " in note
    assert all(f"{name!r}" in note for name in "yzw")
    with pytest.raises(ConfigError, match="names 'z', which the data set does not have"):
        StructuredDataset(tmp_path, inventory=inventory, columns=["z"])
    with pytest.raises(SchemaError, match=r"leave the column out of columns=, or pass missing=\"null\""):
        scan_files(tmp_path)
