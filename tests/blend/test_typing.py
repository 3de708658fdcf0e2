"""The types that a type checker finds in a program that blends loaders."""

from tests.shape.test_typing import check_types

PROGRAM = """
from typing import assert_type
from torch import Tensor
from torch_dataloader_utils import BlendedLoader, TableDataLoader, TableDataset, TensorBatch, blend
from torch_dataloader_utils.tokens import GPTDataset

def train(loaders: list[TableDataLoader[TensorBatch]], dataset: TableDataset[TensorBatch], corpus: GPTDataset) -> None:
    blended = blend(loaders, weights=[0.7, 0.3])
    assert_type(blended, BlendedLoader[TensorBatch])
    assert_type(blend([dataset, dataset], weights=[1, 2]), BlendedLoader[TensorBatch])
    for batch in blended:
        assert_type(batch, TensorBatch)
    assert_type(corpus[0]["tokens"], Tensor)
"""


def test_a_blend_gives_the_batches_of_its_loaders(tmp_path):
    done = check_types(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout
