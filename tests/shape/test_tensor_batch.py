"""A TensorBatch survives everything that a dict of tensors survives."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch


@pytest.fixture
def batch() -> TensorBatch:
    return TensorBatch(
        {
            "x": torch.arange(100.0)[10:14],
            "tokens": Ragged(torch.arange(5), torch.tensor([0, 2, 2, 4, 5])),
            "name": ["a", "b", "c", "d"],
        }
    )


def test_it_is_a_dict_that_knows_its_rows(batch: TensorBatch) -> None:
    assert isinstance(batch, dict)
    assert batch.num_rows == 4
    assert TensorBatch(num_rows=7).num_rows == 7
    assert TensorBatch().num_rows == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [("token", "did you mean 'tokens'"), ("X", "did you mean 'x'"), (0, "the columns are 'x', 'tokens', 'name'")],
)
def test_a_column_that_is_not_there_is_a_key_error_with_near_names(batch: TensorBatch, name: Any, says: str) -> None:
    for clone in (batch, batch.copy(), pickle.loads(pickle.dumps(batch)), batch.to("cpu")):
        with pytest.raises(KeyError, match=f"a batch has no column {name!r}; {says}"):
            clone[name]
    assert name not in batch
    assert batch.get(name) is None


def test_rows_follow_a_transform_that_drops_some(batch: TensorBatch) -> None:
    batch["x"] = batch["x"][:2]
    assert batch.num_rows == 2


@pytest.mark.parametrize("clone", [copy.copy, TensorBatch.copy, lambda b: pickle.loads(pickle.dumps(b)), copy.deepcopy])
def test_copies_are_batches_of_their_own(batch: TensorBatch, clone: Any) -> None:
    for original in (batch, TensorBatch(num_rows=3)):
        other = clone(original)
        assert type(other) is TensorBatch
        assert other.num_rows == original.num_rows
        other["new"] = 1
        assert "new" not in original
    assert clone(batch)["tokens"].to_list() == [[0, 1], [], [2, 3], [4]]


def test_a_pickled_view_leaves_its_row_group_behind() -> None:
    view = TensorBatch({"x": torch.zeros(1_000_000)[:10], "u": torch.arange(1_000_000).to(torch.uint32)[5:8]})
    data = pickle.dumps(view)
    assert len(data) < 2_000
    restored = pickle.loads(data)
    assert restored["u"].dtype == torch.uint32
    assert restored["u"].tolist() == [5, 6, 7]


def test_to_moves_tensors_and_ragged_columns_and_keeps_lists(batch: TensorBatch) -> None:
    moved = batch.to("meta", non_blocking=True)
    assert type(moved) is TensorBatch
    assert moved["x"].is_meta
    assert moved["tokens"].offsets.is_meta
    assert moved["name"] is batch["name"]
    assert batch.to("cpu")["x"] is batch["x"]


def test_torch_collation_keeps_the_type(batch: TensorBatch) -> None:
    assert type(default_convert(batch)) is TensorBatch
    numbers = TensorBatch({"x": batch["x"]})
    collated = default_collate([numbers, numbers, numbers])
    assert type(collated) is TensorBatch
    assert collated["x"].shape == (3, 4)
    assert collated.num_rows == 3


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_plain_dataloader_hands_it_through(batch: TensorBatch, num_workers: int) -> None:
    # batch_size=None: the data set yields batches. One worker: the batch goes through torch's queue.
    (received,) = DataLoader([batch], batch_size=None, num_workers=num_workers)  # type: ignore[arg-type]
    assert type(received) is TensorBatch
    assert received["x"].tolist() == [10, 11, 12, 13]
    assert received["tokens"].to_list() == batch["tokens"].to_list()
    assert received["name"] == batch["name"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU driver")
def test_pinned_batches_have_page_locked_tensors(batch: TensorBatch) -> None:
    pinned = batch.pin_memory()
    assert pinned["x"].is_pinned()
    assert pinned["tokens"].values.is_pinned()
    (received,) = DataLoader([batch], batch_size=None, pin_memory=True)  # type: ignore[arg-type]
    assert type(received) is TensorBatch
    assert received["x"].is_pinned()
    assert received.to("cuda", non_blocking=True)["tokens"].offsets.is_cuda


def test_frameworks_can_rebuild_it_from_its_items(batch: TensorBatch) -> None:
    assert type(batch)(dict(batch)).num_rows == 4
    assert type(batch)(batch.items()).num_rows == 4
