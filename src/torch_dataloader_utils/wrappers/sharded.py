"""Show one shard of a map-style data set as a data set, for each rank of a job."""

import operator
from collections.abc import Iterator, Sized
from enum import StrEnum
from typing import Any, TypeVar, assert_never

import torch.distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import Dataset

from torch_dataloader_utils._core.arguments import check_fits, check_flag, check_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.wrappers.stateful import load_nested_state, nested_state, read_items

ItemT = TypeVar("ItemT")

_STATE_VERSION = 1
_SHARDING_KEYS = ("version", "total_shards", "indexing_mode", "total_items")


class ShardIndexingMode(StrEnum):
    """Order in which the items are divided among the shards.

    14 items, 4 shards:

        sequential, round robin:    0 4 8 12    1 5 9 13    2 6 10       3 7 11
        chunked, in one block:      0 1 2 3     4 5 6 7     8 9 10 11    12 13
    """

    sequential = "sequential"
    chunked = "chunked"


class ShardedDataset(Dataset[ItemT]):
    """View of one shard of a map-style data set. An item is read when it is asked for.

    Over all shards every item appears exactly once, and the lengths add up to the length of the data set. With padding
    all shards are as long as the longest shard, and short shards repeat the last item of the data set:

        5 items, 4 shards    sequential    0 4    1      2      3
                             chunked       0 1    2 3    4      (none)
                             padded        0 4    1 4    2 4    3 4    and    0 1    2 3    4 4    4 4

    State: the number of shards, the mode, the number of items and, if the data set has a state, its state. Loading
    never changes the index of this shard, so one saved state serves all ranks.
    """

    def __init__(
        self,
        dataset: Dataset[ItemT],
        total_shards: int,
        current_shard: int,
        indexing_mode: ShardIndexingMode | str,
        pad_to_equal_size_across_shards: bool,
    ) -> None:
        """Make the view.

        Args:
            dataset: data set with `__len__` and `__getitem__`.
            total_shards: number of shards, as a rule the data-parallel size.
            current_shard: number of this shard, in [0, total_shards).
            indexing_mode: `ShardIndexingMode` or its name: round robin ("sequential") or in blocks ("chunked").
            pad_to_equal_size_across_shards: whether short shards repeat the last item, so that no rank runs out
                of steps before the other ranks.

        Raises:
            ConfigError: a shard that does not exist, or an unknown mode.
            ConfigTypeError: a data set without a length, or an argument of another type.
        """
        if not isinstance(dataset, Sized):
            raise ConfigTypeError(f"{type(dataset).__name__} has no __len__. Use streaming_shard for a stream.")
        total_shards = check_integer("total_shards", total_shards)
        current_shard = check_integer("current_shard", current_shard)
        if total_shards < 1 or not 0 <= current_shard < total_shards:
            raise ConfigError(f"Shard {current_shard} of {total_shards} does not exist: give one in [0, total_shards).")
        try:
            self._indexing_mode = ShardIndexingMode(indexing_mode)
        except ValueError as error:
            modes = ", ".join(ShardIndexingMode)
            raise ConfigError(f"Unknown indexing mode {indexing_mode!r}; use one of {modes}.") from error
        self._dataset = dataset
        self._total_shards = total_shards
        self._current_shard = current_shard
        self._is_padded = check_flag("pad_to_equal_size_across_shards", pad_to_equal_size_across_shards)

    @classmethod
    def from_mesh(
        cls,
        dataset: Dataset[ItemT],
        mesh: DeviceMesh,
        mesh_dim: str | None = None,
        *,
        indexing_mode: ShardIndexingMode | str = ShardIndexingMode.sequential,
        pad_to_equal_size_across_shards: bool = True,
    ) -> "ShardedDataset[ItemT]":
        """Return the shard of this rank along one dimension of a device mesh, for example "dp".

        Ranks that differ in other dimensions only (tensor or pipeline parallel) get the same shard. Without
        `mesh_dim` the mesh must have one dimension.

        Raises:
            ConfigTypeError: not a mesh. The errors of the constructor. torch's own error for an unknown dimension.
        """
        if not isinstance(mesh, DeviceMesh):
            raise ConfigTypeError(
                f"mesh is {of_type(mesh)}: pass a DeviceMesh, for example from torch's init_device_mesh."
            )
        if mesh_dim is not None:
            mesh = mesh[mesh_dim]
        return cls(dataset, mesh.size(), mesh.get_local_rank(), indexing_mode, pad_to_equal_size_across_shards)

    @classmethod
    def from_process_group(
        cls,
        dataset: Dataset[ItemT],
        group: Any = None,
        *,
        indexing_mode: ShardIndexingMode | str = ShardIndexingMode.sequential,
        pad_to_equal_size_across_shards: bool = True,
    ) -> "ShardedDataset[ItemT]":
        """Return the shard of this rank in a process group, by default the group of all ranks.

        Without torch.distributed the result is the only shard of one.

        Raises:
            ConfigError: this rank is not in the group.
        """
        size, rank = 1, 0
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        if rank < 0:
            raise ConfigError("This rank is not in the process group, so it has no shard: call this on its ranks only.")
        return cls(dataset, size, rank, indexing_mode, pad_to_equal_size_across_shards)

    def __len__(self) -> int:
        """Return the number of items of this shard, padding included."""
        total = len(self._dataset)
        longest = -(-total // self._total_shards)
        if self._is_padded:
            return longest
        match self._indexing_mode:
            case ShardIndexingMode.sequential:
                # How many of current_shard, current_shard + total_shards, … are below total.
                return -(-max(0, total - self._current_shard) // self._total_shards)
            case ShardIndexingMode.chunked:
                return max(0, min(longest, total - longest * self._current_shard))
            case _:
                assert_never(self._indexing_mode)

    def __getitem__(self, index: int) -> ItemT:
        """Return one item of this shard; a negative index counts from the end of the shard.

        Raises:
            IndexError: outside the shard. TypeError: not a whole number, as lists raise it.
        """
        return self._dataset[self._position(index)]

    def __getitems__(self, indices: list[int]) -> list[ItemT]:
        """Return several items, with one call of the data set's `__getitems__` if the data set has this method."""
        return read_items(self._dataset, [self._position(index) for index in indices])

    def __iter__(self) -> Iterator[ItemT]:
        """Yield all items of this shard, in order."""
        return (self[index] for index in range(len(self)))

    def sort_key(self, index: int) -> Any:
        """Return the sort key of one item of this shard, so that `BufferSortedDataset` can wrap a shard."""
        if not hasattr(self._dataset, "sort_key"):
            raise ConfigTypeError(f"{type(self._dataset).__name__} has no sort_key(index): shard a data set that has.")
        return self._dataset.sort_key(self._position(index))

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the data set, if the data set has `set_epoch`."""
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the options of the shard and the state of the data set; JSON if the state of the data set is JSON."""
        return {
            "version": _STATE_VERSION,
            "total_shards": self._total_shards,
            "current_shard": self._current_shard,
            "indexing_mode": self._indexing_mode.value,
            "total_items": len(self._dataset),
            **nested_state("dataset", self._dataset),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the state fits, and load the data set's part of the state.

        Raises:
            CheckpointMismatchError: another number of shards, another mode, another number of items, or not a state of
                a ShardedDataset.
        """
        check_fits(state_dict, self.state_dict(), _SHARDING_KEYS, problem="The state does not fit")
        load_nested_state("dataset", self._dataset, state_dict)

    def _position(self, index: int) -> int:
        """Return the position in the data set of item `index` of this shard."""
        index, length = operator.index(index), len(self)
        if not -length <= index < length:
            raise IndexError(f"item {index} of shard {self._current_shard} with {length} items")
        index %= length
        total = len(self._dataset)
        match self._indexing_mode:
            case ShardIndexingMode.sequential:
                position = index * self._total_shards + self._current_shard
            case ShardIndexingMode.chunked:
                position = -(-total // self._total_shards) * self._current_shard + index
            case _:
                assert_never(self._indexing_mode)
        # Only padding is past the end.
        return min(position, total - 1)
