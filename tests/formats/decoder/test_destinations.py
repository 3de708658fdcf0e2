"""Numbers stay where they were decoded to, and memory of a batch that is held is never written to again."""

import gc
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine import needs_engine
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._arrow.process_memory import RECYCLED
from torch_dataloader_utils.shape.shapers import make_shaper

pytestmark = needs_engine

GROUPS, ROWS, FLOATS = 12, 30_000, 7


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Column f<i> of row r is r + i, `row` is r; one integer stands among the floats, one column has nulls."""
    folder = tmp_path_factory.mktemp("numbers")
    row = np.arange(GROUPS * ROWS)
    columns = {f"f{i}": (row % 1_000_003 + i).astype(np.float32) for i in range(FLOATS)}
    columns = {"f0": columns.pop("f0"), "row": row, **columns, "small": row.astype(np.int8)}
    columns["maybe"] = pa.array(row, pa.int64(), mask=row % 5 == 0)
    half = pa.table(columns).slice(0, GROUPS // 2 * ROWS), pa.table(columns).slice(GROUPS // 2 * ROWS)
    for number, part in enumerate(half):
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=ROWS)
    return folder


def is_right(batch, order):
    rows = batch["row"]
    floats = torch.stack([batch[f"f{i}"] for i in order]) if "x" not in batch else batch["x"].T
    wanted = rows[None] + torch.tensor(order)[:, None]
    flags = torch.equal(batch["maybe_mask"], rows % 5 != 0)
    return flags and torch.equal(floats, wanted.float()) and torch.equal(batch["small"], rows.to(torch.int8))


@pytest.mark.processes
@settings(max_examples=6, deadline=None)
@given(
    stacked=st.sampled_from([None, tuple(range(FLOATS)), (3, 1, 5)]),
    num_workers=st.sampled_from([0, 0, 2]),
    window=st.sampled_from([None, ROWS]),
    batch_size=st.sampled_from([1000, 9000]),
    held=st.sets(st.integers(0, GROUPS * ROWS // 1000), max_size=20),
)
def test_a_batch_that_is_held_keeps_its_rows_while_the_loader_goes_on(
    table, stacked, num_workers, window, batch_size, held
):
    order = stacked or tuple(range(FLOATS))
    options = {"stack": {"x": [f"f{i}" for i in stacked]}} if stacked else {}
    loader, _ = StructuredDataset.create_dataloader(
        str(table),
        batch_size=batch_size,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        shuffle=window is not None,
        shuffle_rows=window,
        nulls={"maybe": "mask"},
        **options,
    )
    kept = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen = []
        for number, batch in enumerate(loader):
            assert is_right(batch, order)
            seen += batch["row"].tolist()
            if number in held:
                kept.append(batch)
        assert sorted(seen) == list(range(GROUPS * ROWS))
    del batch
    assert all(is_right(each, order) for each in kept)


def record_batch(starts, rows, whole):
    """Columns of float32 that begin at these bytes of one buffer."""
    buffer = pa.py_buffer(whole)
    arrays = [
        pa.Array.from_buffers(pa.float32(), rows, [None, buffer[start : start + 4 * rows]], null_count=0)
        for start in starts
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[str(number) for number in range(len(arrays))])


@given(
    rows=st.sampled_from([0, 1, 5, 100]),
    starts=st.one_of(
        st.lists(st.integers(0, 300).map(lambda each: 4 * each), min_size=1, max_size=4),
        st.tuples(st.integers(0, 50), st.integers(1, 110), st.integers(1, 4)).map(
            lambda each: [4 * (each[0] + number * each[1]) for number in range(each[2])]
        ),
    ),
)
def test_a_stack_is_where_its_columns_lie_only_if_they_are_a_matrix_there(rows, starts):
    whole = np.arange(700, dtype=np.float32).view(np.uint8)
    batch = record_batch(starts, rows, whole)
    stack = make_shaper("torch", batch.schema, stack={"x": batch.schema.names}).block([batch]).to_batch()["x"]
    assert torch.equal(
        stack, torch.tensor([[start // 4 + row for start in starts] for row in range(rows)]).view(stack.shape)
    )
    distances = {after - before for before, after in pairwise(starts)} or {4 * rows}
    lies = rows > 0 and len(distances) == 1 and min(distances) >= 4 * rows
    first = whole.ctypes.data + starts[0]
    assert (stack.data_ptr() == first) == lies


def test_columns_of_two_buffers_are_no_matrix():
    whole = np.arange(200, dtype=np.float32)
    apart = [whole[:100], whole[100:]]
    arrays = [record_batch([0], 50, each.view(np.uint8)).column(0) for each in apart]
    batch = pa.RecordBatch.from_arrays(arrays, names=["a", "b"])
    stack = make_shaper("torch", batch.schema, stack={"x": ["a", "b"]}).block([batch]).to_batch()["x"]
    assert not whole.ctypes.data <= stack.data_ptr() < whole.ctypes.data + whole.nbytes


def test_what_lies_in_recycled_memory_is_not_copied_again():
    memory = RECYCLED.take(1 << 20)
    batch = record_batch([0, 1 << 18], 1 << 15, memory)
    other = record_batch([0], 1 << 15, np.zeros(1 << 18, np.uint8)).rename_columns(["2"])
    schema = pa.schema([*batch.schema, *other.schema])
    block = make_shaper("torch", schema).with_copied_columns(100).block([batch, other]).to_batch()
    address = memory.ctypes.data
    assert [block[name].data_ptr() - address for name in ("0", "1")] == [0, 1 << 18]
    assert RECYCLED.span_of(block["2"].data_ptr())
    assert RECYCLED.span_of(block["2"].data_ptr()) != RECYCLED.span_of(address)
    assert address + len(memory) not in RECYCLED.span_of(address)


def _tensors_of(table, **options):
    """Return how many tensors the garbage collector sees more in the middle of an epoch, without a batch's own."""
    loader, _ = StructuredDataset.create_dataloader(str(table), batch_size=ROWS, num_workers=0, nulls="fill", **options)
    batches = iter(loader)
    gc.collect()
    before = sum(isinstance(each, torch.Tensor) for each in gc.get_objects())
    columns = len(next(batches))
    found = sum(isinstance(each, torch.Tensor) for each in gc.get_objects())
    batches.close()
    return found - before - columns


def test_row_groups_and_windows_hold_a_few_tensors_however_many_columns_they_have(tmp_path):
    columns = {f"f{i}": np.arange(4 * ROWS, dtype=np.float32) for i in range(90)}
    columns["i"] = np.arange(4 * ROWS)
    columns["maybe"] = pa.array(columns["i"], mask=columns["i"] % 5 == 0)
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=ROWS)
    assert _tensors_of(tmp_path) < 40
    assert _tensors_of(tmp_path, shuffle=True, shuffle_rows=ROWS) < 40
