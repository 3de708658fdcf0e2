"""The parts of a batch group: every row in its batch, and large blocks where they lie."""

from itertools import accumulate

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.stream.batch_groups import LEAST_PART_BYTES, BlockSlice, group_parts

SCHEMA = pa.schema({"row": pa.int64()})
SHAPER = make_shaper("torch", SCHEMA)
LARGE = LEAST_PART_BYTES // 8


@st.composite
def slices_and_rows(draw):
    """Slices of blocks large and small that follow each other, and batches of as many rows in all."""
    sizes = draw(st.lists(st.sampled_from([1, 7, LARGE // 2, LARGE, 3 * LARGE + 5]), min_size=1, max_size=6))
    slices, first = [], 0
    for size in sizes:
        before, after = draw(st.sampled_from([(0, 0), (3, 0), (0, 2)]))
        rows = pa.array(range(first - before, first + size + after), pa.int64())
        block = SHAPER.block([pa.record_batch([rows], schema=SCHEMA)])
        slices.append(BlockSlice(block, before, before + size))
        first += size
    batch = draw(st.sampled_from([5, 100, LARGE // 3, LARGE, 2 * LARGE]))
    full, left = divmod(first, batch)
    return slices, (batch,) * full + ((left,) if left else ())


@pytest.mark.slow
@settings(max_examples=effort(60), deadline=None)
@given(slices_and_rows())
def test_every_row_is_in_its_batch_and_large_blocks_are_not_copied(case):
    slices, rows = case
    parts = list(group_parts(slices, rows, SHAPER))
    assert tuple(count for part in parts for count in part.rows) == rows
    assert all(part.rows and part.batch.num_rows == sum(part.rows) for part in parts)
    assert torch.cat([part.batch["row"] for part in parts]).tolist() == list(range(sum(rows)))
    addresses = {part.batch["row"].untyped_storage().data_ptr() for part in parts}
    borders = list(accumulate(rows, initial=0))
    begin = 0
    for block, start, stop in slices:
        inside = [border for border in borders if begin <= border <= begin + stop - start]
        if inside and inside[-1] - inside[0] >= LARGE:
            assert block.to_batch()["row"].untyped_storage().data_ptr() in addresses
        begin += stop - start
    assert len(parts) <= 2 * len(slices) + 1


def test_small_blocks_are_one_part():
    blocks = [SHAPER.block([pa.record_batch([pa.array([row, row + 1])], schema=SCHEMA)]) for row in range(0, 20, 2)]
    (part,) = group_parts([BlockSlice(block, 0, 2) for block in blocks], (5,) * 4, SHAPER)
    assert part.rows == (5, 5, 5, 5)
    assert part.batch["row"].tolist() == list(range(20))
