"""RowDataset where others read it: DataLoader under all start methods, samplers, wrappers, Accelerate, torchdata."""

import json

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tests.row_dataset.test_rows import TOTAL, number_of
from tests.stream.tables import TABLE, check_batch, write_table
from torch_dataloader_utils import RowDataset
from torch_dataloader_utils.wrappers import (
    BufferSortedDataset,
    DatasetImplementingSortKeyProtocol,
    ShardedDataset,
    ShardIndexingMode,
    pad_stack_1d,
    streaming_shard,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores, on purpose
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),  # torchdata calls it
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, TABLE)
    return str(folder)


def as_it_is(rows):
    return rows


def numbers(loader):
    """Row numbers batch by batch, of default-collated batches."""
    batches = []
    for batch in loader:
        assert batch["payload"].tolist() == [row * 7919 % 1000003 for row in batch["row"].tolist()]
        batches.append(batch["row"].tolist())
    return batches


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_worker_processes_after_rows_were_read_here(table, start_method):
    rows = RowDataset(table, length_column="row")
    assert number_of(rows[100]) == 100
    assert rows.sort_key(5) == 5
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(
        rows,
        batch_size=8,
        shuffle=True,
        num_workers=2 if start_method == "fork" else 1,  # the others import torch in every worker
        generator=generator,
        multiprocessing_context=start_method,
    )
    batches = numbers(loader)
    assert sorted(row for batch in batches for row in batch) == list(range(TOTAL))
    assert batches != sorted(batches)


@pytest.mark.processes
def test_batches_without_single_rows(table):
    rows = RowDataset(table)
    loader = DataLoader(range(len(rows)), batch_size=10, shuffle=True, collate_fn=rows.take, num_workers=2)
    assert sorted(row for batch in loader for row in check_batch(batch)) == list(range(TOTAL))


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_distributed_sampler(table, num_ranks):
    seen = []
    for rank in range(num_ranks):
        rows = RowDataset(table)
        sampler = DistributedSampler(rows, num_replicas=num_ranks, rank=rank, shuffle=True, seed=3)
        sampler.set_epoch(2)
        seen += [row for batch in numbers(DataLoader(rows, batch_size=7, sampler=sampler)) for row in batch]
    assert set(seen) == set(range(TOTAL))
    assert len(seen) == -(-TOTAL // num_ranks) * num_ranks


@pytest.mark.parametrize("mode", list(ShardIndexingMode))
def test_sharded_dataset(table, mode):
    shards = [ShardedDataset(RowDataset(table, length_column="row"), 4, rank, mode, False) for rank in range(4)]
    seen = [[number_of(row) for row in shard] for shard in shards]
    assert sorted(row for shard in seen for row in shard) == list(range(TOTAL))
    assert [shards[2].sort_key(i) for i in range(len(shards[2]))] == seen[2]


def test_streaming_shard_gives_exact_strides(table):
    rows = RowDataset(table, columns=["row"], output_format="dict")
    for index in range(3):
        assert [row["row"] for row in streaming_shard(rows, 3, index)] == list(range(index, TOTAL, 3))


@pytest.mark.processes
def test_buffer_sorted_dataset_reads_only_the_lengths_to_sort(table):
    rows = RowDataset(table, length_column="name")
    assert isinstance(rows, DatasetImplementingSortKeyProtocol)
    by_length = BufferSortedDataset(rows, buffer_size=40, pack_size=8, init_seed=1)
    keys = [by_length.sort_key(index) for index in range(len(by_length))]
    assert rows.cache_info().misses == 0
    loader = DataLoader(by_length, batch_size=8, num_workers=1)
    seen = [batch["name"] for batch in loader]
    assert [len(name) for batch in seen for name in batch] == keys
    assert sorted(name for batch in seen for name in batch) == sorted(f"row-{row}" for row in range(TOTAL))


def test_ragged_rows_are_1d_tensors(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"tokens": [[1, 2, 3], [4], [5, 6]]}), tmp_path / "rows.parquet")
    rows = RowDataset(tmp_path, length_column="tokens")
    (batch,) = DataLoader(rows, batch_size=3, collate_fn=lambda rows: pad_stack_1d([r["tokens"] for r in rows], 0))
    assert batch.tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]


def test_accelerate_shards_it(table):
    accelerate = pytest.importorskip("accelerate")
    from accelerate.data_loader import prepare_data_loader

    assert accelerate.__version__
    seen = []
    for rank in range(2):
        loader = prepare_data_loader(
            DataLoader(RowDataset(table), batch_size=9),
            device=torch.device("cpu"),
            num_processes=2,
            process_index=rank,
            put_on_device=False,
            even_batches=False,
            rng_types=None,
        )
        seen += [row for batch in numbers(loader) for row in batch]
    assert sorted(seen) == list(range(TOTAL))


@pytest.mark.cases(1)
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_stateful_dataloader_resumes(table, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def load():
        return stateful.StatefulDataLoader(RowDataset(table), batch_size=10, num_workers=num_workers)

    whole = numbers(load())
    loader = load()
    batches = iter(loader)
    assert [next(batches)["row"].tolist() for _ in range(4)] == whole[:4]
    state = loader.state_dict()
    del batches
    resumed = load()
    resumed.load_state_dict(state)
    assert numbers(resumed) == whole[4:]
    assert isinstance(json.dumps(list(state)), str)
