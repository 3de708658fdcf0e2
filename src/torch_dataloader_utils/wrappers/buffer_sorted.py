"""Order a map-style data set so that items of similar length are neighbours, and pad a batch of 1-D tensors."""

import operator
from collections.abc import Iterator, Sequence, Sized
from itertools import combinations
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from torch_dataloader_utils._core.arguments import (
    check_choice,
    check_counts,
    check_epoch,
    check_fits,
    check_integer,
    check_seed,
)
from torch_dataloader_utils._core.permute import Purpose, permutation, random_words
from torch_dataloader_utils._runtime.shared_memory import SharedEpoch
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.shape.ragged import filled
from torch_dataloader_utils.wrappers.stateful import load_nested_state, nested_state, read_items

ItemT = TypeVar("ItemT")
ItemT_co = TypeVar("ItemT_co", covariant=True)

_STATE_VERSION = 1
_ORDERING_KEYS = ("version", "seed", "buffer_size", "pack_size", "total_items")


@runtime_checkable
class DatasetImplementingSortKeyProtocol(Protocol[ItemT_co]):
    """A map-style data set that knows the length of an item without reading the item."""

    def __len__(self) -> int:
        """Return the number of items."""

    def __getitem__(self, index: int, /) -> ItemT_co:
        """Return one item."""

    def sort_key(self, index: int) -> Any:
        """Return the sort key of an item, as a rule its length.

        All keys of one data set compare with `<`, and none is NaN.
        """


class BufferSortedDataset(Dataset[ItemT]):
    """The items of a data set, each once, in packs of similar length and in random order.

    The items are cut into buffers of `buffer_size` neighbours. In each buffer: sort by `sort_key`, equal keys in
    random order; cut into packs of `pack_size`; shuffle the packs; shuffle inside each pack. If `buffer_size` is a
    multiple of `pack_size`, batches of `pack_size` items are the packs, with little padding.

        lengths 5 1 4 2 | 3 9 8 7, buffers of 4, packs of 2:    4 5  2 1 | 3 7  8 9    (one possible order)

    The order is a function of (init_seed, epoch, buffer) alone: the same on every pass, in every worker and on every
    rank, whatever was read before. Resume therefore needs no random state. Buffers do not move with the epoch: apart
    from equal keys, a pack has the same members in every epoch, and only its place changes.
    """

    def __init__(
        self,
        base_dataset: DatasetImplementingSortKeyProtocol[ItemT],
        buffer_size: int,
        pack_size: int,
        init_seed: int | None = None,
    ) -> None:
        """Wrap a data set.

        Args:
            base_dataset: map-style data set with a method `sort_key`.
            buffer_size: number of items that are sorted together. A large buffer gives less padding, a small buffer
                a more random order; `docs/how-to/sharded-and-sorted.md` has figures.
            pack_size: number of items that stay together, as a rule the batch size.
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
        """Return the number of items of the data set."""
        return len(self._base_dataset)

    def __getitem__(self, index: int) -> ItemT:
        """Return the item at `index` of this epoch's order; a negative index counts from the end.

        Raises:
            IndexError: outside the data set. TypeError: not a whole number, as lists raise it.
        """
        return self._base_dataset[self._position(index)]

    def __getitems__(self, indices: list[int]) -> list[ItemT]:
        """Return several items, with one call of the data set's `__getitems__` if the data set has this method."""
        return read_items(self._base_dataset, [self._position(index) for index in indices])

    def __iter__(self) -> Iterator[ItemT]:
        """Yield all items in this epoch's order."""
        return (self[index] for index in range(len(self)))

    def sort_key(self, index: int) -> Any:
        """Return the sort key of the item at `index` of this epoch's order."""
        return self._base_dataset.sort_key(self._position(index))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, also in persistent workers, and so change the order.

        The epoch is passed on to the data set if the data set has `set_epoch`.
        """
        self._epoch.value = check_epoch(epoch)
        if hasattr(self._base_dataset, "set_epoch"):
            self._base_dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return everything the order depends on; JSON if the state of the data set is JSON."""
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
        """Go to the epoch of the state.

        Raises:
            CheckpointMismatchError: the state belongs to another order (another seed, size or number of items).
        """
        check_fits(state_dict, self.state_dict(), _ORDERING_KEYS, problem="The state is of another order")
        check_counts(state_dict, "epoch")
        self._epoch.value = state_dict["epoch"]
        load_nested_state("base_dataset", self._base_dataset, state_dict)

    def _position(self, index: int) -> int:
        """Return the position in the data set of the item at `index` of the order."""
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
    """Return the error that names the first two keys that do not compare."""
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
    """Return the order of one buffer: a permutation of range(len(keys)), int64.

    A short last pack stays short at the place where the shuffle of the packs puts this pack. Random words: `SORT_TIES`
    for equal keys; the first words of `PACKS` order the packs, the other words order the items inside the packs.
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
    """Return the items as rows of one tensor [len(items), longest], padded at one side.

    The tensor has the dtype and the device of the items.

        items 1 2 3 and 4, padded with 0, multiple of 2:    1 2 3 0    left:    0 1 2 3
                                                            4 0 0 0             0 0 0 4

    Args:
        items: 1-D tensors of one dtype; an empty tensor becomes a row of padding.
        pad_value: value of the padding; a float dtype rounds the value, any other dtype has to hold the value exactly.
        padding_side: side of the row that the padding fills.
        pad_to_multiple_of: number whose next multiple the row length is rounded up to.

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
    check_choice("padding_side", padding_side, ("left", "right"))
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
