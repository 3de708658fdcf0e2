"""A map-style data set in an order that puts items of similar length next to each other, and padding of a batch."""

import operator
from collections.abc import Iterator, Sequence, Sized
from itertools import combinations
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from torch_dataloader_utils._core.arguments import check_counts, check_fits, check_integer, check_seed
from torch_dataloader_utils._core.permute import Purpose, permutation, random_words
from torch_dataloader_utils._runtime.shared_memory import SharedEpoch
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.shape.ragged import filled
from torch_dataloader_utils.wrappers.stateful import (
    load_nested_state,
    nested_state,
    read_items,
)

ItemT = TypeVar("ItemT")
ItemT_co = TypeVar("ItemT_co", covariant=True)

_STATE_VERSION = 1
_ORDERING_KEYS = ("version", "seed", "buffer_size", "pack_size", "total_items")


@runtime_checkable
class DatasetImplementingSortKeyProtocol(Protocol[ItemT_co]):
    """A data set that can say how long an item is without reading it."""

    def __len__(self) -> int:
        """Number of items."""

    def __getitem__(self, index: int, /) -> ItemT_co:
        """One item."""

    def sort_key(self, index: int) -> Any:
        """Something to sort by, as a rule the length; the keys of one data set compare with `<`, and none is NaN."""


