"""The slab ring: memory is used again only when nobody can see it any more, and nothing stays behind."""

import gc
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import Lanes, StructuredDataset, TensorBatch
from torch_dataloader_utils.shape.slab import TensorBatchCodec
from torch_dataloader_utils.stream.transport.slabs import SlabMemory, SlabReader, SlabWriter

has_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc to look at")


def make_batch(number, rows, memory=None):
    """A batch of which nothing lies in slabs, or, with their memory, all but the names."""
    x, y = torch.full((rows,), number), torch.arange(rows) + number
    if memory is not None:
        x, y = (memory.take(values.nbytes)[: values.nbytes].view(values.dtype).copy_(values) for values in (x, y))
    return TensorBatch({"x": x, "y": y, "s": [str(number)] * rows})


class Ends:
    """Both ends of a ring, in one process."""

    def __init__(self):
        self.memory = SlabMemory()
        self.reader = SlabReader(TensorBatchCodec())
        self.writer = SlabWriter(TensorBatchCodec(), self.memory, self.reader.describe_held())

    def copy(self, batches):
        self.writer.begin()
        return [self.writer.copy(batch, len(batches) - index) for index, batch in enumerate(batches)]

    def refer(self, batches):
        self.writer.begin()
        return [self.writer.refer(batch) for batch in batches]

    def view(self, messages):
        return [self.reader.view(batch) for batch in self.reader.open(messages)]

    def free(self):
        self.memory.free(self.reader.take_freed())

    def next_pass(self):
        held = self.reader.describe_held()
        self.memory.keep_only(held.regions)
        self.writer = SlabWriter(TensorBatchCodec(), self.memory, held)


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans(), st.booleans(), st.sets(st.integers(0, 5))), max_size=30))
@settings(max_examples=effort(50), deadline=None)
def test_a_visible_slab_is_never_written_again(steps):
    """Each step hands over a batch of some rows, copied or where it lies, or loses it on the way with a pass that ends;
    keeps views of it, and drops some of those that were kept before."""
    ends, kept = Ends(), []
    for number, (rows, lies, is_lost, drops) in enumerate(steps):
        ends.free()
        messages = (
            ends.refer([make_batch(number, rows, ends.memory)]) if lies else ends.copy([make_batch(number, rows)])
        )
        if is_lost:
            ends.next_pass()
        else:
            (batch,) = ends.view(messages)
            assert batch["s"] == [str(number)] * rows
            kept.append((number, rows, batch["x"], batch["y"][rows // 2 :]))
            del batch
        kept = [entry for index, entry in enumerate(kept) if index not in drops]
        for label, size, x, y in kept:
            assert (x == label).all()
            assert (y == torch.arange(size)[size // 2 :] + label).all()


@pytest.mark.parametrize("lies", [True, False])
def test_slabs_go_round_when_batches_are_dropped(lies):
    ends, slabs = Ends(), set()
    for number in range(20):
        ends.free()
        (message,) = (
            ends.refer([make_batch(number, 100, ends.memory)]) if lies else ends.copy([make_batch(number, 100)])
        )
        slabs |= {buffer.slab for buffer in message.buffers}
        assert (message.layout is None) == (number > 0)
        assert (message.slabs == ()) == (number > 0)
        ends.view([message])
    gc.collect()
    assert len(slabs) == 1


def test_what_lies_in_slabs_is_not_copied():
    ends = Ends()
    batch = make_batch(5, 1000, ends.memory)
    (message,) = ends.refer([TensorBatch({name: column[100:] for name, column in batch.items()})])
    ((_, start, stop),) = message.buffers
    assert (start % 4096, stop - start) == (800, 8192 + 7200)  # x, and y behind it
    (view,) = ends.view([message])
    batch["x"][500] = -1  # the same memory, through another mapping in a worker's place
    assert view["x"][400] == -1
    assert ends.writer.copied_bytes == 0


def test_the_rows_of_a_block_are_free_when_all_responses_that_have_some_are_dropped():
    ends = Ends()
    block = make_batch(1, 1000, ends.memory)
    first, second = block.cut([500, 500])
    views = [ends.view(ends.refer([part]))[0] for part in (first, second)]
    del block, first, second
    used = ends.memory.recycled.used_bytes
    for _ in range(2):
        ends.free()
        taken = ends.memory.take(8000)
        assert ends.memory.recycled.used_bytes > used  # both halves of the memory are still looked at
        del taken
        if len(views) == 2:
            del views[0]
    del views[0]
    ends.free()
    ends.memory.take(8000)
    assert ends.memory.recycled.used_bytes < used


def test_batches_that_travel_together_share_a_slab_until_the_last_of_them_dies():
    ends = Ends()
    messages = ends.copy([make_batch(number, 100) for number in range(4)])
    assert len({buffer.slab for message in messages for buffer in message.buffers}) == 1
    assert [len(message.slabs) for message in messages] == [1, 0, 0, 0]
    waiting = ends.reader.open(messages)
    del messages
    last = None
    for number in range(4):
        batch = ends.reader.view(waiting.popleft())
        assert batch["y"].tolist() == list(range(number, number + 100))
        last = batch["x"]
        del batch
        assert ends.reader.take_freed() == ()
    del last
    assert len(ends.reader.take_freed()) == 1


def test_batches_of_any_size_travel_together_and_others_as_they_are():
    ends = Ends()
    batches = [make_batch(0, 10), "no batch for slabs", make_batch(1, 5000), make_batch(2, 10)]
    messages = ends.copy(batches)
    assert messages[1] == batches[1]
    for came, batch in zip(ends.view(messages), batches, strict=True):
        assert came == batch if isinstance(batch, str) else came["y"].tolist() == batch["y"].tolist()


@pytest.mark.slow
def test_the_trainer_lets_go_of_slabs_that_the_worker_let_go_of():
    ends = Ends()
    for number in range(40):  # 10 MB and more each, each time another size: more than is held
        ends.free()
        ends.view(ends.copy([make_batch(number, 600_000 + 40_000 * number)]))
    assert sum(map(len, ends.reader._slabs.values())) <= 160 << 20
    held = ends.reader.describe_held()
    assert 0 < len(held.slabs) < 40
    assert held.regions == ()


def open_slabs():
    gc.collect()
    return sum("tdu_shared" in str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())


@has_proc
def test_many_small_buffers_are_few_open_files():
    memory = SlabMemory()
    before = open_slabs()
    kept = [memory.take(70_000) for _ in range(1000)]
    assert len({memory.find(tensor).slab for tensor in kept}) == open_slabs() - before <= 20
    places = sorted(memory.find(tensor) for tensor in kept)
    assert all(one.slab != other.slab or other.start - one.start >= 70_000 for one, other in pairwise(places))


@has_proc
def test_memory_that_is_let_go_of_goes_though_nothing_travels_in_slabs():
    memory, before = SlabMemory(), open_slabs()
    for mebibytes in range(10, 60):
        memory.take(mebibytes << 20)
    assert open_slabs() - before <= 4


@pytest.mark.processes
@has_proc
def test_the_trainer_keeps_no_slab_of_a_pass_that_is_over(large_row_groups):
    # By fork: Python 3.14 may complain about memory of its forkserver that is freed in a cycle.
    options = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader, _ = StructuredDataset.create_dataloader(str(large_row_groups), batch_size=1000, **options)
    before = open_slabs()
    assert sum(batch.num_rows for batch in loader) == ROWS
    assert open_slabs() == before


@pytest.mark.processes
@has_proc
def test_hundreds_of_shuffled_columns_are_few_open_files(tmp_path):
    rows = np.arange(60_000)
    table = pa.table({f"c{number}": (rows + number).astype(np.float32) for number in range(200)})
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=20_000)
    loader, _ = StructuredDataset.create_dataloader(
        str(tmp_path), batch_size=5000, num_workers=1, shuffle=True, shuffle_rows=20_000
    )
    before = open_slabs()
    kept = list(loader)
    assert sum(batch.num_rows for batch in kept) == 60_000
    assert all((batch["c199"] == batch["c0"] + 199).all() for batch in kept)
    assert open_slabs() - before < 40


def test_slabs_of_a_worker_that_is_gone_are_forgotten_and_mistaken_for_no_other():
    old = Ends()
    old.view(old.copy([make_batch(1, 100)]))
    new = Ends()
    new.reader = old.reader
    new.next_pass()
    (batch,) = new.view(new.copy([make_batch(2, 100)]))
    assert (batch["x"] == 2).all()
    assert len(new.reader.describe_held().slabs) == 1


@pytest.mark.processes
def test_a_trainer_that_keeps_every_batch_sees_them_unchanged(tmp_path):
    total = write_table(tmp_path, [[400, 300], [500]])
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), batch_size=16, num_workers=2)
    kept = list(loader)
    assert sorted(row for batch in kept for row in check_batch(batch)) == list(range(total))


ROWS, ROW_GROUP = 90_000, 20_000


@pytest.fixture(scope="module")
def large_row_groups(tmp_path_factory):
    """Row groups that are handed over where they lie: 160 KB a column."""
    folder = tmp_path_factory.mktemp("large")
    for part in range(2):
        rows = np.arange(part * ROWS // 2, (part + 1) * ROWS // 2)
        table = pa.table({"row": rows, "half": (rows / 2).astype(np.float32), "even": rows % 2 == 0})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=ROW_GROUP)
    return folder


def check_rows(batch):
    rows = batch["row"]
    assert torch.equal(batch["half"], (rows.double() / 2).float())
    assert torch.equal(batch["even"], rows % 2 == 0)
    return rows.tolist()


@pytest.mark.processes
@pytest.mark.cases(4)
@pytest.mark.parametrize("batch_size", [1000, 4999, 20_000, 45_000])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "shuffle_rows": 30_000}])
def test_row_groups_that_lie_in_slabs_arrive_as_they_are(large_row_groups, batch_size, options):
    options = {"batch_size": batch_size, "num_workers": 2, **options}
    loader, _ = StructuredDataset.create_dataloader(str(large_row_groups), **options)
    assert sorted(row for batch in loader for row in check_rows(batch)) == list(range(ROWS))


