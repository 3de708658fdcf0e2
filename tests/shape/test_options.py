"""Options that do not fit the schema are refused when the shaper is made, with what to do."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_dataloader_utils.errors import ConfigError, NullValueError, SchemaError
from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.shape.specs import select_fields

SCHEMA = pa.schema(
    [
        ("a", pa.float32()),
        ("b", pa.float32()),
        ("i", pa.int32()),
        ("u", pa.uint8()),
        ("flag", pa.bool_()),
        ("s", pa.string()),
        ("t", pa.timestamp("us")),
        ("v", pa.list_(pa.float32(), 2)),
    ]
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["a", "nope"]}, "columns= names 'nope'.*the columns are 'a', 'b', 'i'"),
        ({"columns": ["a", "a"]}, "columns= has column 'a' more than once"),
        ({"stack": {"x": ["a", "nope"]}}, "stack.*names column 'nope', which is not read"),
        ({"stack": {"x": ["a", "b"]}, "columns": ["a"]}, "'b', which is not read"),
        ({"stack": {"x": ["a"], "y": ["a"]}}, "column 'a' is in stack 'x' and again in 'y'"),
        ({"stack": {"x": ["a", "a"]}}, "column 'a' is in stack 'x' and again in 'x'"),
        ({"stack": {"x": ["s"]}}, "column 's' is string; only columns of one number"),
        ({"stack": {"x": ["v"]}}, "only columns of one number a row stack"),
        ({"stack": {"x": []}}, "give a list of one or more column names"),
        ({"stack": {"x": "ab"}}, "give a list of one or more column names"),
        ({"stack": {"i": ["a", "b"]}}, "two entries of a batch would be called 'i'"),
        ({"nulls": "drop"}, 'is \'drop\'; a policy is "error", "mask"'),
        ({"nulls": {"i": "drop"}}, "column 'i' is 'drop'"),
        ({"nulls": {"i": {"fill": 0, "mask": True}}}, "a policy is"),
        ({"nulls": {"nope": "mask"}}, "nulls= names nope, which is not read; the columns are"),
        ({"nulls": {"I": "mask"}}, "nulls= names I, which is not read; did you mean 'i'"),
        ({"nulls": {"i": ("fill",)}}, 'a policy is .*"fill"'),
        ({"nulls": {"i": ("fill", 0.5)}}, "column 'i' of type int32 with 0.5, which it cannot hold"),
        ({"nulls": {"u": ("fill", -1)}}, "column 'u' of type uint8 with -1"),
        ({"nulls": {"u": ("fill", 256)}}, "column 'u' of type uint8 with 256"),
        ({"nulls": {"flag": ("fill", 2)}}, "a bool column holds True or False"),
        ({"nulls": {"a": ("fill", "x")}}, "column 'a' of type float with 'x'"),
        ({"nulls": {"a": ("fill", "nan")}}, "column 'a' of type float with 'nan'"),
        ({"nulls": {"a": ("fill", 1e300)}}, "column 'a' of type float with 1e.300, .*beyond the largest"),
        ({"nulls": {"s": ("fill", 1)}}, "column 's' of type string with 1"),
        ({"nulls": {"t": ("fill", 0.5)}}, "column 't'"),
        ({"nulls": ("fill", "x")}, "which it cannot hold"),
        ({"output_format": "pandas"}, "output_format='pandas' is unknown; choose one of torch, numpy, arrow, dict"),
        ({"output_format": "arrow", "stack": {"x": ["a"]}}, 'stack= is for output_format "torch" and "numpy"'),
        ({"output_format": "dict", "nulls": "mask"}, 'nulls= is for output_format "torch" and "numpy"'),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    options = {"output_format": "torch", "columns": None, **options}
    with pytest.raises(ConfigError, match=message) as caught:
        make_shaper(schema=select_fields(SCHEMA, options.pop("columns")), **options)
    assert str(caught.value).endswith(".")


def test_duplicate_column_names_are_refused() -> None:
    schema = pa.schema([("a", pa.int32()), ("a", pa.int64()), ("b", pa.int32())])
    with pytest.raises(ConfigError, match="the data set has column 'a' more than once"):
        select_fields(schema, None)
    assert select_fields(schema, ["b"]).names == ["b"]


def test_a_mask_that_collides_with_a_column_is_refused() -> None:
    schema = pa.schema([("a", pa.int32()), ("a_mask", pa.int32())])
    with pytest.raises(ConfigError, match="'a_mask'"):
        make_shaper("torch", schema, nulls={"a": "mask"})


def test_a_null_names_its_column_the_count_and_the_way_out() -> None:
    batch = pa.RecordBatch.from_pydict({"i": pa.array([1, None, None], pa.int32())})
    with pytest.raises(NullValueError, match=r"column 'i' \(int32\) has 2 nulls in 3 values.*nulls=\{\"i\""):
        make_shaper("torch", batch.schema).block([batch])


def test_null_lists_say_that_a_fill_value_empties_them() -> None:
    batch = pa.RecordBatch.from_pydict({"l": pa.array([[1], None], pa.list_(pa.int32()))})
    with pytest.raises(NullValueError, match=r"1 null list in 2 values.*value\)}, which makes null lists empty"):
        make_shaper("torch", batch.schema).block([batch])


def test_null_items_under_a_mask_say_that_only_lists_are_masked() -> None:
    batch = pa.RecordBatch.from_pydict({"l": pa.array([[1, None], None], pa.list_(pa.int32()))})
    with pytest.raises(NullValueError, match=r"1 null in lists in 2 values.*which lists are null, not which items"):
        make_shaper("torch", batch.schema, nulls="mask").block([batch])
    with pytest.raises(NullValueError, match=r'Pass nulls=\{"l": \("fill", value\)\}\.$'):
        make_shaper("torch", batch.schema).block([batch.slice(0, 1)])


def test_one_fill_value_is_for_the_columns_that_become_tensors() -> None:
    batch = pa.RecordBatch.from_pydict({"i": pa.array([None], pa.int32()), "s": pa.array([None], pa.string())})
    assert dict(make_shaper("torch", batch.schema, nulls={"fill": 7}).block([batch]).to_batch()) == {
        "i": torch.tensor([7], dtype=torch.int32),
        "s": [None],
    }


def test_a_column_called_fill_can_have_a_policy() -> None:
    batch = pa.RecordBatch.from_pydict({"fill": pa.array([None], pa.int32())})
    shaper = make_shaper("torch", batch.schema, nulls={"fill": ("fill", 3)})
    assert shaper.block([batch]).to_batch()["fill"].tolist() == [3]


def test_dates_fill_with_dates_and_strings_with_strings() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "t": pa.array([None], pa.timestamp("us")),
            "s": pa.array(
                [
                    None,
                ][:1],
                pa.string(),
            ),
        }
    )
    nulls = {"t": ("fill", datetime.datetime(1970, 1, 2)), "s": ("fill", "?")}
    filled = make_shaper("torch", batch.schema, nulls=nulls).block([batch]).to_batch()
    assert filled["t"].tolist() == [86_400_000_000]
    assert filled["s"] == ["?"]
    assert make_shaper("numpy", batch.schema, nulls=nulls).block([batch]).to_batch()["t"] == np.datetime64("1970-01-02")


ZEROS = {
    pa.int16(): 0,
    pa.bool_(): False,
    pa.float32(): 0.0,
    pa.timestamp("us", "UTC"): 0,
    pa.date32(): 0,
    pa.duration("s"): 0,
    pa.list_(pa.int8()): [],
    pa.list_(pa.float32(), 2): [0.0, 0.0],
    pa.string(): "",
    pa.dictionary(pa.int8(), pa.large_string()): "",
    pa.binary(): b"",
    pa.binary(3): bytes(3),
    pa.list_(pa.string()): [],
    pa.map_(pa.string(), pa.int8()): [],
    pa.struct([("x", pa.int8())]): None,
    pa.null(): None,
}


@pytest.mark.parametrize("data_type", ZEROS, ids=str)
@pytest.mark.parametrize("nulls", ["fill", {"x": "fill"}])
def test_fill_without_a_value_is_the_zero_of_each_type(data_type: pa.DataType, nulls: Any) -> None:
    batch = pa.record_batch({"x": pa.nulls(2, data_type)})
    filled = make_shaper("torch", batch.schema, nulls=nulls).block([batch]).to_batch()["x"]
    rows = filled if isinstance(filled, list) else [row.tolist() for row in filled]
    assert rows == [ZEROS[data_type]] * 2


def test_fill_without_a_value_fills_items_of_lists_and_one_entry_of_a_dict_leaves_other_columns_as_they_are() -> None:
    lists = pa.record_batch({"l": pa.array([[1, None], None], pa.list_(pa.int8()))})
    filled = make_shaper("torch", lists.schema, nulls="fill").block([lists]).to_batch().ragged("l")
    assert (filled.values.tolist(), filled.offsets.tolist()) == ([1, 0], [0, 2, 2])
    two = pa.record_batch({"a": pa.array([None], pa.int8()), "b": pa.array([None], pa.int8())})
    with pytest.raises(NullValueError, match="column 'b'"):
        make_shaper("torch", two.schema, nulls={"a": "fill"}).block([two])


@pytest.mark.parametrize("output_format", ["torch", "arrow"])
def test_record_batches_of_another_schema_are_refused(output_format: Any) -> None:
    shaper = make_shaper(output_format, select_fields(SCHEMA, ["i", "s"]))
    with pytest.raises(SchemaError, match="lacks column 's'"):
        shaper.block([pa.RecordBatch.from_pydict({"i": pa.array([1], pa.int32())})])
    with pytest.raises(SchemaError, match="'i' is int64 in a record batch and int32"):
        shaper.block([pa.RecordBatch.from_pydict({"i": pa.array([1], pa.int64()), "s": ["x"]})])
