"""What `shuffle=True` does to data far smaller than the largest chunk, and what is said where it can do little."""

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import StructuredDataset, plan_epoch, scan_files

GROUPS = 10


@pytest.fixture
def path(tmp_path):
    """One file of ten row groups of ten rows."""
    target = tmp_path / "a.parquet"
    pq.write_table(pa.table({"row": np.arange(GROUPS * 10)}), target, row_group_size=10)
    return str(target)


def load(path, **options):
    options = {"batch_size": 10, "num_workers": 0, "shuffle": True, **options}
    return StructuredDataset.create_dataloader(path, **options)


def rows_of(loader):
    return [row for batch in loader for row in batch["row"].tolist()]


def test_row_groups_of_one_small_file_come_in_another_order_in_each_epoch(path):
    loader, dataset = load(path)
    epochs = []
    for epoch in range(4):
        dataset.set_epoch(epoch)
        epochs.append(rows_of(loader))
    assert all(sorted(rows) == list(range(GROUPS * 10)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 4


def test_a_state_between_small_chunks_resumes_on_other_ranks(path):
    loader, _ = load(path, batch_size=4)
    batches = iter(loader)
    seen = [row for _ in range(7) for row in next(batches)["row"].tolist()]
    state = loader.state_dict()
    for rank in range(3):
        rest, _ = load(path, batch_size=5, num_ranks=3, rank=rank)
        rest.load_state_dict(state)
        seen += rows_of(rest)
    assert sorted(seen) == list(range(GROUPS * 10))


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        (
            {"num_ranks": 2},
            r"10 chunks, .* for 2 workers \(of all ranks\)\. .*Pass shuffle=True, which permutes rows too, or write",
        ),
        ({"split_rows": 20}, r"5 chunks.*smaller chunks \(10 row groups: leave out split_rows=\), or write"),
        ({"split_bytes": "128MiB"}, r"1 chunk, .* for 1 worker\. .*leave out split_bytes="),
    ],
)
def test_few_chunks_a_worker_are_warned_of_with_what_helps(path, options, cure):
    with pytest.warns(UserWarning, match=f'shuffle="chunks" mixes little: {cure}'):
        load(path, **options, shuffle="chunks")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(path, **options)
        load(path, **options, shuffle=False)
        load(path, shuffle="chunks")


def test_a_plan_says_how_well_its_shuffle_mixes(path):
    inventory = scan_files(path)

    def explained(**options):
        lines = plan_epoch(inventory, **{"batch_size": 10, "shuffle": "chunks", **options}).explain().splitlines()
        return [line for line in lines if line.startswith("mixing")]

    assert explained() == ["mixing: 10 chunks, 10 per worker; a batch of 10 rows draws from about 1 chunk"]
    assert "10 chunks, 5.0 per worker (few:" in explained(num_ranks=2)[0]
    few = "mixing: 10 chunks, 2.5 per worker (few: 8 or more mix well); "
    few += "a batch of 20 rows draws from about 2 chunks"
    assert explained(num_ranks=2, num_workers=2, batch_size=20) == [few]
    assert explained(shuffle=True, shuffle_rows=40, interleave=4)[0].endswith("draws from about 4 chunks")
    assert explained(shuffle=True, shuffle_rows=100, interleave=4)[0].endswith("draws from about 7 chunks")
    assert explained(shuffle=False) == []


def test_counts_of_one_in_a_plan_are_in_the_singular(path):
    inventory = scan_files(path)
    text = plan_epoch(inventory, batch_size=100, split_rows=100, shuffle=True).explain()
    assert "; 1 chunk\n" in text
    assert "\n1 rank × 1 worker, batch 100, " in text
    assert "mixing: 1 chunk, 1.0 per worker (few: " in text
    assert "\n1 step on every rank" in text
