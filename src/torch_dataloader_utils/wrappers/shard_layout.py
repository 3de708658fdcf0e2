"""Compute which positions of a stream belong to one shard; no data, no state.

Source of the orders: `IterableDatasetShard` and `BatchSamplerShard` of accelerate 1.15. Both modes of
`split_batches` are one layout: a *group* of num_shards runs, and a *run* of neighbouring items for each shard.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, assert_never

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_flag, check_integer
from torch_dataloader_utils._core.division import even_span
from torch_dataloader_utils.errors import ConfigError


class TailPolicy(StrEnum):
    """Treatment of the items after the last complete group."""

    KEEP = "keep"
    """The next shard gets the next run: nothing lost, nothing repeated, lengths differ."""
    DROP = "drop"
    """The items are left out: every shard gives the same number of items."""
    PAD = "pad"
    """Items from the start of the stream complete the group: equal lengths, some items repeated."""


class ShardLayout(Protocol):
    """Positions of one shard in a stream, as runs in order: the items of the runs one after the other, then padding."""

    @property
    def num_shards(self) -> int:
        """Number of shards of the stream."""

    @property
    def index(self) -> int:
        """Number of this shard, in [0, num_shards)."""

    @property
    def run_items(self) -> int:
        """Number of items in one run."""

    @property
    def tail(self) -> TailPolicy:
        """Treatment of the items after the last complete group."""

    @property
    def total(self) -> int | None:
        """Number of items in the stream, if the layout needs the number."""

    def run_bounds(self, run: int) -> tuple[int, int]:
        """Return the positions [start, stop) of a run of this shard; after the end of the stream they are padding."""

    def num_runs(self, total: int) -> int:
        """Return the number of runs of this shard with an item, padding included, in a stream of `total` items."""

    def length(self, total: int) -> int:
        """Return the number of items of this shard, padding included, in a stream of `total` items."""

    def virtual_positions(self, total: int) -> npt.NDArray[np.int64]:
        """Return the positions of all runs, int64, in order; positions from `total` on are padding or have no item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedLayout:
    """Layout with the runs of all shards in turn.

    Run g of shard r is [g·R + r·p, g·R + (r + 1)·p), with p = run_items and R = p · num_shards.

    10 items, 2 shards, runs of 2:

        keep    0 1 4 5 8 9    2 3 6 7
        drop    0 1 4 5        2 3 6 7
        pad     0 1 4 5 8 9    2 3 6 7 0 1
    """

    num_shards: int
    index: int
    run_items: int
    tail: TailPolicy

    @property
    def total(self) -> int | None:
        """None: a strided shard works on a stream of unknown length."""
        return None

    def run_bounds(self, run: int) -> tuple[int, int]:
        """Return the positions [start, stop) of a run."""
        start = run * group_items(self) + self.index * self.run_items
        return start, start + self.run_items

    def num_runs(self, total: int) -> int:
        """Return the number of runs with an item, padding included."""
        groups, rest = divmod(total, group_items(self))
        match self.tail:
            case TailPolicy.KEEP:
                return groups + (rest > self.index * self.run_items)
            case TailPolicy.DROP:
                return groups
            case TailPolicy.PAD:
                return groups + (rest > 0)
            case _:
                assert_never(self.tail)

    def length(self, total: int) -> int:
        """Return the number of items of this shard, never negative. `TailPolicy.KEEP`: all shards sum to `total`."""
        if self.tail is not TailPolicy.KEEP:
            return self.num_runs(total) * self.run_items
        groups, rest = divmod(total, group_items(self))
        return groups * self.run_items + min(max(rest - self.index * self.run_items, 0), self.run_items)

    def virtual_positions(self, total: int) -> npt.NDArray[np.int64]:
        """Return the positions of all runs."""
        starts = np.arange(self.num_runs(total), dtype=np.int64) * group_items(self) + self.index * self.run_items
        return (starts[:, None] + np.arange(self.run_items, dtype=np.int64)).ravel()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousLayout:
    """Layout with one span of neighbouring positions for each shard, in the order of the stream.

    10 items, 4 shards, runs of 1 (the spans of `TailPolicy.KEEP` differ by at most one item, longer spans first):

        keep    0 1 2    3 4 5    6 7    8 9
        drop    0 1      2 3      4 5    6 7
        pad     0 1 2    3 4 5    6 7 8  9 0 1
    """

    num_shards: int
    index: int
    run_items: int
    tail: TailPolicy
    total: int

    def span(self) -> tuple[int, int]:
        """Return the positions [start, stop) of this shard; positions from `total` on are padding."""
        if self.tail is TailPolicy.KEEP:
            return even_span(self.total, self.num_shards, self.index)
        group = group_items(self)
        groups = self.total // group if self.tail is TailPolicy.DROP else -(-self.total // group)
        return self.index * groups * self.run_items, (self.index + 1) * groups * self.run_items

    def run_bounds(self, run: int) -> tuple[int, int]:
        """Return the positions [start, stop) of a run."""
        first, last = self.span()
        start = first + run * self.run_items
        return start, min(start + self.run_items, last)

    def num_runs(self, total: int) -> int:
        """Return the number of runs with an item, padding included; `total` must be the total of the layout."""
        return -(-self.length(total) // self.run_items)

    def length(self, total: int) -> int:
        """Return the number of items of this shard.

        Raises:
            ConfigError: `total` is not the number of items that the spans were cut for.
        """
        if total != self.total:
            raise ConfigError(f"The spans were cut for {self.total} items, the data set has {total}. Shard it again.")
        start, stop = self.span()
        return stop - start

    def virtual_positions(self, total: int) -> npt.NDArray[np.int64]:
        """Return the positions of all runs."""
        start, _ = self.span()
        return np.arange(start, start + self.length(total), dtype=np.int64)


def group_items(layout: ShardLayout) -> int:
    """Return the number of items in one group: one run of every shard."""
    return layout.num_shards * layout.run_items


def shard_positions(layout: ShardLayout, total: int) -> npt.NDArray[np.int64]:
    """Return the positions of the items of one shard in the order given, int64 [layout.length(total)].

    Padding repeats the start of the stream, as often as needed: position v ≥ total stands for item
    (v − total) mod min(total, group). 3 items, 2 shards, runs of 2: 0 1 and 2 0.
    """
    positions = layout.virtual_positions(total)
    if layout.tail is not TailPolicy.PAD:
        return positions[positions < total]
    return np.where(positions < total, positions, (positions - total) % head_items(layout, total))


def describe_layout(layout: ShardLayout) -> dict[str, Any]:
    """Return everything a saved position depends on, as JSON values; without the index, so the same on every shard."""
    return {
        "num_shards": layout.num_shards,
        "run_items": layout.run_items,
        "tail": layout.tail.value,
        "total": layout.total,
    }


def head_items(layout: ShardLayout, total: int) -> int:
    """Return the number of items that padding may repeat: one group, or `total` if it is smaller; at least 1."""
    return max(1, min(total, group_items(layout)))


def plan_shard(
    *,
    num_shards: int,
    index: int,
    batch_size: int | None,
    split_batches: bool,
    drop_last: bool,
    even_batches: bool | None,
) -> StridedLayout:
    """Return the strided layout for the options of `streaming_shard`; sample mode has runs of one item.

    Raises:
        ConfigError: num_shards or batch_size below 1, index outside [0, num_shards), `split_batches` without a
            batch size that num_shards divides. ConfigTypeError: an argument of another type.
    """
    num_shards, index = check_integer("num_shards", num_shards), check_integer("index", index)
    if num_shards < 1 or not 0 <= index < num_shards:
        raise ConfigError(f"Shard {index} of {num_shards} does not exist: index must be in [0, num_shards).")
    run_items = 1 if batch_size is None else check_integer("batch_size", batch_size, least=1)
    if check_flag("split_batches", split_batches):
        if batch_size is None or run_items % num_shards:
            raise ConfigError(
                f"split_batches=True cuts each batch into {num_shards} equal parts, which batch_size={batch_size} does "
                f"not allow. Give a multiple of {num_shards}."
            )
        run_items //= num_shards
    pads = batch_size is not None if even_batches is None else check_flag("even_batches", even_batches)
    tail = TailPolicy.DROP if check_flag("drop_last", drop_last) else TailPolicy.PAD if pads else TailPolicy.KEEP
    return StridedLayout(num_shards=num_shards, index=index, run_items=run_items, tail=tail)
