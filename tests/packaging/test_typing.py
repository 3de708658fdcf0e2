"""The types that mypy and pyright find in a program of a user."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PROGRAM = '''
"""A training program, as a user writes it."""

from typing import Any, assert_type

import numpy.typing as npt
from torch import Tensor, nn

from torch_dataloader_utils import (
    BlendedLoader,
    EpochPlan,
    IcebergDataset,
    PadRagged,
    Ragged,
    StructuredDataset,
    TableDataLoader,
    TableDataset,
    TensorBatch,
    blend,
    open_loader,
    plan_epoch,
    scan_files,
)
from torch_dataloader_utils.megatron.corpora import GPTDataset

loader, dataset = StructuredDataset.create_dataloader("data", "parquet", 1024, num_ranks="auto", shuffle=True)
assert_type(loader, TableDataLoader[TensorBatch])
for batch in loader:
    assert_type(batch["x"], Tensor)
    assert_type(batch.to("cuda", non_blocking=True), TensorBatch)
assert_type(loader.plan, EpochPlan)
assert_type(dataset.plan, EpochPlan)
assert_type(len(loader), int)
assert_type(loader.state_dict(), dict[str, Any])
assert_type(plan_epoch(scan_files("data"), num_ranks=8, num_workers=4), EpochPlan)

arrays, _ = StructuredDataset.create_dataloader("data", output_format="numpy", stack={"x": ["a", "b"]})
for columns in arrays:
    assert_type(columns, dict[str, npt.NDArray[Any]])

lists, of_table = IcebergDataset.create_dataloader("db.t", {"uri": "sqlite://"}, output_format="dict")
for rows in lists:
    assert_type(rows, dict[str, list[Any]])


def halve(batch: TensorBatch) -> Tensor:
    return batch["x"] / 2


def with_number(half: Tensor) -> tuple[Tensor, int]:
    return half, 1


halves, _ = StructuredDataset.create_dataloader("data", transform=halve)
for half in halves:
    assert_type(half, Tensor)

assert_type(open_loader("data"), TableDataLoader[TensorBatch])
assert_type(open_loader("db.t", catalog_config={"name": "c"}, transform=halve), TableDataLoader[Tensor])

pairs, _ = StructuredDataset.create_dataloader("data", transform=halve, collate_fn=with_number)
for pair in pairs:
    assert_type(pair, tuple[Tensor, int])


def loss(model: nn.Module, batch: TensorBatch) -> Tensor:
    batch = batch.to("cuda", non_blocking=True)
    assert_type(batch.pin_memory(), TensorBatch)
    assert_type(batch.num_rows, int)
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


def train(loaders: list[TableDataLoader[TensorBatch]], dataset: TableDataset[TensorBatch], corpus: GPTDataset) -> None:
    assert_type(blend(loaders, weights=[0.7, 0.3]), BlendedLoader[TensorBatch])
    assert_type(blend([dataset, dataset], weights=[1, 2]), BlendedLoader[TensorBatch])
    for batch in blend(loaders, weights=[0.7, 0.3]):
        assert_type(batch, TensorBatch)
    assert_type(corpus[0]["tokens"], Tensor)
'''
WRONG = """
import torch_dataloader_utils

torch_dataloader_utils.nothing
StructuredDataset.create_dataloader("data", batchsize=3)
open_loader("data", batchsize=3)
StructuredDataset.create_dataloader("data", shuffle_rows="many")
StructuredDataset("data", batchsize=3)
StructuredDataset("data", drop_last="no")
number: int = next(iter(loader))
text: str = TensorBatch()["x"]
"""


def checked(program: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    whole = [sys.executable, "-m", *command, "program.py"]
    return subprocess.run(whole, capture_output=True, text=True, timeout=900, check=False, cwd=folder)


def mypy(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # What `make lint` has kept of torch takes a minute to find out anew.
    known = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    return checked(program, folder, "mypy", "--strict", *known)


def test_mypy_knows_the_types_of_a_program_and_finds_only_what_is_wrong(tmp_path: Path) -> None:
    done = mypy(PROGRAM + WRONG, tmp_path)
    first = len(PROGRAM.splitlines()) + 4
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    assert lines == set(range(first, first + 8)), done.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="pyright runs on node")
def test_pyright_knows_the_types_of_a_program(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    done = checked(PROGRAM, tmp_path, "pyright", "--pythonpath", sys.executable)
    assert done.returncode == 0, done.stdout
