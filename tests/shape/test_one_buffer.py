"""Batches move as one buffer, whatever their tensors look like."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils import Ragged, TensorBatch
from torch_dataloader_utils.shape import tensor_batch
from torch_dataloader_utils.shape.one_buffer import OneBuffer, move_as_one
from torch_dataloader_utils.shape.slab import TensorBatchCodec

DTYPES = [torch.bool, torch.int8, torch.int64, torch.float32, torch.bfloat16, torch.complex128]


def allocate(num_bytes):
    return torch.empty(num_bytes, dtype=torch.uint8)


def copy_once(moves):
    def move(flat):
        moves.append(flat.nbytes)
        return flat.clone()

    return move


shapes = st.lists(st.integers(0, 5), max_size=3)


@given(st.lists(st.tuples(shapes, st.sampled_from(DTYPES), st.booleans(), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=effort(100), deadline=None)
def test_any_tensors_arrive_after_one_move(kinds):
    tensors = []
    for number, (shape, dtype, is_transposed, is_cut) in enumerate(2 * kinds):
        count = int(np.prod(shape))
        tensor = (torch.arange(count) + number).to(dtype).view(shape)
        tensor = tensor.movedim(0, -1) if is_transposed and shape else tensor
        tensors.append(tensor[1:] if is_cut and shape else tensor)
    moves = []
    for tensor, moved in zip(tensors, move_as_one(tensors, copy_once(moves), allocate), strict=True):
        assert moved.dtype == tensor.dtype
        assert torch.equal(moved, tensor)
    assert len(moves) == 1


def test_views_of_one_slab_are_found_and_not_packed():
    batch = TensorBatch({"x": torch.arange(8.0), "y": torch.arange(8), "m": torch.arange(16).view(2, 8).t()})
    codec, slab = TensorBatchCodec(), allocate(1024)
    layout, descriptor = codec.write(batch, lambda _: slab)
    views = codec.view(layout, descriptor, [slab])
    found = OneBuffer.found(list(views.values()))
    assert found is not None
    assert found.buffer.data_ptr() == slab.data_ptr()
    for name, moved in zip(views, found.seen_in(found.buffer.clone()), strict=True):
        assert torch.equal(moved, batch[name])
        assert moved.stride() == views[name].stride()


def test_a_small_part_of_a_large_tensor_is_packed():
    large = torch.arange(1_000_000)
    tensors = [large[:10], large[-10:]]
    assert OneBuffer.found(tensors) is None
    moves = []
    assert [moved.tolist() for moved in move_as_one(tensors, copy_once(moves), allocate)] == [
        large[:10].tolist(),
        large[-10:].tolist(),
    ]
    assert moves == [256]


def everything():
    return TensorBatch(
        {
            "x": torch.arange(3.0),
            "list": Ragged(torch.arange(5), torch.tensor([0, 2, 2, 5])),
            "same": torch.arange(3.0),
            "name": ["a", "b", "c"],
            "sparse": torch.eye(3).to_sparse(),
        }
    )


def test_a_batch_moves_its_plain_tensors_together_and_keeps_the_rest(monkeypatch):
    moves = []
    monkeypatch.setattr(tensor_batch, "_page_locked", allocate)
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: copy_once(moves)(tensor) if tensor.is_sparse is False else tensor
    )
    pinned = everything().pin_memory()
    assert list(pinned) == list(everything())
    assert torch.equal(pinned["x"], torch.arange(3.0))
    assert [row.tolist() for row in pinned["list"]] == [[0, 1], [], [2, 3, 4]]
    assert pinned["name"] == ["a", "b", "c"]
    assert pinned["sparse"].is_sparse
    assert len(moves) == 1


def test_to_another_device_makes_views_of_one_tensor_there():
    batch = TensorBatch({"x": torch.arange(3.0), "y": torch.arange(6).view(3, 2)}).to("meta")
    assert {column.device.type for column in batch.values()} == {"meta"}
    assert [tuple(column.shape) for column in batch.values()] == [(3,), (3, 2)]
    assert batch["x"]._base is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_tensors_are_packed_whole(dtype):
    numbers = torch.arange(120_000).reshape(3, 40_000).to(dtype)
    tensors = [numbers[:, 1:].t(), numbers[1], numbers[2], numbers.conj()]
    packed = OneBuffer.packed(tensors, lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8))
    for tensor, seen in zip(tensors, packed.seen_in(packed.buffer), strict=True):
        assert torch.equal(tensor, seen)


def test_conjugates_and_negatives_move_with_their_values():
    numbers = torch.tensor([1 + 2j, 3 - 4j]).conj()
    columns = TensorBatch({"conj": numbers, "same": numbers, "neg": numbers.imag})._move(torch.clone, allocate)
    assert [columns[name].tolist() for name in ("conj", "same")] == [[1 - 2j, 3 + 4j]] * 2
    assert columns["neg"].tolist() == [-2, 4]


def test_what_is_nested_in_a_batch_moves_with_it():
    batch = TensorBatch({"x": torch.arange(3.0), "more": {"ids": torch.arange(3), "deep": [(torch.ones(3), "text")]}})
    moved = batch.to("meta")
    assert type(moved) is TensorBatch
    assert {t.device.type for t in (moved["x"], moved["more"]["ids"], moved["more"]["deep"][0][0])} == {"meta"}
    assert moved["more"]["deep"][0][1] == "text"
    assert moved["x"]._base is moved["more"]["deep"][0][0]._base is not None


def test_to_the_cpu_copies_nothing():
    batch = everything()
    assert batch.to("cpu")["x"] is batch["x"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_batches_arrive_on_the_device():
    batch = everything().pin_memory()
    assert batch["x"].is_pinned()
    assert torch.equal(batch.to("cuda", non_blocking=True)["x"].cpu(), torch.arange(3.0))
