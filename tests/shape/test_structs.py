"""Structs are nested dicts of columns: every leaf has the rows that Python's view of the table has."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.shape.test_slab import round_trip
from torch_dataloader_utils import Hash, Ragged, TensorBatch
from torch_dataloader_utils.errors import ConfigError, NullValueError
from torch_dataloader_utils.shape.column_blocks import split_rows
from torch_dataloader_utils.shape.dtypes import check_dtypes
from torch_dataloader_utils.shape.prepare import objects_note, prepared_shaper
from torch_dataloader_utils.shape.specs import select_fields

_NAMES = st.sampled_from(["a", "b", "a.b", "key", "c_mask"])
_LEAVES = st.sampled_from([pa.float64(), pa.float32(), pa.string(), pa.list_(pa.float64())])


def _structs(inside: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(_NAMES, inside, min_size=1, max_size=3)
    return fields.map(lambda found: pa.struct(list(found.items())))


TYPES = _structs(st.recursive(_LEAVES, _structs, max_leaves=6))


def _values(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(data_type):
        # A null struct has null fields, and lists have no null of their own.
        of_fields = st.fixed_dictionaries({field.name: _values(field.type) for field in data_type})
        has_lists = "list" in str(data_type)
        return of_fields if has_lists else st.none() | of_fields
    if pa.types.is_string(data_type):
        return st.none() | st.text(max_size=3)
    number = st.none() | st.floats(-100, 100, width=32)
    return st.lists(number, max_size=3) if pa.types.is_list(data_type) else number


def _leaf(rows: list[Any], data_type: pa.DataType) -> Any:
    """Return what a batch has of these rows, as lists: nested dicts; nulls of floats as NaN."""
    if pa.types.is_struct(data_type):
        return {
            field.name: _leaf([None if row is None else row[field.name] for row in rows], field.type)
            for field in data_type
        }
    if pa.types.is_list(data_type):
        return [_leaf(row, data_type.value_type) for row in rows]
    return ["nan" if row is None and not pa.types.is_string(data_type) else row for row in rows]


def _lists(column: Any) -> Any:
    if isinstance(column, dict):
        return {name: _lists(inside) for name, inside in column.items()}
    if isinstance(column, Ragged):
        return [_lists(row) for row in column.to_list()]
    if isinstance(column, torch.Tensor | np.ndarray):
        column = column.tolist()
    return [_lists(row) if isinstance(row, np.ndarray) else "nan" if row != row else row for row in column]


@settings(max_examples=effort(150), deadline=None)
@given(st.data(), st.sampled_from(["torch", "numpy"]))
def test_every_leaf_has_its_rows(data: st.DataObject, output_format: Any) -> None:
    data_type = data.draw(TYPES)
    rows = data.draw(st.lists(_values(data_type), min_size=1, max_size=9))
    start = data.draw(st.integers(0, len(rows) - 1))
    schema = pa.schema([("s", data_type), ("x", pa.int32()), ("s.a", pa.int32())])
    numbers = pa.array(range(len(rows)), pa.int32())
    batch = pa.RecordBatch.from_arrays([pa.array(rows, data_type), numbers, numbers], schema=schema).slice(start)
    shaper = pickle.loads(pickle.dumps(prepared_shaper(output_format, schema)[1]))
    block = shaper.block([batch])
    wanted = _leaf(rows[start:], data_type)
    assert _lists(block.to_batch()) == {
        "s": wanted,
        "x": numbers.to_pylist()[start:],
        "s.a": numbers.to_pylist()[start:],
    }
    order = np.array(data.draw(st.permutations(range(block.num_rows))), np.int64)
    mixed = shaper.gather([shaper.concat([block])], order)
    taken = _leaf([rows[start:][number] for number in order], data_type)
    assert _lists(mixed.to_batch()["s"]) == taken
    for number, part in enumerate(mixed.split(2)):
        assert _lists(part["s"]) == _leaf([rows[start:][row] for row in order[2 * number : 2 * number + 2]], data_type)
    if output_format == "torch":
        _check_moves(mixed.to_batch())


def _check_moves(batch: TensorBatch) -> None:
    """Check that slabs, pickles, devices and cuts keep a batch."""
    wanted = _lists(batch)
    assert _lists(pickle.loads(pickle.dumps(batch))) == wanted
    assert _lists(batch.to("cpu")) == wanted
    assert [_lists(row) for row in batch.cut([batch.num_rows])] == [wanted]
    assert sum(part.num_rows for part in batch.cut([1] * batch.num_rows)) == batch.num_rows
    assert _lists(round_trip(batch)) == wanted


SCHEMA = pa.schema(
    [
        ("user", pa.struct([("id", pa.int64()), ("geo", pa.struct([("lat", pa.float32()), ("name", pa.string())]))])),
        ("label", pa.int64()),
        ("weights", pa.map_(pa.int64(), pa.float32())),
        ("items", pa.list_(pa.struct([("id", pa.int32()), ("price", pa.decimal128(6, 2))]))),
        ("chat", pa.list_(pa.struct([("role", pa.string()), ("text", pa.string())]))),
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "user": {"id": number, "geo": {"lat": number / 2, "name": f"n{number}"}},
            "label": number,
            "weights": [(number, 0.5)] * number,
            "items": [{"id": number, "price": number}] * (2 - number),
            "chat": [{"role": "user", "text": "hi"}],
        }
        for number in range(3)
    ],
    schema=SCHEMA,
)


def _batch(output_format: Any = "torch", columns: Any = None, **options: Any) -> Any:
    return prepared_shaper(output_format, select_fields(SCHEMA, columns), **options)[1].block([ROWS]).to_batch()


def test_maps_and_lists_of_structs_of_numbers_are_dicts_of_ragged_columns() -> None:
    batch = _batch()
    assert [batch["weights"][name].to_list()[2] for name in ("key", "value")] == [[2, 2], [0.5, 0.5]]
    assert batch["items"]["id"].to_list()[0] == [0, 0]
    assert batch["items"]["price"].values.dtype == torch.float64
    assert batch["chat"] == [[{"role": "user", "text": "hi"}]] * 3
    assert split_rows(batch, 3)[1]["user"]["geo"] == {"lat": 0.5, "name": "n1"}


def test_maps_of_text_in_structs_are_lists_of_pairs() -> None:
    maps = pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64()))
    rows = pa.record_batch({"s": pa.StructArray.from_arrays([maps, pa.array(range(3))], ["m", "x"])})
    batch = prepared_shaper("torch", rows.schema)[1].block([rows]).to_batch()
    assert batch["s"]["m"] == maps.to_pylist()
    assert batch["s"]["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_columns_choose_fields_and_batches_keep_their_nesting(output_format: Any) -> None:
    batch = _batch(output_format, ["user.geo.lat", "label", "user.id"])
    assert {name: list(inside) if isinstance(inside, dict) else inside.tolist() for name, inside in batch.items()} == {
        "user": ["geo", "id"],
        "label": [0, 1, 2],
    }
    assert list(batch["user"]["geo"]) == ["lat"]


def test_arrow_and_dicts_hold_structs_of_the_chosen_fields() -> None:
    chosen = ["user.geo.lat", "label"]
    assert _batch("dict", chosen)["user"] == [{"geo": {"lat": number / 2}} for number in range(3)]
    assert _batch("arrow", chosen).schema.field("user").type == pa.struct([("geo", pa.struct([("lat", pa.float32())]))])


def test_fields_are_named_with_dots_in_other_options() -> None:
    batch = _batch(
        columns=["user", "label"],
        stack={"m": ["user.geo.lat", "user.id"]},
        encode={"user.geo.name": Hash(buckets=10)},
        nulls={"label": "mask", "user.geo.name": "mask"},
        dtypes=check_dtypes("dtypes", {"m": "float32"}),
    )
    assert batch["m"].tolist() == [[0.0, 0.0], [0.5, 1.0], [1.0, 2.0]]
    assert list(batch["user"]["geo"]) == ["name", "name_mask"]
    assert batch["user"]["geo"]["name"].dtype == torch.int64
    assert "id" not in batch["user"]


def test_a_null_struct_has_null_fields() -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"s": {"a": 1}}, {"s": None}], pa.schema([("s", pa.struct([("a", pa.int64())]))])
    )
    with pytest.raises(
        NullValueError, match=r"column 's\.a' \(int64\) has 1 null in .*nulls=\{\"s\.a\": \(\"fill\", value"
    ):
        prepared_shaper("torch", rows.schema)[1].block([rows])
    batch = prepared_shaper("torch", rows.schema, nulls={"s.a": ("fill", 7)})[1].block([rows]).to_batch()
    assert batch["s"]["a"].tolist() == [1, 7]


def test_a_stack_with_the_name_of_a_struct_is_refused() -> None:
    with pytest.raises(ConfigError, match="two entries of a batch would be called 'user': a struct, and a stack"):
        prepared_shaper("torch", SCHEMA, stack={"user": ["label"]})


def test_the_note_about_objects_can_be_pasted() -> None:
    note = objects_note(SCHEMA, prepared_shaper("torch", SCHEMA)[0])
    assert "not tensors, for 'user.geo.name' (string), 'chat' (list<" in note
    assert 'encode={"user.geo.name": Hash(buckets=1_000_000)}' in note
    columns = ["user.id", "user.geo.lat", "label", "weights", "items"]
    assert f"columns={columns}." in note
    selected = select_fields(SCHEMA, columns)
    assert objects_note(selected, prepared_shaper("torch", selected)[0]) == ""
    texts = pa.schema(
        [
            ("city", pa.dictionary(pa.int8(), pa.string())),
            ("tags", pa.list_(pa.string())),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    note = objects_note(texts, prepared_shaper("torch", texts)[0])
    assert 'encode={"city": Hash(buckets=1_000_000), "tags": Hash(buckets=1_000_000)}, or' in note
    assert "Without these columns" not in note


@pytest.mark.parametrize("option", ["nulls", "encode", "stack"])
def test_a_struct_where_a_column_is_wanted_is_told_its_fields(option: str) -> None:
    wrong: Any = {"nulls": {"user": "mask"}, "encode": {"user": Hash(buckets=3)}, "stack": {"x": ["user"]}}[option]
    with pytest.raises(ConfigError, match=r"user'?, which .*; it has the fields 'user\.id', 'user\.geo\.lat'"):
        prepared_shaper("torch", SCHEMA, **{option: wrong})
