"""`streaming_shard` cuts one shard out of any iterable, before the expensive transforms run."""

import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import Dataset

from torch_dataloader_utils._core.arguments import check_flag, check_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, MissingDependencyError
from torch_dataloader_utils.wrappers.shard_layout import (
    ContiguousLayout,
    ShardLayout,
    StridedLayout,
    TailPolicy,
    plan_shard,
    shard_positions,
)
from torch_dataloader_utils.wrappers.sharded_stream import ShardedStream

# Older releases shuffle in other steps and mix the epoch into seeds in another way, so ranks would cut different
# orders. 5.1 and 5.2 were tested.
_OLDEST_DATASETS = [5, 1]


@runtime_checkable
class SupportsRowSharding(Protocol):
    """A data set that shards itself by rows, so that a shard reads only the rows it keeps."""

    def shard_rows(self, num_shards: int, index: int, contiguous: bool) -> Any:
        """Return the data set of one shard: one span of rows if `contiguous`, else rows taken round robin.

        The data set chooses whether single rows or runs of rows go round. All shards together must give every row once.
        """


def streaming_shard(
    dataset: Any,
    num_shards: int,
    index: int,
    *,
    batch_size: int | None = None,
    split_batches: bool = False,
    drop_last: bool = False,
    even_batches: bool | None = None,
    contiguous: bool = False,
    length: int | None = None,
    source_splits_workers: bool = False,
) -> Any:
    """Return one of `num_shards` shards of a data set. Apply transforms to the result.

    Sample mode (no batch size) gives single items to the shards round robin. Batch mode gives runs of `batch_size`
    items, in exactly the order of accelerate's `IterableDatasetShard`. For the items 0 … 9 and two shards:

        streaming_shard(data, 2, r)                                      0 2 4 6 8      1 3 5 7 9
        streaming_shard(data, 2, r, batch_size=2)                        0 1 4 5 8 9    2 3 6 7 0 1
        streaming_shard(data, 2, r, batch_size=2, even_batches=False)    0 1 4 5 8 9    2 3 6 7
        streaming_shard(data, 2, r, batch_size=2, drop_last=True)        0 1 4 5        2 3 6 7
        streaming_shard(data, 2, r, batch_size=4, split_batches=True)    0 1 4 5 8 9    2 3 6 7 0 1
        streaming_shard(data, 2, r, contiguous=True)                     0 1 2 3 4      5 6 7 8 9

    All shards must see the same source order: shuffle the source with a fixed seed, or shuffle after the cut.

    A shard keeps its rows under any step that follows. In DataLoader workers each worker takes some files of a Hugging
    Face stream and cuts these files alone: shards then differ by one row (or batch) per worker, and batch mode pads
    or drops once per worker.

    Args:
        dataset: an iterable that can be iterated again, a function that returns an iterable, a Hugging Face data set
            (the result is then a Hugging Face data set too, so that `.map` and the rest follow), or a
            `SupportsRowSharding`.
        num_shards: number of shards, as a rule the number of ranks.
        index: number of this shard, in [0, num_shards).
        batch_size: number of items that a shard gives in a row; with `split_batches`, number of items of all shards
            together.
        split_batches: whether one batch is cut over all shards. Otherwise each shard gets its own batch.
        drop_last: whether the last incomplete round of batches is left out; stronger than `even_batches`.
        even_batches: whether short shards repeat items from the start, so that all shards give equally many.
            Default: True with a batch size, False without.
        contiguous: whether each shard is one span of neighbouring items; needs the length.
        length: number of items in the data set, for contiguous spans of a data set without `__len__`. A pass that
            finds another number raises RowCountError; if the data set has more items, only the last shard raises.
        source_splits_workers: whether the data set already gives each DataLoader worker its own part. Otherwise the
            shard divides its items among the workers.

    Returns:
        A torch IterableDataset with `set_epoch`, `state_dict`, `load_state_dict` and, if the source has a length,
        an exact `__len__`. For a Hugging Face data set or a `SupportsRowSharding`: a data set of the same kind.

    Raises:
        ConfigError: options that exclude each other, an index out of range, a length that is not the data set's, or
            a source that is shuffled without a seed.
        ConfigTypeError: a data set that cannot be iterated twice, `contiguous` without a length, or an argument of
            another type.
    """
    contiguous = check_flag("contiguous", contiguous)
    source_splits_workers = check_flag("source_splits_workers", source_splits_workers)
    layout = plan_shard(
        num_shards=num_shards,
        index=index,
        batch_size=batch_size,
        split_batches=split_batches,
        drop_last=drop_last,
        even_batches=even_batches,
    )
    if isinstance(dataset, SupportsRowSharding):
        if batch_size is not None or layout.tail is not TailPolicy.KEEP:
            raise ConfigError(
                f"{type(dataset).__name__} shards itself by rows and makes its own batches: give it batch_size and "
                "drop_last, and streaming_shard neither."
            )
        return dataset.shard_rows(layout.num_shards, layout.index, contiguous)
    if not _is_hugging_face(dataset):
        _check_iterable(dataset)
    placed = _place(dataset, layout, contiguous=contiguous, length=length)
    if _is_hugging_face(dataset):
        return _shard_hugging_face(dataset, placed)
    return ShardedStream(dataset, placed, source_splits_workers=source_splits_workers)


