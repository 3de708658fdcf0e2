"""Sharding and sorting for data sets that are not ours.

In: any iterable, torch or Hugging Face data set. Out: a data set that gives the part of one rank, or another order.

Promises: over all shards every item once, exact lengths, an order that is a pure function of (seed, epoch), and
states that JSON can hold. Nothing of a shard is transformed for another shard.

Not for: files. `StructuredDataset` and `IcebergDataset` plan and read those.
"""

from torch_dataloader_utils.wrappers.buffer_sorted import BufferSortedDataset, DatasetImplementingSortKeyProtocol
from torch_dataloader_utils.wrappers.padding import pad_stack_1d
from torch_dataloader_utils.wrappers.sharded import ShardedDataset, ShardIndexingMode
from torch_dataloader_utils.wrappers.streaming import SupportsRowSharding, streaming_shard

__all__ = [
    "BufferSortedDataset",
    "DatasetImplementingSortKeyProtocol",
    "ShardIndexingMode",
    "ShardedDataset",
    "SupportsRowSharding",
    "pad_stack_1d",
    "streaming_shard",
]
