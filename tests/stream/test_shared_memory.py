"""Memory for slabs, epochs and notes has no name, and reaches other processes as torch's own shared memory does."""

import copy
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import multiprocessing

from torch_dataloader_utils._runtime.shared_memory import SharedEpoch, shared_bytes
from torch_dataloader_utils.stream.transport.worker_death import Notes


def work(queue, answers, epoch, notes):
    tensor = queue.get()
    tensor.fill_(7)
    epoch.value += 1
    with notes.reading(1, "a.parquet row group 3"):
        answers.put(int(tensor.sum()))
        answers.get()


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_both_sides_see_what_the_other_writes(method):
    context = multiprocessing.get_context(method)
    queue, answers = context.Queue(), context.Queue()
    epoch, notes = SharedEpoch(3), Notes(2)
    process = context.Process(target=work, args=(queue, answers, epoch, notes))
    process.start()
    try:
        epoch.value = 4
        tensor = shared_bytes(5000)
        assert (tensor.dtype, tensor.shape, int(tensor.sum())) == (torch.uint8, (5000,), 0)
        queue.put(tensor)
        assert answers.get(timeout=200) == 7 * 5000
        assert (tensor == 7).all()
        assert epoch.value == 5
        assert notes.of_pid(process.pid) == f"Worker process 1 (pid {process.pid}), reading a.parquet row group 3"
        answers.put(None)
        process.join(timeout=200)
        assert process.exitcode == 0
    finally:
        process.kill()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda epoch: pickle.loads(pickle.dumps(epoch))])
def test_a_copy_of_an_epoch_is_shared_with_its_own_workers_alone(copied):
    epoch = SharedEpoch(3)
    other = copied(epoch)
    other.value = 8
    assert (epoch.value, other.value) == (3, 8)
    assert other._memory.values.is_shared()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="of Linux alone")
def test_it_never_has_a_name(monkeypatch):
    def refuse(*args):
        raise AssertionError("named")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    made = (shared_bytes(1 << 20), SharedEpoch()._memory.values, Notes(2)._pids, Notes(2)._text)
    assert all(tensor.is_shared() for tensor in made)
    assert not list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))
