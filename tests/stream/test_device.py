"""The device prefetcher on the CPU, and on CUDA where there is one: same batches, same state."""

import json

import pyarrow.compute as pc
import pytest
import torch

from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import DevicePrefetcher, StructuredDataset
from torch_dataloader_utils.errors import ConfigError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[13, 40, 7], [22]])
    return str(folder)


def load(table, **options):
    return StructuredDataset.create_dataloader(table, batch_size=8, shuffle=True, num_workers=0, **options)[0]


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_batches_arrive_on_the_device(table, device):
    expected = [check_batch(batch) for batch in load(table)]
    batches = list(DevicePrefetcher(load(table), device))
    assert {batch["row"].device.type for batch in batches} == {device}
    assert [check_batch(batch) for batch in batches] == expected


@pytest.mark.parametrize("device", DEVICES)
def test_the_state_is_that_of_the_batches_given_out(table, device):
    expected = [check_batch(batch) for batch in load(table)]
    prefetcher = DevicePrefetcher(load(table), device, depth=3)
    assert len(prefetcher) == len(expected)
    for step, _ in enumerate(prefetcher, start=1):
        resumed = DevicePrefetcher(load(table), device)
        resumed.load_state_dict(json.loads(json.dumps(prefetcher.state_dict())))
        rest = [check_batch(batch) for batch in resumed]
        assert rest == (expected[step:] if step < len(expected) else rest)
    assert prefetcher.state_dict()["epoch"] == 1
    prefetcher.set_epoch(1)
    assert len(list(prefetcher)) == len(expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mover", ["set_epoch", "load_state_dict", "pass"])
def test_the_state_follows_a_loader_that_was_moved_behind_its_back(table, device, mover):
    loader = load(table)
    later = load(table)
    later.set_epoch(2)
    next(batches := iter(later))
    prefetcher = DevicePrefetcher(loader, device)
    given = iter(prefetcher)
    for _ in range(3):
        next(given)
    assert prefetcher.state_dict()["log"]["steps"] == [3]
    if mover == "set_epoch":
        loader.dataset.set_epoch(1)
    elif mover == "load_state_dict":
        loader.load_state_dict(later.state_dict())
    else:
        next(iter(loader))
    assert prefetcher.state_dict() == loader.state_dict()
    del batches


@pytest.mark.parametrize("device", DEVICES)
def test_the_state_is_that_of_the_batches_given_out_where_row_counts_are_not_known(table, device):
    options = {"filters": pc.bit_wise_and(pc.field("row"), 3) > 0, "count_rows": False}
    expected = [check_batch(batch) for batch in load(table, **options)]
    prefetcher = DevicePrefetcher(load(table, **options), device, depth=3)
    for step, _ in enumerate(prefetcher, start=1):
        resumed = load(table, **options)
        resumed.load_state_dict(prefetcher.state_dict())
        assert [check_batch(batch) for batch in resumed] == expected[step:]


class Immovable:
    def to(self, device, non_blocking=False):
        raise MemoryError("the device is full")


def with_row_20_immovable(batch):
    return {"row": batch["row"], "more": [Immovable()] if 20 in batch["row"] else []}


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_cannot_be_placed_is_not_counted_as_received(table, num_workers):
    pytest.importorskip("accelerate", reason="a loader places batches where Accelerate has prepared it")
    options = {"batch_size": 8, "num_workers": num_workers}
    loader, _ = StructuredDataset.create_dataloader(table, transform=with_row_20_immovable, **options)
    loader.place("cpu")
    rows = []
    with pytest.raises(MemoryError):
        rows.extend(row for batch in loader for row in batch["row"].tolist())
    resumed, _ = StructuredDataset.create_dataloader(table, **options)
    resumed.load_state_dict(loader.state_dict())
    rows += [row for batch in resumed for row in batch["row"].tolist()]
    assert sorted(rows) == list(range(82))


def test_a_depth_of_nothing_is_an_error(table):
    with pytest.raises(ConfigError, match="depth"):
        DevicePrefetcher(load(table), "cpu", depth=0)
