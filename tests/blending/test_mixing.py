"""Mixing rows of batches, against Python lists."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_dataloader_utils.blending.mixing import BatchSlice, BlendStep, RowStream, mix_rows, mixed_batches
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch


def ragged(ids):
    lengths = torch.tensor([row % 3 for row in ids], dtype=torch.int64)
    return Ragged(
        torch.repeat_interleave(torch.tensor(ids), lengths), torch.cat([torch.zeros(1).long(), lengths.cumsum(0)])
    )


def changed(column, change):
    return Ragged(change(column.values), column.offsets)


KINDS = {
    "int64": lambda ids: torch.tensor(ids),
    "bfloat16": lambda ids: torch.tensor(ids).to(torch.bfloat16),
    "trained": lambda ids: torch.tensor(ids).float().requires_grad_(),
    "matrix": lambda ids: torch.tensor([[row, -row] for row in ids]),
    "array": np.array,
    "text": lambda ids: [str(row) for row in ids],
    "ragged": ragged,
    "ragged bfloat16": lambda ids: changed(ragged(ids), lambda values: values.to(torch.bfloat16)),
    "ragged, trained": lambda ids: changed(ragged(ids), lambda values: values.float().requires_grad_()),
}


def listed(column):
    return [values.tolist() for values in column] if isinstance(column, Ragged) else [*map(str, column)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_mixed_rows_are_those_of_the_parts_in_their_order(kind, data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    batches = [[100 * number + row for row in range(size)] for number, size in enumerate(sizes)]
    columns = [TensorBatch({"id": torch.tensor(ids), "x": KINDS[kind](ids)}) for ids in batches]
    picks = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=8))
    parts, expected = [], []
    for number in picks:
        start = data.draw(st.integers(0, sizes[number] - 1))
        stop = data.draw(st.integers(start + 1, sizes[number]))
        parts.append(BatchSlice(columns[number], start, stop))
        expected += batches[number][start:stop]
    border = data.draw(st.integers(0, len(expected)))
    counts = [count for count in (border, len(expected) - border) if count]
    mixed = list(mix_rows(parts, counts))
    assert [batch.num_rows for batch in mixed] == counts
    assert [row for batch in mixed for row in batch["id"].tolist()] == expected
    assert [row for batch in mixed for row in listed(batch["x"])] == listed(KINDS[kind](expected))
    assert all(type(batch["x"]) is type(columns[0]["x"]) for batch in mixed)


@pytest.mark.parametrize(
    ("first", "second"), [("int64", "bfloat16"), ("int64", "matrix"), ("int64", "text"), ("array", "int64")]
)
def test_columns_of_two_kinds_are_refused(first, second):
    parts = [BatchSlice(TensorBatch({"x": KINDS[kind]([1, 2])}), 0, 1) for kind in (first, second)]
    with pytest.raises(ConfigError, match="differ in column 'x'"):
        mix_rows(parts, [2])


def test_what_one_batch_gives_alone_is_not_copied():
    batch = TensorBatch({"x": torch.arange(4)})
    (whole,) = mix_rows([BatchSlice(batch, 0, 4)], [4])
    assert whole is batch
    table = pa.record_batch({"x": [1, 2, 3, 4]})
    assert [part.to_pydict() for part in mix_rows([BatchSlice(table, 1, 4)], [1, 2])] == [{"x": [2]}, {"x": [3, 4]}]


def test_the_first_step_waits_for_nothing_else_and_large_batches_come_one_by_one():
    def taken_before_each_step(rows):
        taken = []

        def batches():
            for number in range(20):
                taken.append(number)
                yield 0, TensorBatch({"x": torch.full((rows,), number)})

        steps = (BlendStep(np.array([rows]), is_last=False) for _ in range(16))
        return [len(taken) for _ in mixed_batches([RowStream(batches())], steps)]

    assert taken_before_each_step(10) == [1, 3, 3, 7, 7, 7, 7, *[15] * 8, 16]
    assert taken_before_each_step(1 << 20) == list(range(1, 17))
