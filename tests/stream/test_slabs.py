"""The slab ring: memory is used again only when nobody can see it any more, and nothing stays behind."""

import gc
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import EFFORT
from tests.stream.tables import check_batch, write_table
from torch_dataloader_utils import StructuredDataset, TensorBatch
from torch_dataloader_utils.shape.slab import TensorBatchCodec
from torch_dataloader_utils.stream.slabs import SlabReader, SlabWriter


def make_batch(number, rows):
    return TensorBatch({"x": torch.full((rows,), number), "y": torch.arange(rows) + number, "s": [str(number)] * rows})


def write(writer, batches):
    writer.begin()
    return [writer.write(batch, len(batches) - index) for index, batch in enumerate(batches)]


def send(writer, reader, batch):
    return reader.view(reader.open(write(writer, [batch])).popleft())


@given(st.lists(st.tuples(st.integers(1, 3000), st.sets(st.integers(0, 5))), max_size=30))
@settings(max_examples=50 * EFFORT, deadline=None)
def test_a_visible_slab_is_never_written_again(steps):
    """Each step writes a batch of some rows, keeps a view of it, and drops some of the views kept before."""
    writer, reader, kept = SlabWriter(TensorBatchCodec()), SlabReader(TensorBatchCodec()), []
    for number, (rows, drops) in enumerate(steps):
        writer.reclaim(reader.take_freed())
        batch = send(writer, reader, make_batch(number, rows))
        assert batch["s"] == [str(number)] * rows
        kept.append((number, rows, batch["x"], batch["y"][rows // 2 :]))
        kept = [entry for index, entry in enumerate(kept) if index not in drops]
        for label, size, x, y in kept:
            assert (x == label).all()
            assert (y == torch.arange(size)[size // 2 :] + label).all()


def test_slabs_go_round_when_batches_are_dropped():
    writer, reader = SlabWriter(TensorBatchCodec()), SlabReader(TensorBatchCodec())
    slabs = set()
    for number in range(20):
        writer.reclaim(reader.take_freed())
        (message,) = write(writer, [make_batch(number, 100)])
        slabs.add(message.slab)
        assert (message.layout is None) == (number > 0)
        reader.view(reader.open([message]).popleft())
    gc.collect()
    assert slabs == {0}


def test_a_larger_batch_gets_a_larger_slab():
    writer, reader = SlabWriter(TensorBatchCodec()), SlabReader(TensorBatchCodec())
    send(writer, reader, make_batch(1, 10))
    writer.reclaim(reader.take_freed())
    (message,) = write(writer, [make_batch(2, 5000)])
    assert message.retired == (0,)
    assert reader.view(reader.open([message]).popleft())["y"].tolist() == list(range(2, 5002))


def test_batches_that_travel_together_share_a_slab_until_the_last_of_them_dies():
    writer, reader = SlabWriter(TensorBatchCodec()), SlabReader(TensorBatchCodec())
    messages = write(writer, [make_batch(number, 100) for number in range(4)])
    assert [message.slab for message in messages] == [0] * 4
    assert [message.buffer is not None for message in messages] == [True, False, False, False]
    waiting = reader.open(messages)
    del messages
    last = None
    for number in range(4):
        batch = reader.view(waiting.popleft())
        assert batch["y"].tolist() == list(range(number, number + 100))
        last = batch["x"]
        del batch
        assert reader.take_freed() == ()
    del last
    assert reader.take_freed() == (0,)


def test_batches_that_are_larger_than_the_first_get_another_slab_and_others_none():
    writer, reader = SlabWriter(TensorBatchCodec()), SlabReader(TensorBatchCodec())
    batches = [make_batch(0, 10), "no batch for slabs", make_batch(1, 5000), make_batch(2, 10)]
    messages = write(writer, batches)
    assert [getattr(message, "slab", None) for message in messages] == [0, None, 1, 1]
    waiting = reader.open(messages)
    for batch in batches:
        came = reader.view(waiting.popleft())
        assert came == batch if isinstance(batch, str) else came["y"].tolist() == batch["y"].tolist()


def test_a_trainer_that_keeps_every_batch_sees_them_unchanged(tmp_path):
    total = write_table(tmp_path, [[400, 300], [500]])
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), batch_size=16, num_workers=2)
    kept = list(loader)
    assert sorted(row for batch in kept for row in check_batch(batch)) == list(range(total))


PROGRAM = """
import os, signal, sys, time
from torch_dataloader_utils import StructuredDataset
loader, _ = StructuredDataset.create_dataloader(sys.argv[1], batch_size=8, num_workers=2, prefetch_factor=4)
batches = iter(loader)
kept = [next(batches) for _ in range(5)]
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm to look at")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_trainer_leaves_no_worker_and_no_shared_memory(tmp_path, how):
    write_table(tmp_path, [[400, 300], [500]])
    trainer = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert trainer.stdout.readline() == b"ready\n"
        workers = psutil.Process(trainer.pid).children(recursive=True)
        assert len(workers) >= 2
        pids = [str(process.pid) for process in (psutil.Process(trainer.pid), *workers)]
        trainer.send_signal(how)
        trainer.wait(timeout=30)
        _, alive = psutil.wait_procs(workers, timeout=30)
        assert alive == []
    finally:
        trainer.kill()
        trainer.wait(timeout=30)
        trainer.stdout.close()
    assert [path for path in Path("/dev/shm").iterdir() if any(pid in path.name for pid in pids)] == []
