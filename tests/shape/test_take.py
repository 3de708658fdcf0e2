"""Rows in another order: run-end encoded columns too, which pyarrow's take does not know."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._arrow.batches import take_rows
from torch_dataloader_utils.errors import SchemaError, UnsupportedFeatureError
from torch_dataloader_utils.shape.shapers import make_shaper

VALUES = [
    pa.array([1, None, 2, 3, 3]),
    pa.array(["a", "b", None, "c", "d"]),
    pa.array(["a", "b", None, "a", "b"]).dictionary_encode(),
    pa.array([[1], None, [2, 3], [], [4]]),
    pa.array([{"x": 1}, {"x": 2}, None, {"x": 3}, {"x": 4}]),
    pa.array([[[i], [i + 1]] for i in range(6)], pa.list_(pa.list_(pa.int8(), 1), 2)).slice(1),
]


def run_ends(values, lengths, run_end_type=pa.int32):
    return pa.RunEndEncodedArray.from_arrays(pa.array(np.cumsum(lengths), run_end_type()), values)


@settings(max_examples=effort(60), deadline=None)
@given(
    values=st.sampled_from(VALUES),
    lengths=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    run_end_type=st.sampled_from([pa.int16, pa.int32, pa.int64]),
    data=st.data(),
)
def test_rows_of_run_ends_are_the_ones_that_are_meant(values, lengths, run_end_type, data):
    runs = run_ends(values, lengths, run_end_type)
    start = data.draw(st.integers(0, len(runs) - 1))
    runs = runs.slice(start, data.draw(st.integers(1, len(runs) - start)))
    order = data.draw(st.lists(st.integers(0, len(runs) - 1), max_size=12))
    rows = pa.record_batch({"plain": range(len(runs)), "runs": runs})
    taken = take_rows(rows, np.array(order, dtype=np.int64))
    taken.validate(full=True)
    assert taken.schema == rows.schema
    assert taken.to_pylist() == [rows.to_pylist()[place] for place in order]


def test_neighbours_of_one_run_stay_one_run():
    rows = pa.record_batch({"runs": run_ends(pa.array(["a", "b"]), [3, 1])})
    taken = take_rows(rows, np.array([0, 3, 1, 2]))["runs"]
    assert taken.values.to_pylist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    "column",
    [
        pa.StructArray.from_arrays([run_ends(pa.array([1, 2]), [2, 2])], ["x"]),
        pa.ListArray.from_arrays([0, 1, 2, 3, 4], run_ends(pa.array([1, 2]), [2, 2])),
    ],
    ids=["struct", "list"],
)
def test_run_ends_inside_of_others_are_refused_with_the_name_of_the_column(column):
    rows = pa.record_batch({"plain": range(4), "nested": column})
    with pytest.raises(UnsupportedFeatureError, match=r"column 'nested'.*another order"):
        take_rows(rows, np.array([2, 0]))


def test_more_rows_than_run_ends_can_say_are_refused():
    rows = pa.record_batch({"runs": run_ends(pa.array(["a", "b"]), [1, 1], pa.int16)})
    with pytest.raises(UnsupportedFeatureError, match="column 'runs'"):
        take_rows(rows, np.arange(40_000) % 2)


def test_categories_inside_of_others_that_do_not_join_are_refused_with_the_name_of_the_column():
    def rows(group):
        numbers = pa.array(range(100), pa.int8())
        categories = pa.DictionaryArray.from_arrays(numbers, [f"{group}-{number}" for number in range(100)])
        return pa.record_batch({"plain": range(100), "nested": pa.StructArray.from_arrays([categories], ["x"])})

    shaper = make_shaper("arrow", rows(0).schema)
    with pytest.raises(SchemaError, match=r"do not join .*\['nested'\]. Write these columns with a wider index"):
        shaper.concat([shaper.block([rows(0)]), shaper.block([rows(1)])])


def test_row_groups_that_join_to_more_rows_than_run_ends_can_say_are_refused_with_the_name_of_the_column():
    rows = pa.record_batch({"plain": range(20_000), "runs": run_ends(pa.array(["a"]), [20_000], pa.int16)})
    shaper = make_shaper("arrow", rows.schema)
    with pytest.raises(SchemaError, match=r"do not join .*\['runs'\]. Write these columns with a wider index"):
        shaper.concat([shaper.block([rows]), shaper.block([rows])])
