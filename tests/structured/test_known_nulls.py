"""Nulls that metadata count are an error when the loader is made, and never where reading would have worked."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import Hash, StructuredDataset, _engine, load_inventory, save_inventory, scan_files
from torch_dataloader_utils.errors import NullValueError

TYPES = {
    "i": pa.int32(),
    "b": pa.bool_(),
    "f": pa.float32(),
    "s": pa.string(),
    "t": pa.timestamp("us", "UTC"),
    "l": pa.list_(pa.int8()),
    "a": pa.list_(pa.int16(), 2),
    "st": pa.struct([("x", pa.int8())]),
}
VALUES = {"i": 1, "b": True, "f": 0.5, "s": "x", "t": 1, "l": [], "a": [1, 2], "st": {"x": None}}


def make(path: Any, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(path, **{"num_workers": 0, "batch_size": 3, **options})[0]


def nulls_to_pass(error: BaseException) -> dict[str, Any]:
    text = str(error).partition("Pass nulls=")[2].partition(" with values")[0]
    return eval(text)  # as users paste it


@st.composite
def files(draw: st.DrawFn) -> list[pa.Table]:
    """Tables of rows that are null in some columns, and lack some."""
    tables, start = [], 0
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 12))
        table = {"row": pa.array(range(start, start + rows))}
        for name in draw(st.sets(st.sampled_from(list(TYPES)), min_size=1)):
            is_null = draw(st.lists(st.booleans(), min_size=rows, max_size=rows) | st.just([False] * rows))
            table[name] = pa.array([None if null else VALUES[name] for null in is_null], TYPES[name])
        tables.append(pa.table(table))
        start += rows
    return tables


def outcome(path: str, options: dict[str, Any]) -> tuple[str, NullValueError | None]:
    """When reading all batches raises: at "build" or "read"; "" for never."""
    try:
        loader = make(path, **options)
    except NullValueError as error:
        return "build", error
    try:
        list(loader)
    except NullValueError as error:
        return "read", error
    return "", None


@pytest.mark.slow
@given(
    tables=files(),
    group_rows=st.integers(1, 6),
    bound=st.none() | st.integers(1, 30),
    nulls=st.sampled_from([None, "error", "mask", ("fill", 0), {"row": "error"}]),
    drop_last=st.booleans(),
    is_saved=st.booleans(),
    is_built=st.booleans(),
)
@settings(max_examples=effort(60), deadline=None)
@pytest.mark.filterwarnings("ignore:The epoch has no steps")
def test_an_error_at_build_is_one_that_reading_would_have_been(
    tables: list[pa.Table],
    group_rows: int,
    bound: int | None,
    nulls: Any,
    drop_last: bool,
    is_saved: bool,
    is_built: bool,
) -> None:
    filters = None if bound is None else pc.field("row") < bound
    options = {"missing": "null", "filters": filters, "nulls": nulls, "drop_last": drop_last}
    with TemporaryDirectory() as folder, patch.object(_engine, "IS_BUILT", is_built and _engine.IS_BUILT):
        for number, table in enumerate(tables):
            pq.write_table(table, Path(folder, f"{number}.parquet"), row_group_size=group_rows)
        if is_saved:
            save_inventory(scan_files(folder, missing="null"), Path(folder, "inventory"))
            options["inventory"] = load_inventory(Path(folder, "inventory"))
        when, error = outcome(folder, options)
        if when == "build":
            with patch("torch_dataloader_utils.datasets.build._check_nulls"):
                assert outcome(folder, options)[0] == "read"
            assert outcome(folder, {**options, "nulls": "fill"})[0] == ""
            when, error = outcome(folder, {**options, "nulls": nulls_to_pass(error)})
            assert "column 'l'" not in str(error)
        # Left to the read: lists, of which writers count empty ones too, and rows that may be left out.
        may_be_left_out = filters is not None or drop_last
        assert when == "" or (when == "read" and ("column 'l'" in str(error) or may_be_left_out))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in range(2):
        rows = {
            "i": pa.array([1, 2, 3, None], pa.int32()),
            "s": pa.array(["x", None, "x", "x"]),
            "dropped": pa.array([None] * 4, pa.int8()),
        }
        pq.write_table(pa.table(rows), tmp_path / f"{file}.parquet", row_group_size=2)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"columns": ["s", "i"]}, r"column 'i' \(int32\) has 2 nulls\. .* nulls=\{'i': \('fill', 0\)\}"),
        ({"stack": {"x": ["i"]}, "columns": ["i"]}, "column 'i'"),
        ({"columns": ["i"], "output_format": "numpy", "transform": dict}, "column 'i'"),
        ({"columns": ["s"], "encode": {"s": Hash(buckets=9)}}, r"column 's' \(int64\) has 2 nulls"),
        ({"columns": ["s", "i"], "nulls": {"s": "error"}}, r"'s': 'mask'.*'i': \('fill', 0\)"),
    ],
)
def test_the_error_names_all_delivered_columns_and_what_to_pass(folder: Path, options: Any, seen: str) -> None:
    with pytest.raises(NullValueError, match=seen) as caught:
        make(folder, **options)
    assert "dropped" not in str(caught.value)


def test_nulls_of_fields_of_structs_are_known_and_an_inventory_keeps_them(tmp_path: Path) -> None:
    place = pa.struct([("lat", pa.float32()), ("zone", pa.int8()), pa.field("sure", pa.bool_(), nullable=False)])
    user = pa.array([{"age": 1, "place": {"zone": 1, "sure": True}}, {"age": None, "place": None}, None]).cast(
        pa.struct([("age", pa.int64()), ("place", place)]), safe=False
    )
    pq.write_table(pa.table({"user": user}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "b.parquet")
    inventory = scan_files(tmp_path, missing="null")
    save_inventory(inventory, tmp_path / "_inventory")
    assert load_inventory(tmp_path / "_inventory").nulls == inventory.nulls
    for options in ({"missing": "null"}, {"inventory": load_inventory(tmp_path / "_inventory")}):
        with pytest.raises(NullValueError, match=r"'user.age' \(int64\) has 3 nulls; .*'user.place.zone'") as caught:
            make(tmp_path, **options)
        batches = list(make(tmp_path, nulls=nulls_to_pass(caught.value), **options))
        assert [age for batch in batches for age in batch["user"]["age"].tolist()] == [1, 0, 0, 0]


def test_a_column_with_the_dotted_name_of_a_field_is_not_taken_for_it(tmp_path: Path) -> None:
    table = pa.table({"s.x": [1, 2], "s": [{"x": None}, {"x": 1}]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert scan_files(tmp_path).nulls == {}


@pytest.mark.parametrize("output_format", ["arrow", "dict"])
def test_formats_that_keep_nulls_refuse_none(folder: Path, output_format: Any) -> None:
    assert len(list(make(folder, output_format=output_format))) == 3


def test_nulls_in_files_that_come_later_are_an_error_of_the_refresh(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": [1, 2]}), tmp_path / "0.parquet")
    dataset = make(tmp_path).dataset
    pq.write_table(pa.table({"i": [1, None]}), tmp_path / "1.parquet")
    with pytest.raises(NullValueError, match="column 'i'"):
        dataset.refresh()
    assert dataset.planner.inventory.num_files == 1


def test_rows_of_a_partition_without_a_value_are_null(tmp_path: Path) -> None:
    for value in ("1", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"y={value}").mkdir()
        pq.write_table(pa.table({"x": [1, 2]}), tmp_path / f"y={value}" / "0.parquet")
    with pytest.raises(NullValueError, match=r"column 'y' \(int64\) has 2 nulls"):
        make(tmp_path, partitioning="hive")
    assert len(make(tmp_path, partitioning="hive", filters=pc.field("y") == 1)) == 1
