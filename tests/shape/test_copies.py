"""Blocks that are copies: the same values, and none of the memory that they were decoded to."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_dataloader_utils._arrow.process_memory import RECYCLED
from torch_dataloader_utils.shape.reused_memory import SMALLEST_BYTES
from torch_dataloader_utils.shape.shapers import make_shaper

ROWS = SMALLEST_BYTES  # a column of bytes is large enough
LEAST = 100


def make_table(rows):
    numbers = np.arange(rows)
    nulls = numbers % 7 == 0
    lists = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * 2, pa.int32()), pa.array(np.arange(2 * rows)))
    return pa.table(
        {
            "a": pa.array(numbers.astype(np.float32)),
            "long": pa.array(numbers),
            "b": pa.array(numbers.astype(np.float32) + 1),
            "maybe": pa.array(numbers.astype(np.int16), mask=nulls),
            "flag": pa.array(numbers % 3 == 0),
            "tiny": pa.array(numbers.astype(np.int8)),
            "when": pa.array(numbers, pa.timestamp("us")),
            "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * rows)), 2),
            "list": lists,
            "name": pa.array(numbers.astype(str)),
            "c": pa.array(numbers.astype(np.float32) + 2),
        }
    )


def parts_of(table):
    """A few columns at a time, as a reader gives them."""
    names = table.column_names
    batch = pa.record_batch([column.combine_chunks() for column in table.columns], schema=table.schema)
    return [batch.select(names[start : start + 3]) for start in range(0, len(names), 3)]


def storages(block):
    for column in block.to_batch().values():
        tensors = column if isinstance(column, (tuple, list)) else [column]
        if hasattr(column, "offsets"):
            tensors = [column.values, column.offsets]
        yield from (tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1, 100, ROWS])
@pytest.mark.parametrize("options", [{}, {"stack": {"x": ["a", "b"]}}])
def test_copies_are_the_same_rows(rows, options):
    table = make_table(rows)
    shaper = make_shaper("torch", table.schema, nulls={"maybe": "mask", "flag": "mask"}, **options)
    copying = shaper.with_copied_columns(LEAST)
    plain, copied = shaper.block(parts_of(table)).to_batch(), copying.block(parts_of(table)).to_batch()
    assert list(plain) == list(copied)
    for name, column in plain.items():
        other = copied[name]
        if isinstance(column, torch.Tensor):
            assert other.dtype == column.dtype
            assert torch.equal(other, column)
        else:
            assert list(map(str, other)) == list(map(str, column))


def test_large_columns_lie_in_recycled_memory_those_of_one_dtype_side_by_side(monkeypatch):
    taken = []
    take = RECYCLED.take

    def remember(num_bytes):
        taken.append(take(num_bytes))
        return taken[-1]

    monkeypatch.setattr(RECYCLED, "take", remember)
    table = make_table(ROWS)
    shaper = make_shaper("torch", table.schema, nulls={"maybe": "mask"})
    block = shaper.with_copied_columns(LEAST).block(parts_of(table))
    addresses = {array.ctypes.data for array in taken}
    assert {storage.data_ptr() for storage in storages(block)} == addresses
    assert len(taken) == 4  # for all columns of one number a row, for pairs, for values and offsets of lists
    batch = block.to_batch()
    assert abs(batch["b"].data_ptr() - batch["a"].data_ptr()) in (4 * ROWS, 8 * ROWS)


def test_small_blocks_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(RECYCLED, "take", None)
    table = make_table(ROWS)
    shaper = make_shaper("torch", table.schema, nulls={"maybe": "mask"})
    shaper.with_copied_columns(ROWS * 37).block(parts_of(table))  # numbers and masks take 36 bytes a row, lists 16
