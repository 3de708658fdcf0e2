"""Recycled memory: used again only when no tensor can see it any more, and never hoarded."""

import os
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._arrow.process_memory import private_bytes
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory, size_class
from torch_dataloader_utils.shape.reused_memory import SMALLEST_BYTES, new_tensor

MANY = SMALLEST_BYTES // 4


@given(st.lists(st.tuples(st.integers(MANY, 4 * MANY), st.sets(st.integers(0, 5))), max_size=30))
@settings(max_examples=effort(50), deadline=None)
def test_memory_that_a_tensor_sees_is_never_lent_again(steps):
    kept = []
    for number, (count, drops) in enumerate(steps):
        tensor = new_tensor((count,), torch.int32).fill_(number)
        kept.append((number, tensor[count // 2 :].view(torch.uint8)))
        kept = [entry for index, entry in enumerate(kept) if index not in drops]
        for label, view in kept:
            assert (view.view(torch.int32) == label).all()


@pytest.mark.parametrize(
    "look",
    [lambda t: t.numpy(), lambda t: t.t(), lambda t: t.unbind()[-1], lambda t: torch.utils.dlpack.from_dlpack(t)],
)
def test_every_way_of_looking_keeps_the_memory(look):
    tensor = new_tensor((2, MANY), torch.int32).fill_(7)
    seen = look(tensor)
    del tensor
    others = [new_tensor((2, MANY), torch.int32).fill_(8) for _ in range(3)]
    assert (seen == 7).all()
    del others


def test_the_same_memory_comes_again_once_it_is_free():
    memory = RecycledMemory(private_bytes)
    tensor = torch.from_numpy(memory.take(1_000_000))
    address = tensor.data_ptr()
    assert address % 64 == 0
    del tensor
    assert torch.from_numpy(memory.take(990_000)).data_ptr() == address
    assert (memory.used_bytes, memory.idle_bytes) == (size_class(1_000_000), 0)


def test_the_next_pass_finds_the_memory_of_the_one_before():
    memory = RecycledMemory(private_bytes)
    tensors = [torch.from_numpy(memory.take(20 << 20)) for _ in range(6)]
    addresses = {tensor.data_ptr() for tensor in tensors}
    tensors.clear()
    assert {torch.from_numpy(memory.take(20 << 20)).data_ptr() for _ in range(6)} <= addresses
    assert memory.idle_bytes == 100 << 20


def test_sizes_that_nobody_asks_for_are_let_go_first():
    memory = RecycledMemory(untouched)
    for size in (16 << 20, 24 << 20):
        kept = [memory.take(size) for _ in range(2)]
        kept.clear()
    memory.take(1 << 20)
    assert memory.idle_bytes == 64 << 20  # of 80 MiB
    kept = [memory.take(24 << 20), memory.take(24 << 20)]
    assert memory.idle_bytes == (16 + 1) << 20  # one of 16 MiB was let go of
    kept.clear()


@given(st.lists(st.tuples(st.sampled_from([1, 3, 16, 17, 40, 300]), st.sets(st.integers(0, 5))), max_size=60))
@settings(max_examples=effort(30), deadline=None)
def test_a_quarter_more_is_held_than_was_in_use_at_once_or_64_mib_lie_idle(steps):
    memory, used, most = RecycledMemory(untouched), [], 0
    for mebibytes, drops in steps:
        used = [array for index, array in enumerate(used) if index not in drops]
        used.append(memory.take(mebibytes << 20))
        assert memory.used_bytes == sum(map(len, used))
        most = max(most, memory.used_bytes)
        assert memory.idle_bytes <= min(max(most * 1.25 - memory.used_bytes, 64 << 20), 512 << 20)


def test_memory_that_cannot_be_had_is_not_counted():
    def allocate(num_bytes):
        if num_bytes > 1 << 20:
            raise MemoryError
        return untouched(num_bytes)

    memory = RecycledMemory(allocate)
    for _ in range(3):
        with pytest.raises(MemoryError):
            memory.take(2 << 20)
    assert memory.used_bytes == 0
    kept = memory.take(1 << 20)
    assert memory.used_bytes == len(kept)


def untouched(num_bytes):
    return np.empty(num_bytes, np.uint8)


def test_what_was_in_use_once_is_forgotten_in_time():
    memory = RecycledMemory(untouched)
    arrays = [memory.take(64 << 20) for _ in range(4)]
    arrays.clear()
    memory.take(1 << 20)
    assert memory.idle_bytes == 256 << 20
    for _ in range(4000):
        memory.take(1 << 20)
    assert memory.idle_bytes <= 64 << 20


def test_a_trainer_that_kept_everything_once_leaves_no_more_than_512_mib():
    memory = RecycledMemory(untouched)
    arrays = [memory.take(100 << 20) for _ in range(40)]
    arrays.clear()
    memory.take(1 << 20)
    assert memory.idle_bytes <= 512 << 20


@given(st.integers(1, 1 << 40))
def test_a_size_class_is_at_most_an_eighth_larger(num_bytes):
    size = size_class(num_bytes)
    assert num_bytes <= size <= max(num_bytes * 9 / 8, num_bytes + 4096)
    assert size_class(size) == size


def test_threads_share_it():
    memory = RecycledMemory(private_bytes)

    def work(number):
        for _ in range(200):
            tensor = torch.from_numpy(memory.take(SMALLEST_BYTES)).fill_(number)
            assert (tensor == number).all()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.take(1)
    assert memory.idle_bytes <= 2 * len(threads) * SMALLEST_BYTES


@pytest.mark.processes
def test_a_forked_child_begins_anew():
    tensor = new_tensor((MANY,), torch.int32).fill_(3)
    child = os.fork()
    if child == 0:
        new_tensor((MANY,), torch.int32).fill_(4)
        os._exit(0 if (tensor == 3).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
