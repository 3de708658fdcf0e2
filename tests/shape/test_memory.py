"""Copies that are made and those that are not, and rows that are not there."""

import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_dataloader_utils.shape.gather import gather_rows
from torch_dataloader_utils.shape.shapers import make_shaper


def test_numbers_without_nulls_are_the_arrow_memory() -> None:
    batch = pa.RecordBatch.from_pydict({"f": pa.array(np.arange(10.0)), "l": [[1, 2]] * 10}).slice(2, 6)
    block = make_shaper("torch", batch.schema).block([batch])
    whole = block.to_batch()
    assert whole["f"].data_ptr() == batch["f"].buffers()[1].address + 2 * 8
    assert whole["l"].values.data_ptr() == batch["l"].values.buffers()[1].address + 4 * 8
    pieces = list(block.split(4))
    assert pieces[1]["f"].data_ptr() == whole["f"].data_ptr() + 4 * 8
    assert pieces[1]["l"].values.data_ptr() == whole["l"].values.data_ptr() + 8 * 8


def test_tensors_keep_the_memory_alive_and_take_writes() -> None:
    block = make_shaper("torch", pa.schema([("f", pa.float64())])).block(
        [pa.RecordBatch.from_pydict({"f": [1.0, 2.0]})]
    )
    (batch,) = block.split(8)
    del block
    batch["f"] += 1
    assert batch["f"].tolist() == [2.0, 3.0]


def test_gathered_rows_have_memory_of_their_own() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1.0, 2.0], "b": [3.0, 4.0], "i": [1, 2]})
    shaper = make_shaper("torch", batch.schema, stack={"x": ["a", "b"]})
    block = shaper.block([batch])
    gathered = shaper.gather([block], np.array([1, 0])).to_batch()
    gathered["x"][:] = 0
    gathered["i"][:] = 0
    assert block.to_batch()["x"].tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert batch["i"].to_pylist() == [1, 2]


def test_one_block_alone_is_not_copied_by_concat() -> None:
    shaper = make_shaper("torch", pa.schema([("f", pa.float64())]))
    block = shaper.block([pa.RecordBatch.from_pydict({"f": [1.0]})])
    assert shaper.concat([block]) is block


def test_matrices_are_column_major_through_concat_and_gather() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    shaper = make_shaper("torch", batch.schema, stack={"x": ["a", "b"]})
    block = shaper.block([batch])
    assert block.to_batch()["x"].stride() == (1, 3)
    assert shaper.concat([block, block]).to_batch()["x"].stride() == (1, 6)
    assert shaper.gather([block, block], np.array([5, 0])).to_batch()["x"].stride() == (1, 2)


def test_values_below_a_null_list_are_left_out() -> None:
    # Arrow allows a null list to cover values: here row 1 covers 3 and 4.
    offsets, mask = pa.array([0, 2, 4, 5], pa.int32()), pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(offsets, pa.array([1, 2, 3, 4, 5]), mask=mask)
    batch = pa.RecordBatch.from_arrays([lists], ["l"])
    for rows, wanted in ((batch, [[1, 2], [], [5]]), (batch.slice(1), [[], [5]])):
        assert make_shaper("torch", batch.schema, nulls="mask").block([rows]).to_batch()["l"].to_list() == wanted


def test_nulls_in_a_dictionary_are_nulls() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    batch = pa.RecordBatch.from_arrays([array], ["s"])
    masked = make_shaper("torch", batch.schema, nulls="mask").block([batch]).to_batch()
    assert masked["s"] == ["a", None, None]
    assert masked["s_mask"].tolist() == [True, False, False]


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_zero_columns_keep_their_rows(output_format: Any) -> None:
    shaper = make_shaper(output_format, pa.schema([]))
    block = shaper.block([pa.RecordBatch.from_pydict({"a": [1, 2, 3]}).select([])])
    assert block.num_rows == 3
    assert len(list(block.split(2))) == 2
    assert block.slice(1, 9).slice(1, 2).num_rows == 1
    assert shaper.concat([block, block]).num_rows == 6
    assert shaper.gather([block, block], np.array([5, 0])).num_rows == 2
    if output_format in ("torch", "arrow"):
        assert [batch.num_rows for batch in block.split(2)] == [2, 1]


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_zero_rows_give_no_batches_and_empty_columns(output_format: Any) -> None:
    schema = pa.schema(
        [("f", pa.float32()), ("v", pa.list_(pa.int8(), 3)), ("l", pa.list_(pa.int8())), ("s", pa.string())]
    )
    shaper = make_shaper(output_format, schema)
    block = shaper.block([pa.RecordBatch.from_pylist([], schema=schema)])
    assert list(block.split(4)) == []
    assert shaper.concat([block, block]).num_rows == 0
    nothing = np.array([], dtype=np.int64)
    assert shaper.gather([block, block], nothing).num_rows == 0
    empty = shaper.gather([block], nothing).to_batch()
    assert all(len(empty[name]) == 0 for name in schema.names)
    if output_format == "torch":
        assert empty["v"].shape == (0, 3)


@pytest.mark.parametrize("row", [-1, 3])
@pytest.mark.parametrize("stack", [None, {"x": ["f"]}])
def test_rows_that_do_not_exist_are_an_index_error(row: int, stack: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"f": [1.0, 2.0, 3.0]})
    shaper = make_shaper("torch", batch.schema, stack=stack)
    with pytest.raises(IndexError):
        shaper.gather([shaper.block([batch])], np.array([row]))


def test_a_read_only_order_is_as_good_as_any() -> None:
    batch = pa.RecordBatch.from_pydict({"f": [1.0, 2.0, 3.0]})
    shaper = make_shaper("torch", batch.schema)
    order = np.array([2, 0], dtype=np.int32)
    order.flags.writeable = False
    gathered = shaper.gather([shaper.block([batch])], order)
    assert torch.equal(gathered.to_batch()["f"], torch.tensor([3.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("rows", [[], [3], [5, 0, 5, 2, 1, 4, 3] * 1000])
def test_many_columns_of_one_type_are_gathered_each_in_its_own_place(rows: list[int]) -> None:
    names = [f"c{index}" for index in range(11)]
    batch = pa.RecordBatch.from_arrays([pa.array(range(i, i + 3), pa.int32()) for i in range(11)], names)
    shaper = make_shaper("torch", batch.schema)
    block = shaper.block([batch])
    gathered = shaper.gather([block, block], np.array(rows, dtype=np.int64)).to_batch()
    assert list(gathered) == names
    assert {name: gathered[name].tolist() for name in names} == {
        name: [index + row % 3 for row in rows] for index, name in enumerate(names)
    }


def test_a_few_rows_of_permuted_tensors_are_gathered_without_the_others() -> None:
    images = torch.arange(1000 * 24 * 24).view(1000, 24, 24).permute(0, 2, 1)
    order = torch.tensor([999, 3])
    tracemalloc.start()
    rows = gather_rows([images], order)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows.tolist() == images[order].tolist()
    assert most_bytes < images.nbytes // 10
