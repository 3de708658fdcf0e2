"""Slabs have no name, and reach other processes as torch's own shared memory does."""

import os
from pathlib import Path

import pytest
import torch
from torch import multiprocessing

from torch_dataloader_utils.stream.shared_memory import shared_bytes


def fill(queue, answers):
    tensor = queue.get()
    tensor.fill_(7)
    answers.put(int(tensor.sum()))
    answers.get()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_both_sides_see_what_the_other_writes(method):
    context = multiprocessing.get_context(method)
    queue, answers = context.Queue(), context.Queue()
    process = context.Process(target=fill, args=(queue, answers))
    process.start()
    try:
        tensor = shared_bytes(5000)
        assert (tensor.dtype, tensor.shape, int(tensor.sum())) == (torch.uint8, (5000,), 0)
        queue.put(tensor)
        assert answers.get(timeout=60) == 7 * 5000
        assert (tensor == 7).all()
        answers.put(None)
        process.join(timeout=60)
        assert process.exitcode == 0
    finally:
        process.kill()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="of Linux alone")
def test_it_never_has_a_name(monkeypatch):
    def refuse(*args):
        raise AssertionError("named")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    tensor = shared_bytes(1 << 20)
    assert tensor.is_shared()
    assert not list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))
