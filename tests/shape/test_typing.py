"""The types that a type checker finds in a program of a user."""

import subprocess
import sys

import pytest
import torch

from torch_dataloader_utils import Ragged, TensorBatch
from torch_dataloader_utils.errors import ConfigTypeError

PROGRAM = """
from typing import Any, assert_type
from torch import Tensor, nn
from torch_dataloader_utils import PadRagged, Ragged, TensorBatch

def loss(model: nn.Module, batch: TensorBatch) -> Tensor:
    batch = batch.to("cuda", non_blocking=True)
    assert_type(batch.pin_memory(), TensorBatch)
    assert_type(batch.num_rows, int)
    assert_type(batch["x"], Tensor)
    assert_type([column for column in batch.values()], list[Tensor])
    tokens = batch.ragged("tokens")
    assert_type(tokens[0], Tensor)
    assert_type(tokens[:2], Ragged)
    assert_type(tokens.to("cpu").to_padded(), Tensor)
    assert_type(batch.objects("name"), list[Any])
    assert_type(PadRagged()(batch), TensorBatch)
    prediction: Tensor = model(batch["x"])
    return (prediction - batch["y"]).square().mean()

def transform(batch: TensorBatch) -> TensorBatch:
    batch["scaled"] = batch["x"] / 2
    batch["tail"] = batch.ragged("tokens")[1:]
    batch["name"] = [text.lower() for text in batch.objects("name")]
    return TensorBatch({"x": batch["x"], "tokens": batch.ragged("tokens"), "name": batch.objects("name")})
"""


def check_types(program, folder):
    path = folder / "program.py"
    path.write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(path)], capture_output=True, text=True, timeout=600, check=False
    )


def test_a_users_program_has_types(tmp_path):
    done = check_types(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_column_is_not_any(tmp_path):
    done = check_types(PROGRAM + '\nwrong: str = TensorBatch()["x"]\n', tmp_path)
    assert "Incompatible types in assignment" in done.stdout
    assert done.returncode == 1


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