@pytest.mark.processes
def test_batches_of_several_lanes_arrive_as_they_are(large_row_groups):
    options = {"batch_size": 1000, "num_workers": 2, "lanes": Lanes(8, rows=500)}
    loader, _ = StructuredDataset.create_dataloader(str(large_row_groups), **options)
    assert sorted(row for batch in loader for row in check_rows(batch)) == list(range(ROWS))


@pytest.mark.cases(1)
@pytest.mark.processes
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_they_do_under_every_start_method(large_row_groups, context):
    options = {"batch_size": 4999, "num_workers": 2, "multiprocessing_context": context}
    loader, _ = StructuredDataset.create_dataloader(str(large_row_groups), **options)
    assert sorted(row for batch in loader for row in check_rows(batch)) == list(range(ROWS))


def test_the_storage_of_a_batch_is_what_travelled_with_it_and_no_more():
    ends = Ends()
    kept = [make_batch(number, 1000, ends.memory) for number in range(5)]
    (copied,), (lying,) = ends.view(ends.copy([make_batch(7, 50)])), ends.view(ends.refer([kept[2]]))
    assert copied["x"].untyped_storage().nbytes() <= 2 * 448
    assert lying["x"].untyped_storage().nbytes() <= 8192 + 8000


@pytest.mark.processes
@has_proc
def test_a_transform_that_returns_lists_opens_no_more_files_with_every_batch(tmp_path):
    lists = pa.table({"list": [[row] * (row % 5) for row in range(4000)]})
    pq.write_table(lists, tmp_path / "lists.parquet")
    options = {"batch_size": 10, "num_workers": 1, "transform": count_files}
    counts = [batch["files"] for batch in StructuredDataset.create_dataloader(str(tmp_path), **options)[0]]
    assert counts[-1] - counts[20] <= 10


