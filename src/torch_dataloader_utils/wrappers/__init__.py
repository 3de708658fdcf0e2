"""Shards, orders and batches of data sets that are not ours: any iterable, torch or Hugging Face data set.

    ShardedDataset, streaming_shard     the part of one rank, of a map-style data set or a stream
    BufferSortedDataset                 neighbours of similar length, for little padding; `pad_stack_1d` pads a batch
    TokenBatchSampler                   batches that are limited by tokens, not by rows

Promises: over all shards every item once, exact lengths, an order that is a pure function of (seed, epoch), and states
that JSON can hold. Nothing of a shard is transformed for another shard. Not for: files of tables, which
`StructuredDataset` and `IcebergDataset` plan and read. `RowDataset`, random access to such files, is imported on first
use: it needs Arrow, and nothing else here does.
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
