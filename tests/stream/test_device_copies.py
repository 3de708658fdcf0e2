"""What the device prefetcher does with CUDA, on a simulated device; and where things are put on any device."""

import json
from collections import Counter, OrderedDict, defaultdict, namedtuple
from contextlib import nullcontext
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.simulated_cuda import Upload, simulated_cuda
from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import DevicePrefetcher, Ragged, StructuredDataset, TensorBatch
from torch_dataloader_utils.errors import TransformError
from torch_dataloader_utils.stream.device import to_device

CUDA = "cuda:0"
Pair = namedtuple("Pair", "first second")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[13, 40, 7], [22], [31, 2]])
    return str(folder)


def load(table, **options):
    return StructuredDataset.create_dataloader(table, **{"batch_size": 8, "shuffle": True, "num_workers": 0} | options)[
        0
    ]


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_arrive_whole_however_late_the_copies_are(table, seed, depth):
    expected = [check_batch(batch) for batch in load(table)]
    with simulated_cuda(seed) as device:
        received = []
        for batch in DevicePrefetcher(load(table), CUDA, depth=depth):
            assert {str(batch[name].device) for name in ("row", "payload", "file")} == {CUDA}
            assert len(device.uploads) == min(len(received) + 1 + depth, len(expected))
            received.append(check_batch(batch))
        assert received == expected
        assert len(device.page_locked) <= depth + 1


def test_the_host_waits_for_no_copy_while_there_are_buffers(table):
    with simulated_cuda() as device:
        assert len(list(DevicePrefetcher(load(table, batch_size=30), CUDA, depth=3))) == 4
        assert [stream.host_waits for stream in (device.stream, *device.streams)] == [0, 0]


def test_a_batch_is_one_copy_that_nobody_waits_for(table):
    with simulated_cuda() as device:
        prefetcher = DevicePrefetcher(load(table, columns=["row", "payload", "file"]), CUDA)
        sizes = []
        for epoch in range(2):
            prefetcher.set_epoch(epoch)
            sizes += [192 for _ in prefetcher]  # three columns of up to 8 rows, each at a multiple of 64 bytes
        (stream,) = device.streams  # one for all passes, for memory belongs to the stream that it was made for
        assert device.uploads == [Upload(size, True, True, stream) for size in sizes]


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_no_buffer_is_written_while_a_copy_reads_it(table, seed):
    expected = [check_batch(batch) for batch in load(table)]
    with simulated_cuda(seed) as device:
        kept = list(DevicePrefetcher(load(table), CUDA))  # nobody looks at them, and so nobody waits for their copies
        assert [check_batch(batch) for batch in kept] == expected
        assert len(device.page_locked) <= 3


def test_the_host_runs_ahead_of_the_device_by_few_steps(table):
    with simulated_cuda() as device:
        done = []
        for step, _ in enumerate(DevicePrefetcher(load(table), CUDA, depth=2), start=1):
            assert step - 1 - len(done) <= 3
            device.stream.add(lambda step=step: done.append(step))


@pytest.mark.processes
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
    with simulated_cuda(0) as device:
        given = [row for batch in DevicePrefetcher(loader, CUDA) for row in batch["tokens"].to_list()]
        assert given == rows
        assert {storage.nbytes() for storage in device.page_locked.values()} == {128, 2048, 32768}


class Movable:
    """A batch of the user's own."""

    def __init__(self, x):
        self.x = x

    def to(self, device):
        return Movable(self.x.to(device))


class MovesInPlace(Movable):
    def to(self, device):
        self.x = self.x.to(device)


def nested(batch):
    row = batch["row"]
    return {
        "dense": row,
        "inputs": {"ids": row + 1, "deep": [row + 2, (row + 3,)]},
        "pair": Pair(row + 4, "text"),
        "sparse": torch.eye(3).to_sparse(),
        "own": Movable(row + 5),
        "in place": MovesInPlace(row + 6),
        "names": batch["name"],
        "ragged": {"r": Ragged(row, torch.tensor([0, len(row)]))},
    }


def tensors_of(batch):
    ids = batch["inputs"]
    dense = [batch["dense"], ids["ids"], ids["deep"][0], ids["deep"][1][0], batch["pair"].first]
    return [*dense, batch["ragged"]["r"].values, batch["own"].x, batch["in place"].x]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch's, where a sparse tensor is unpickled
@pytest.mark.parametrize("name", [CUDA, "meta", "cpu"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_everything_that_a_transform_gives_arrives_on_the_device(table, name, num_workers):
    loader, alone = load(table, transform=nested, num_workers=num_workers), map(nested, load(table))
    with simulated_cuda() if name == CUDA else nullcontext() as device:
        for batch, same in zip(DevicePrefetcher(loader, name), alone, strict=True):
            for there, here in zip(tensors_of(batch), tensors_of(same), strict=True):
                assert str(there.device) == name
                assert there.shape == here.shape
                assert name == "meta" or there.tolist() == here.tolist()
            assert str(batch["sparse"].device) == name
            assert name != CUDA or batch["sparse"].memory.streams == {device.stream}
            assert (batch["pair"].second, batch["names"]) == ("text", same["names"])


def test_what_is_nested_is_copied_with_the_rest(table):
    def transform(batch):
        return {"inputs": {"ids": batch["row"], "more": [batch["payload"]]}, "labels": batch["file"]}

    with simulated_cuda() as device:
        batches = list(DevicePrefetcher(load(table, transform=transform), CUDA))
        assert len(device.uploads) == len(batches)
        assert all(upload.is_async and upload.is_page_locked for upload in device.uploads)


@pytest.mark.parametrize("name", [CUDA, "meta"])
@pytest.mark.parametrize("columns", [["row", "name"], ["name"]])
def test_a_dict_that_is_put_into_a_batch_moves_with_it(table, name, columns):
    def transform(batch):
        batch["more"] = {"ids": torch.arange(batch.num_rows)}
        return batch

    with simulated_cuda() if name == CUDA else nullcontext():
        batches = list(DevicePrefetcher(load(table, columns=columns, transform=transform), name))
    assert {str(batch["more"]["ids"].device) for batch in batches} == {name}
    assert {type(batch) for batch in batches} == {TensorBatch}


def test_batches_without_tensors_pass_as_they_are(table):
    with simulated_cuda():
        batches = list(DevicePrefetcher(load(table, output_format="arrow"), CUDA))
        assert sum(batch.num_rows for batch in batches) == 115
        only_names = [batch["name"] for batch in DevicePrefetcher(load(table, columns=["name"]), CUDA)]
    assert [name for names in only_names for name in names] == [n for b in load(table) for n in b["name"]]


class Edge(NamedTuple):
    frm: int
    to: int


class Output(OrderedDict):
    """As those of Transformers' models."""

    def update(self, *args, **kwargs):
        raise TypeError("You cannot use update on an Output")


def test_containers_keep_their_kind_and_what_else_they_hold():
    grouped = defaultdict(list, {"a": [torch.ones(2)]})
    frame = SimpleNamespace(to=[1], x=[2])  # as a data frame with such a column has it
    batch = {
        "grouped": grouped,
        "output": Output(b=torch.ones(1)),
        "count": Counter(a=3),
        "text": ["x", None],
        "edge": Edge(1, 2),
        "size": torch.ones(2, 3).shape,
        "frame": frame,
    }
    moved = to_device(batch, torch.device("meta"))
    assert moved["grouped"]["a"][0].is_meta
    assert moved["grouped"]["missing"] == []
    assert type(moved["output"]) is Output
    assert moved["output"]["b"].is_meta
    for same in ("count", "text", "edge", "size", "frame"):
        assert moved[same] is batch[same]
    assert not grouped["a"][0].is_meta
    assert to_device(unmoved := {"a": {"b": [1, 2]}}, torch.device("meta")) is unmoved


class OutOfMemory:
    """Does not fit on the device the third time."""

    calls = 0

    def to(self, device):
        OutOfMemory.calls += 1
        if OutOfMemory.calls == 3:
            raise torch.OutOfMemoryError("no room")
        return self


@pytest.mark.parametrize("name", [CUDA, "meta"])
def test_the_state_counts_no_batch_that_could_not_be_moved(table, name, monkeypatch):
    monkeypatch.setattr(OutOfMemory, "calls", 0)
    with simulated_cuda() if name == CUDA else nullcontext():
        prefetcher = DevicePrefetcher(load(table, transform=lambda b: {"x": b["row"], "o": OutOfMemory()}), name)
        received = []
        with pytest.raises(torch.OutOfMemoryError):
            received.extend(prefetcher)
    assert len(received) == 2
    assert prefetcher.state_dict()["log"]["steps"] == [2]


def test_a_pass_that_fails_before_its_first_batch_is_at_its_start(table):
    fails = []

    def transform(batch):
        if fails:
            raise ValueError("a bad day")
        return batch

    with simulated_cuda():
        prefetcher = DevicePrefetcher(load(table, transform=transform), CUDA, depth=3)
        batches = iter(prefetcher)
        next(batches), next(batches)
        batches.close()
        assert prefetcher.state_dict()["log"]["steps"] == [2]
        fails.append(True)
        with pytest.raises(TransformError, match="a bad day"):
            next(iter(prefetcher))
    assert prefetcher.state_dict() == load(table).state_dict()


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
        for wrong in ([4], [-5], [0, 9]):
            with pytest.raises(IndexError, match="of 4"):
                there[torch.tensor(wrong)]
        with pytest.raises(IndexError, match="mask"):
            there[torch.tensor([True, False])]
        padded = there.to_padded(max_length=1, side="left")
        assert padded.tolist() == here.to_padded(max_length=1, side="left").tolist()
