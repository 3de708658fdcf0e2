"""Batch groups: batches that a worker process sends as one arrive as the batches that they are."""

from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.stream.tables import check_batch, check_same_passes, write_table
from torch_dataloader_utils import Lanes, Ragged, StructuredDataset, TensorBatch
from torch_dataloader_utils.stream.transport.receiver import group_length
from torch_dataloader_utils.stream.transport.requests import RequestSampler
from torch_dataloader_utils.stream.transport.slabs import SlabReader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # 3 workers, on purpose


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
@settings(max_examples=effort(50), deadline=None)
def test_cut_batches_are_the_rows_in_turn(rows):
    total = sum(rows)
    lengths = torch.arange(total) % 3
    batch = TensorBatch(
        {
            "x": torch.arange(total),
            "matrix": torch.arange(2 * total).view(2, total).t(),
            "list": Ragged(
                torch.arange(int(lengths.sum())), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            ),
            "name": [str(row) for row in range(total)],
        }
    )
    pieces = list(batch.cut(rows))
    assert [piece.num_rows for piece in pieces] == rows
    for piece, (start, stop) in zip(pieces, pairwise(accumulate(rows, initial=0)), strict=True):
        assert torch.equal(piece["x"], batch["x"][start:stop])
        assert torch.equal(piece["matrix"], batch["matrix"][start:stop])
        assert piece["name"] == batch["name"][start:stop]
        assert [values.tolist() for values in piece["list"]] == [values.tolist() for values in batch["list"]][
            start:stop
        ]


def test_a_batch_without_columns_is_cut_by_its_row_count():
    assert [piece.num_rows for piece in TensorBatch(num_rows=5).cut([2, 3])] == [2, 3]


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 7), st.lists(st.integers(1, 9), min_size=1))
def test_requests_to_one_worker_after_the_other_ask_for_all_that_it_has(batches, workers, length, sizes):
    """Process p gets requests p, p + W, ...; the size changes at any request."""
    sampler = RequestSampler()
    readers = [SlabReader(None)] * workers
    size = sampler.start([None] * workers, workers=range(workers), count=batches, group_length=length, readers=readers)
    asked = [0] * workers
    for number, request in enumerate(sampler):
        assert (request.start is not None) == (number < workers)
        asked[number % workers] += request.batches
        size.batches = sizes[number % len(sizes)]
    assert asked == [-(-len(range(worker, batches, workers)) // length) for worker in range(workers)]


def same(batch):
    return batch


def load(folder, **options):
    return StructuredDataset.create_dataloader(str(folder), **{"shuffle": True, "split_rows": 90, **options})


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """400 rows in three row groups: 22 batches of 6 rows make a group, and most lie in one row group."""
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[200, 90], [110]])
    return folder


@pytest.mark.processes
@pytest.mark.cases(3)
@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"shuffle_rows": 50}, {"lanes": Lanes(36, rows=1)}])
def test_batches_states_and_counts_are_the_same_one_by_one_and_in_groups(table, num_workers, options):
    loader, dataset = load(table, batch_size=6, num_workers=num_workers, **options)
    works = dataset.plan.worker_inputs(0)
    assert group_length(works, dataset.pipeline) > 3
    single, _ = load(table, batch_size=6, num_workers=num_workers, transform=same, timeout=600, **options)
    check_same_passes(loader, single)


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("stop", [1, 7, 24, 25, 66])
def test_a_resumed_pass_in_groups_gives_the_rest(table, stop):
    options = {"batch_size": 6, "num_workers": 2}
    whole, _ = load(table, **options)
    expected = [check_batch(batch) for batch in whole]
    loader, _ = load(table, **options)
    batches = iter(loader)
    came = [check_batch(next(batches)) for _ in range(stop)]
    state = loader.state_dict()
    del batches
    resumed, _ = load(table, **options)
    resumed.load_state_dict(state)
    assert came + [check_batch(batch) for batch in resumed] == expected


@pytest.mark.parametrize(("rows", "length"), [(900_000, 30), (750_000, 37)])  # of 40 bytes: a third, half
def test_a_batch_group_has_some_megabytes_and_is_an_equal_part_of_a_row_group(tmp_path, rows, length):
    random = np.random.default_rng(0).random(rows)
    wide_table = pa.table({f"x{i}": random for i in range(5)})
    pq.write_table(wide_table, tmp_path / "wide.parquet", row_group_size=rows, use_dictionary=False)
    _, wide = load(tmp_path, batch_size=10_000, num_workers=1, split_rows=None)
    assert group_length(wide.plan.worker_inputs(0), wide.pipeline) == length


@pytest.mark.slow
def test_a_batch_group_of_repeated_values_is_as_long_as_its_rows_are_once_decoded(tmp_path):
    same = pa.table({f"x{i}": np.zeros(900_000) for i in range(5)})
    same = same.append_column(
        "l", pa.FixedSizeListArray.from_arrays(pa.nulls(900_000 * 10, pa.float64()).fill_null(0), 10)
    )
    pq.write_table(same, tmp_path / "same.parquet", row_group_size=900_000)
    for columns, length in ((None, 12), (["x0", "x1", "x2", "x3", "x4"], 30)):  # a seventh, a third
        _, dataset = load(tmp_path, batch_size=10_000, num_workers=1, split_rows=None, columns=columns)
        assert group_length(dataset.plan.worker_inputs(0), dataset.pipeline) == length


def test_a_batch_group_has_at_most_64_batches_and_no_more_rows_than_a_row_group(tmp_path):
    write_table(tmp_path, [[300_000]])
    _, narrow = load(tmp_path, batch_size=100, num_workers=1, split_rows=None)
    assert group_length(narrow.plan.worker_inputs(0), narrow.pipeline) == 64
    folder = tmp_path / "short"
    folder.mkdir()
    write_table(folder, [[20, 20, 20]])
    _, short = load(folder, batch_size=6, num_workers=1)
    assert group_length(short.plan.worker_inputs(0), short.pipeline) == 3
    _, large = load(folder, batch_size=64, num_workers=1)
    assert group_length(large.plan.worker_inputs(0), large.pipeline) is None


def test_large_batches_travel_as_groups_of_one(tmp_path):
    write_table(tmp_path, [[200_000]])
    _, large = load(tmp_path, batch_size=200_000, num_workers=1, split_rows=None)
    assert group_length(large.plan.worker_inputs(0), large.pipeline) == 1
