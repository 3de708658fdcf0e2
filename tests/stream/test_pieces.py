"""A run in pieces: every row in its batch, and large blocks where they lie."""

from itertools import accumulate

import pyarrow as pa
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import EFFORT
from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.stream.batch_groups import LEAST_PART_BYTES, BlockSlice, group_parts

SCHEMA = pa.schema({"row": pa.int64()})
SHAPER = make_shaper("torch", SCHEMA)
LARGE = LEAST_PART_BYTES // 8


@st.composite
def spans_and_rows(draw):
    """Spans of blocks large and small that follow each other, and batches of as many rows in all."""
    sizes = draw(st.lists(st.sampled_from([1, 7, LARGE // 2, LARGE, 3 * LARGE + 5]), min_size=1, max_size=6))
    spans, first = [], 0
    for size in sizes:
        before, after = draw(st.sampled_from([(0, 0), (3, 0), (0, 2)]))
        rows = pa.array(range(first - before, first + size + after), pa.int64())
        block = SHAPER.block([pa.record_batch([rows], schema=SCHEMA)])
        spans.append(BlockSlice(block, before, before + size))
        first += size
    batch = draw(st.sampled_from([5, 100, LARGE // 3, LARGE, 2 * LARGE]))
    full, left = divmod(first, batch)
    return spans, (batch,) * full + ((left,) if left else ())


@settings(max_examples=60 * EFFORT, deadline=None)
@given(spans_and_rows())
def test_every_row_is_in_its_batch_and_large_blocks_are_not_copied(case):
    spans, rows = case
    pieces = list(group_parts(spans, rows, SHAPER))
    assert tuple(count for piece in pieces for count in piece.rows) == rows
    assert all(piece.rows and piece.batch.num_rows == sum(piece.rows) for piece in pieces)
    assert torch.cat([piece.batch["row"] for piece in pieces]).tolist() == list(range(sum(rows)))
    addresses = {piece.batch["row"].untyped_storage().data_ptr() for piece in pieces}
    borders = list(accumulate(rows, initial=0))
    begin = 0
    for block, start, stop in spans:
        inside = [border for border in borders if begin <= border <= begin + stop - start]
        if inside and inside[-1] - inside[0] >= LARGE:
            assert block.to_batch()["row"].untyped_storage().data_ptr() in addresses
        begin += stop - start
    assert len(pieces) <= 2 * len(spans) + 1


def test_small_blocks_are_one_piece():
    blocks = [SHAPER.block([pa.record_batch([pa.array([row, row + 1])], schema=SCHEMA)]) for row in range(0, 20, 2)]
    (piece,) = group_parts([BlockSlice(block, 0, 2) for block in blocks], (5,) * 4, SHAPER)
    assert piece.rows == (5, 5, 5, 5)
    assert piece.batch["row"].tolist() == list(range(20))
