"""Wrappers that shard, sort or batch a data set of another library: any iterable, torch or Hugging Face data set.

    ShardedDataset, streaming_shard     the shard of one rank, of a map-style data set or of a stream
    BufferSortedDataset                 items of similar length next to each other; `pad_stack_1d` pads a batch
    TokenBatchSampler                   batches limited by tokens, not by rows

Promises: all shards together give every item once, lengths are exact, the order is a pure function of (seed, epoch),
and states are JSON. A shard never transforms items of another shard. Not for: files of tables; `StructuredDataset` and
`IcebergDataset` plan and read table files. `RowDataset` (random access to table files) is imported on first use,
because this package otherwise needs no Arrow.
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
