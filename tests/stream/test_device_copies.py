"""What the device prefetcher does with CUDA, on a simulated device; and where things are put on any device."""

import json
from collections import OrderedDict, defaultdict, namedtuple
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.simulated_cuda import simulated_cuda
from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import DevicePrefetcher, Ragged, StructuredDataset, TensorBatch
from torch_dataloader_utils.stream.device_copies import to_device

CUDA = "cuda:0"
Pair = namedtuple("Pair", "first second")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[13, 40, 7], [22], [31, 2]])
    return str(folder)


def load(table, **options):
    return StructuredDataset.create_dataloader(table, batch_size=8, **{"shuffle": True, "num_workers": 0} | options)[0]


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_arrive_whole_however_late_the_copies_are(table, seed, depth):
    expected = [check_batch(batch) for batch in load(table)]
    with simulated_cuda(seed) as device:
        received = []
        for batch in DevicePrefetcher(load(table), CUDA, depth=depth):
            assert {str(batch[name].device) for name in ("row", "payload", "file")} == {CUDA}
            received.append(check_batch(batch))
        assert received == expected
        assert len(device.page_locked) <= depth + 1


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_no_buffer_is_written_while_a_copy_reads_it(table, seed):
    expected = [check_batch(batch) for batch in load(table)]
    with simulated_cuda(seed) as device:
        kept = list(DevicePrefetcher(load(table), CUDA))  # nobody looks at them, and so nobody waits for their copies
        assert [check_batch(batch) for batch in kept] == expected
        assert len(device.page_locked) <= 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_is_that_of_the_batches_given_out(table, num_workers):
    expected = [check_batch(batch) for batch in load(table, num_workers=num_workers)]
    with simulated_cuda(3):
        batches = iter(prefetcher := DevicePrefetcher(load(table, num_workers=num_workers), CUDA, depth=3))
        received = [check_batch(next(batches)) for _ in range(4)]
        resumed = DevicePrefetcher(load(table, num_workers=num_workers), CUDA)
        resumed.load_state_dict(json.loads(json.dumps(prefetcher.state_dict())))
        assert received + [check_batch(batch) for batch in resumed] == expected


def test_lists_of_all_lengths_go_through_buffers_that_grow(tmp_path):
    lengths = [1, 5, 0, 300, 2, 0, 900, 4000, 7, 3]
    rows = [list(range(row * 10_000, row * 10_000 + length)) for row, length in enumerate(lengths)]
    pq.write_table(pa.table({"tokens": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, batch_size=2, num_workers=0)
    with simulated_cuda(0):
        given = [row for batch in DevicePrefetcher(loader, CUDA) for row in batch["tokens"].to_list()]
    assert given == rows


class Movable:
    """A batch of the user's own."""

    def __init__(self, x):
        self.x = x

    def to(self, device):
        return Movable(self.x.to(device))


def nested(batch):
    row = batch["row"]
    return {
        "dense": row,
        "inputs": {"ids": row + 1, "deep": [row + 2, (row + 3,)]},
        "pair": Pair(row + 4, "text"),
        "sparse": torch.eye(3).to_sparse(),
        "own": Movable(row + 5),
        "names": batch["name"],
        "ragged": {"r": Ragged(row, torch.tensor([0, len(row)]))},
    }


@pytest.mark.parametrize("name", [CUDA, "meta", "cpu"])
def test_everything_that_a_transform_gives_arrives_on_the_device(table, name):
    loader, alone = load(table, transform=nested), [nested(batch) for batch in load(table)]
    with simulated_cuda() if name == CUDA else nullcontext():
        for batch, same in zip(DevicePrefetcher(loader, name), alone, strict=True):
            tensors = [
                (batch["dense"], same["dense"]),
                (batch["inputs"]["ids"], same["inputs"]["ids"]),
                (batch["inputs"]["deep"][0], same["inputs"]["deep"][0]),
                (batch["inputs"]["deep"][1][0], same["inputs"]["deep"][1][0]),
                (batch["pair"].first, same["pair"].first),
                (batch["own"].x, same["own"].x),
                (batch["ragged"]["r"].values, same["dense"]),
            ]
            for there, here in tensors:
                assert str(there.device) == name
                assert there.shape == here.shape
                assert name == "meta" or there.tolist() == here.tolist()
            assert str(batch["sparse"].device) == name
            assert (batch["pair"].second, batch["names"]) == ("text", same["names"])


def test_batches_without_tensors_pass_as_they_are(table):
    with simulated_cuda():
        batches = list(DevicePrefetcher(load(table, output_format="arrow"), CUDA))
        assert sum(batch.num_rows for batch in batches) == 115
        only_names = [batch["name"] for batch in DevicePrefetcher(load(table, columns=["name"]), CUDA)]
    assert [name for names in only_names for name in names] == [n for b in load(table) for n in b["name"]]


def test_dicts_keep_their_kind_and_what_else_they_hold():
    grouped = defaultdict(list, {"a": [torch.ones(2)]})
    moved = to_device({"grouped": grouped, "ordered": OrderedDict(b=torch.ones(1)), "text": ["x", None]}, "meta")
    assert moved["grouped"]["a"][0].is_meta
    assert moved["grouped"]["missing"] == []
    assert type(moved["ordered"]) is OrderedDict
    assert moved["text"] == ["x", None]
    assert not grouped["a"][0].is_meta


def test_pinned_batches_move_while_the_trainer_goes_on():
    batch = TensorBatch({"x": torch.arange(3.0), "list": Ragged(torch.arange(5), torch.tensor([0, 2, 2, 5]))})
    with simulated_cuda() as device:
        pinned = batch.pin_memory()
        assert pinned["x"].is_pinned()
        moved = pinned.to(CUDA, non_blocking=True)
        assert device.stream.done < device.stream.given
        assert moved["list"].to_list() == [[0, 1], [], [2, 3, 4]]
        assert moved["x"].tolist() == [0, 1, 2]
        assert [part["list"].to_list() for part in moved.cut([1, 2])] == [[[0, 1]], [[], [2, 3, 4]]]


@pytest.mark.parametrize("where", ["cpu", CUDA])
def test_rows_of_a_ragged_on_a_device_are_chosen_by_any_index(where):
    here = Ragged(torch.tensor([7, 8, 9, 4]), torch.tensor([0, 2, 2, 3, 4]))
    with simulated_cuda():
        there = here.to(CUDA)
        for index in (torch.tensor([3, 0]), torch.tensor([-1]), torch.tensor([True, False, True, False])):
            rows = there[index.to(where)]
            assert str(rows.values.device) == str(rows.offsets.device) == CUDA
            assert rows.to_list() == here[index].to_list()
        assert there[::2].to_list() == here[::2].to_list() == [[7, 8], [9]]
        assert there[::-1].to_list() == [[4], [9], [], [7, 8]]
        assert there[0].tolist() == [7, 8]
        assert there.to_padded(-1).tolist() == here.to_padded(-1).tolist()
        padded = there.to_padded(max_length=1, side="left")
        assert padded.tolist() == here.to_padded(max_length=1, side="left").tolist()