def _shard_hugging_face(dataset: Any, layout: ShardLayout) -> Any:
    """Return one shard of a data set of the package `datasets`, installed since the data set exists."""
    if hasattr(dataset, "select"):  # map-style
        return dataset.select(shard_positions(layout, len(dataset)))
    version = sys.modules["datasets"].__version__
    if [int(part) for part in version.split(".")[:2]] < _OLDEST_DATASETS:
        raise MissingDependencyError(
            f"streaming_shard of a Hugging Face stream needs datasets 5.1 or newer; installed is {version}. "
            "Run: pip install 'datasets>=5.1'"
        )
    # Imported here, because it needs `datasets`.
    hugging_face = importlib.import_module("torch_dataloader_utils.wrappers.hugging_face")
    return hugging_face.shard_hugging_face(dataset, layout)


def _place(dataset: Any, layout: StridedLayout, *, contiguous: bool, length: int | None) -> ShardLayout:
    """Return the layout, or with `contiguous` its contiguous counterpart, for which the length must be known."""
    if length is not None:
        length = check_integer("length", length, least=0)
    if not contiguous:
        return layout
    own_length = _length_of(dataset)
    total = own_length if length is None else length
    if total is None:
        raise ConfigTypeError(
            f"contiguous=True cuts spans, which needs the length, and {type(dataset).__name__} has none. Give length=, "
            "or leave contiguous out."
        )
    if own_length not in (None, total):
        raise ConfigError(f"length={total}, and the {type(dataset).__name__} has {own_length} items. Leave length out.")
    return ContiguousLayout(
        num_shards=layout.num_shards, index=layout.index, run_items=layout.run_items, tail=layout.tail, total=total
    )


def _length_of(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _is_hugging_face(dataset: Any) -> bool:
    # An object of `datasets` exists only after its import.
    module = sys.modules.get("datasets")
    return module is not None and isinstance(dataset, module.IterableDataset | module.Dataset)


def _check_iterable(dataset: Any) -> None:
    if isinstance(dataset, Iterator) and not isinstance(dataset, Dataset):
        raise ConfigTypeError(
            f"A {type(dataset).__name__} can be read once only, so the second epoch would be empty. Give the function "
            "that makes it."
        )
    if isinstance(dataset, Iterable) or (callable(dataset) and not hasattr(dataset, "__getitem__")):
        return
    raise ConfigTypeError(
        f"{type(dataset).__name__} cannot be iterated. Give an iterable or a function that makes one; for a data set "
        "with __getitem__ and __len__ use ShardedDataset."
    )