class BufferSortedDataset(Dataset[ItemT]):
    """The items of a data set, each once, in packs of similar length and in random order.

    The items are cut into buffers of `buffer_size` neighbours. In each buffer: sort by `sort_key`, equal keys in
    random order; cut into packs of `pack_size`; shuffle the packs; shuffle inside each pack. Batches of `pack_size`
    are then packs, with little padding, if `buffer_size` is a multiple of `pack_size`.

        lengths 5 1 4 2 | 3 9 8 7, buffers of 4, packs of 2:    4 5  2 1 | 3 7  8 9    (one possible order)

    The order is a function of (init_seed, epoch, buffer): the same on every pass, in every worker, on every rank,
    and whatever was read before. It depends on nothing else, so resume needs no random state. Buffers do not move
    with the epoch: apart from equal keys, a pack has the same members every time, only its place changes.
    """

    def __init__(
        self,
        base_dataset: DatasetImplementingSortKeyProtocol[ItemT],
        buffer_size: int,
        pack_size: int,
        init_seed: int | None = None,
    ) -> None:
        """Wraps a data set.

        Args:
            base_dataset: has `sort_key`.
            buffer_size: items that are sorted together. Large gives less padding, small a more random order;
                `docs/how-to/sharded-and-sorted.md` has figures.
            pack_size: items that stay together, as a rule the batch size.
            init_seed: seed of the order. None is 0: an order that differs from rank to rank would lose items.

        Raises:
            ConfigError: a size below 1.
            ConfigTypeError: a data set without `__len__` or `sort_key`.
        """
        if not isinstance(base_dataset, Sized) or not callable(getattr(base_dataset, "sort_key", None)):
            raise ConfigTypeError(
                f"{type(base_dataset).__name__} has no __len__ or no sort_key(index), which sorting needs. Add them, "
                "or use a RowDataset with length_column=."
            )
        self._base_dataset = base_dataset
        self._buffer_size = check_integer("buffer_size", buffer_size, least=1)
        self._pack_size = check_integer("pack_size", pack_size, least=1)
        self._seed = 0 if init_seed is None else check_seed("init_seed", init_seed)
        self._epoch = SharedEpoch()
        # The last order made, as ((epoch, buffer), positions): replaced as a whole, so threads never see half of it.
        self._cached: tuple[tuple[int, int], npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Items, as many as the data set has."""
        return len(self._base_dataset)

    def __getitem__(self, index: int) -> ItemT:
        """The item at `index` of this epoch's order; a negative index counts from the end.

        Raises:
            IndexError: outside the data set. TypeError: not a whole number, as lists raise it.
        """
        return self._base_dataset[self._position(index)]

    def __getitems__(self, indices: list[int]) -> list[ItemT]:
        """Several items, in one call to the data set if it takes such calls."""
        return read_items(self._base_dataset, [self._position(index) for index in indices])

    def __iter__(self) -> Iterator[ItemT]:
        """All items in this epoch's order."""
        return (self[index] for index in range(len(self)))

    def sort_key(self, index: int) -> Any:
        """The sort key of the item at `index` of this epoch's order."""
        return self._base_dataset.sort_key(self._position(index))

    def set_epoch(self, epoch: int) -> None:
        """Changes the order; reaches persistent workers. Passed on to the data set if it wants it."""
        self._epoch.value = check_integer("epoch", epoch, least=0)
        if hasattr(self._base_dataset, "set_epoch"):
            self._base_dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Everything the order depends on; JSON if the state of the data set is."""
        return {
            "version": _STATE_VERSION,
            "epoch": self._epoch.value,
            "seed": self._seed,
            "buffer_size": self._buffer_size,
            "pack_size": self._pack_size,
            "total_items": len(self),
            **nested_state("base_dataset", self._base_dataset),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to the epoch of the state.

        Raises:
            CheckpointMismatchError: a state under which the order would be another one.
        """
        check_fits(state_dict, self.state_dict(), _ORDERING_KEYS, problem="The state is of another order")
        check_counts(state_dict, "epoch")
        self._epoch.value = check_integer("epoch", state_dict["epoch"], least=0)
        load_nested_state("base_dataset", self._base_dataset, state_dict)

    def _position(self, index: int) -> int:
        """Where the item at `index` of the order is in the data set."""
        index, total = operator.index(index), len(self)
        if not -total <= index < total:
            raise IndexError(f"item {index} of {total}")
        buffer, offset = divmod(index % total, self._buffer_size)
        key = (self._epoch.value, buffer)
        cached = self._cached
        if cached is None or cached[0] != key:
            cached = (key, self._order_buffer(*key))
            self._cached = cached
        return int(cached[1][offset])

    def _order_buffer(self, epoch: int, buffer: int) -> npt.NDArray[np.int64]:
        start = buffer * self._buffer_size
        stop = min(start + self._buffer_size, len(self))
        keys = [self._base_dataset.sort_key(index) for index in range(start, stop)]
        _check_numbers(keys, start)
        try:
            return start + order_packs(keys, self._pack_size, seed=self._seed, epoch=epoch, buffer=buffer)
        except TypeError as error:
            raise _not_in_order(keys, start) from error


def _check_numbers(keys: list[Any], start: int) -> None:
    for index, key in enumerate(keys, start):
        if isinstance(key, float | np.floating) and key != key:
            raise ConfigError(f"sort_key({index}) is NaN, which cannot be sorted: give a number for every item.")


def _not_in_order(keys: list[Any], start: int) -> ConfigTypeError:
    """The error for keys of which some do not compare, with the first two that do not."""
    pairs = combinations(range(len(keys)), 2)
    first, second = next(pair for pair in pairs if not _compare(keys[pair[0]], keys[pair[1]]))
    return ConfigTypeError(
        f"sort_key({start + first}) is {keys[first]!r} and sort_key({start + second}) is {keys[second]!r}, which do "
        "not compare: give keys of one type, such as numbers."
    )


def _compare(one: Any, other: Any) -> bool:
    try:
        _ = one < other, other < one
    except TypeError:
        return False
    return True


def order_packs(keys: list[Any], pack_size: int, *, seed: int, epoch: int, buffer: int) -> npt.NDArray[np.int64]:
    """The order of one buffer: a permutation of range(len(keys)), int64.

    If the last pack is short, it is short where it lands after the packs are shuffled. Random words: `SORT_TIES`
    for equal keys; the first words of `PACKS` order the packs, the others the items inside them.
    """
    count = len(keys)
    # A stable sort of a random order leaves equal keys in random order.
    order = permutation(count, seed=seed, epoch=epoch, purpose=Purpose.SORT_TIES, index=buffer)
    in_order = np.array(sorted(order.tolist(), key=keys.__getitem__), dtype=np.int64)
    num_packs = -(-count // pack_size)
    words = random_words(num_packs + count, seed=seed, epoch=epoch, purpose=Purpose.PACKS, index=buffer)
    pack_rank = np.empty(num_packs, dtype=np.int64)
    pack_rank[np.argsort(words[:num_packs], kind="stable")] = np.arange(num_packs)
    rank_of_item = pack_rank[np.arange(count) // pack_size]
    return in_order[np.lexsort((words[num_packs:], rank_of_item))]


def pad_stack_1d(
    items: Sequence[torch.Tensor],
    pad_value: float,
    padding_side: Literal["left", "right"] = "right",
    pad_to_multiple_of: int | None = None,
) -> torch.Tensor:
    """The items as the rows of one tensor [len(items), longest], padded at one side; dtype and device of the items.

        items 1 2 3 and 4, padded with 0, multiple of 2:    1 2 3 0    left:    0 1 2 3
                                                            4 0 0 0             0 0 0 4

    Args:
        items: 1-D tensors of one dtype; an empty one is a row of padding.
        pad_value: fills what an item leaves free; a float type rounds it, any other holds it exactly.
        padding_side: where the padding goes.
        pad_to_multiple_of: the row length is rounded up to a multiple of this.

    Raises:
        ConfigError: no items, an item that is not 1-D, an unknown side, or a multiple below 1; a pad value that the
            dtype does not hold.
        ConfigTypeError: not a list of tensors, or tensors of different dtypes; a pad value that is not a number.
    """
    if not isinstance(items, Sequence):
        raise ConfigTypeError(f"items is {of_type(items)}: pass a list of 1-D tensors.")
    if not items:
        raise ConfigError(
            "There are no items to pad: the shape and dtype of the result would be unknown. Pass one at least."
        )
    if pad_to_multiple_of is not None:
        pad_to_multiple_of = check_integer("pad_to_multiple_of", pad_to_multiple_of, least=1)
    if padding_side not in ("left", "right"):
        raise ConfigError(f"padding_side={padding_side!r}: give 'left' or 'right'.")
    for row, item in enumerate(items):
        if not isinstance(item, torch.Tensor):
            raise ConfigTypeError(f"Item {row} is {of_type(item)}: pass 1-D tensors.")
        if item.ndim != 1:
            raise ConfigError(f"Item {row} has shape {tuple(item.shape)}; pass 1-D tensors.")
        if item.dtype != items[0].dtype:
            raise ConfigTypeError(f"Item {row} is {item.dtype}, item 0 is {items[0].dtype}. Convert them to one dtype.")
    width = max(len(item) for item in items)
    if pad_to_multiple_of is not None:
        width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
    padded = filled(items[0], (len(items), width), pad_value, name="pad_value")
    for row, item in enumerate(items):
        start = 0 if padding_side == "right" else width - len(item)
        padded[row, start : start + len(item)] = item
    return padded
