"""Columns of a batch by their kind: ragged rows and Python objects, or an error that says what a column is."""

import pytest
import torch

from torch_dataloader_utils import Ragged, TensorBatch
from torch_dataloader_utils.errors import ConfigTypeError


def test_a_column_of_another_kind_is_an_error_that_says_which():
    ragged = Ragged(torch.arange(3), torch.tensor([0, 2, 3]))
    batch = TensorBatch({"x": torch.zeros(2), "tokens": ragged, "name": ["a", "b"]})
    assert batch.ragged("tokens") is ragged
    assert batch.objects("name") == ["a", "b"]
    with pytest.raises(ConfigTypeError, match=r"column 'x' of the batch is a Tensor, not ragged rows"):
        batch.ragged("x")
    with pytest.raises(ConfigTypeError, match=r"column 'tokens' of the batch is a Ragged, not Python objects"):
        batch.objects("tokens")
    with pytest.raises(KeyError):
        batch.ragged("missing")
