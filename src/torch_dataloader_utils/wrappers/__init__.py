"""Sharding and sorting for other libraries' data sets.

In: any iterable, torch or Hugging Face data set. Out: a data set that gives the part of one rank, or another order.

Promises: over all shards every item once, exact lengths, an order that is a pure function of (seed, epoch), and
states that JSON can hold. Nothing of a shard is transformed for another shard.

Not for: files. `StructuredDataset` and `IcebergDataset` plan and read those.
`RowDataset`, random access to files, loads on first use: it brings Arrow along, which nothing else here needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch_dataloader_utils.wrappers.buffer_sorted import (
    BufferSortedDataset,
    DatasetImplementingSortKeyProtocol,
    pad_stack_1d,
)
from torch_dataloader_utils.wrappers.sharded import ShardedDataset, ShardIndexingMode
from torch_dataloader_utils.wrappers.streaming import SupportsRowSharding, streaming_shard
from torch_dataloader_utils.wrappers.token_batch_sampler import TokenBatchSampler

if TYPE_CHECKING:
    from torch_dataloader_utils.datasets.row_dataset import RowDataset

__all__ = [
    "BufferSortedDataset",
    "DatasetImplementingSortKeyProtocol",
    "RowDataset",
    "ShardIndexingMode",
    "ShardedDataset",
    "SupportsRowSharding",
    "TokenBatchSampler",
    "pad_stack_1d",
    "streaming_shard",
]


def __getattr__(name: str) -> Any:
    if name == "RowDataset":
        return import_module("torch_dataloader_utils.datasets.row_dataset").RowDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