def count_files(batch):
    batch["files"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return batch


@pytest.mark.processes
def test_batches_of_earlier_passes_stay_what_they_are(large_row_groups):
    """Persistent workers go on with the slabs of the pass before: some batches are kept, and some never came."""
    loader, _ = StructuredDataset.create_dataloader(
        str(large_row_groups), batch_size=1000, num_workers=2, persistent_workers=True, shuffle=True
    )
    kept = []
    for epoch in range(6):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            rows = check_rows(batch)
            if number % 13 == epoch:
                kept.append((rows, batch))
            if epoch % 2 and number == 17 * epoch:
                break
        for rows, batch in kept:
            assert check_rows(batch) == rows
        if epoch == 3:
            kept.clear()


PROGRAM = """
import os, signal, sys, time
from torch_dataloader_utils import StructuredDataset
loader, _ = StructuredDataset.create_dataloader(sys.argv[1], batch_size=8, num_workers=2, prefetch_factor=4)
batches = iter(loader)
kept = [next(batches) for _ in range(5)]
print(os.getpid(), flush=True)
while True:  # a signal that comes just before one waits is heard after the wait
    time.sleep(0.1)
"""


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm to look at")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_trainer_leaves_no_worker_and_no_shared_memory(tmp_path, how):
    write_table(tmp_path, [[400, 300], [500]])
    trainer = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        process = psutil.Process(int(trainer.stdout.readline()))
        workers = process.children(recursive=True)
        assert len(workers) >= 2
        pids = [str(process.pid) for process in (process, *workers)]
        trainer.send_signal(how)
        trainer.wait(timeout=600)
        _, alive = psutil.wait_procs(workers, timeout=600)
        assert alive == []
    finally:
        trainer.kill()
        trainer.wait(timeout=60)
        trainer.stdout.close()
    assert [path for path in Path("/dev/shm").glob("torch_*") if path.name.split("_")[1] in pids] == []
