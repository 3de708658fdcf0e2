"""Build the train, validation and test data sets of a job from a configuration."""

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.blend_index import normalize_weights
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, InternalError, of_type
from torch_dataloader_utils.megatron.corpora.blended_dataset import BlendedDataset
from torch_dataloader_utils.megatron.corpora.config import Blend, BlendedMegatronDatasetConfig, IndexBuilder
from torch_dataloader_utils.megatron.corpora.megatron_dataset import MegatronDataset
from torch_dataloader_utils.megatron.corpora.split import Bookends, Split, split_range


@contextlib.contextmanager
def build_ranks_first(builder: IndexBuilder) -> Iterator[None]:
    """Run the block on the building ranks first, and then on all other ranks.

    "job" builds on rank 0, for a cache that all nodes share. "node" builds on local rank 0 of each node, for caches on
    local disks. "lock" does nothing here: the lock of the cache decides. Every rank passes exactly one barrier, also if
    its block raises, so that no rank waits for ever; the other ranks then find no cache and build alone.
    """
    if builder == "lock" or not (dist.is_available() and dist.is_initialized()):
        yield
        return
    if _is_builder(builder):
        try:
            yield
        finally:
            dist.barrier()
    else:
        dist.barrier()
        yield


def _is_builder(builder: IndexBuilder) -> bool:
    if builder == "job":
        return dist.get_rank() == 0
    return int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0


Sizes = Sequence[int | None]
# A list of data sets if several validation corpora are not blended.
TopLevelDataset = MegatronDataset | BlendedDataset | list[MegatronDataset]

# A split with its own corpora uses the whole of each corpus.
_EVERYTHING: Bookends = (0, 1)


class BlendedMegatronDatasetBuilder:
    """Builder of the data sets of the three splits; a split with several corpora is blended.

    For a split with several corpora:

        weights  size     corpora build                    the blend has
        given    given    ⌈⌈size·w⌉ · (1 + surplus)⌉       Σ ⌈size·w⌉ samples
        given    None     an error
        None     given    one pass each                    min(size, sum of lengths), in proportion to lengths
        None     None     one pass each                    every sample once

    A single corpus is a data set of the given size, or of one pass. A single corpus with weights becomes a blend, as in
    the table, if it stands in `blend`, and a data set if it stands in `blend_per_split`; both as in Megatron-Core.

    With `multiple_validation_sets` several validation corpora are not blended: the split is a list with one data set
    per corpus, each of the given size or of one pass.

    Args:
        cls: data set class of one corpus, for example `GPTDataset`.
        sizes: number of samples wanted for train, valid and test.
        is_built_on_rank: function that returns whether this process needs the data; if not, `build` returns None for
            each split.
        config: configuration of the data sets.
    """

    def __init__(
        self,
        cls: type[MegatronDataset],
        sizes: Sizes,
        is_built_on_rank: Callable[[], bool],
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        _check_types(cls, sizes, is_built_on_rank, config)
        _check_arguments(sizes, config)
        self.cls = cls
        self.sizes = tuple(
            None if size is None else check_integer(f"The size for {split.name}", size, least=0)
            for split, size in zip(Split, sizes, strict=True)
        )
        self.is_built_on_rank = is_built_on_rank
        self.config = config
        self._check_weighted_blends()

    def build(self) -> list[TopLevelDataset | None]:
        """Return train, valid and test; None for a split without data, or on a rank that does not need the data.

        With index_builder "job" or "node" all ranks must call `build`: ranks that do not build wait at a barrier of
        torch.distributed until the indices exist. With "lock" each rank may call `build` at any time.
        """
        # A trusted cache is full: no rank builds, and none has to wait.
        with build_ranks_first("lock" if self.config.fast_cache_load else self.config.index_builder):
            return [self._build_split(split) for split in Split]

    def _check_weighted_blends(self) -> None:
        """Raise ConfigError if a split has weights and no size."""
        for split in Split:
            blend, bookends = self._select_blend(split)
            is_weighted = blend is not None and bookends is not None and blend[1] is not None
            if is_weighted and self.sizes[split.value] is None:
                raise ConfigError(f"The blend for {split.name} has weights: it needs a size too, or None as weights.")

    def _select_blend(self, split: Split) -> tuple[Blend | None, Bookends | None]:
        """Return the blend of a split, and the part of each corpus that the split takes."""
        if self.config.blend_per_split is not None:
            return self.config.blend_per_split[split.value], _EVERYTHING
        matrix = self.config.split_matrix
        return self.config.blend, None if matrix is None else matrix[split.value]

    def _build_split(self, split: Split) -> TopLevelDataset | None:
        blend, bookends = self._select_blend(split)
        if blend is None or bookends is None or not self.is_built_on_rank():
            return None
        prefixes, weights = blend
        size = self.sizes[split.value]
        if len(prefixes) == 1 and (weights is None or self.config.blend_per_split is not None):
            return self._build_corpus(prefixes[0], bookends, size, split)
        if split is Split.valid and self.config.multiple_validation_sets:
            return self._build_corpora(prefixes, bookends, [size] * len(prefixes), split)
        if weights is None:
            return self._blend_by_length(self._build_corpora(prefixes, bookends, [None] * len(prefixes), split), size)
        if size is None:
            raise InternalError(f"The weighted blend for {split.name} got past the check of its size.")
        shares = normalize_weights(weights)
        targets = [math.ceil(size * share) for share in shares]
        built = [math.ceil(target * (1 + self.config.mid_level_dataset_surplus)) for target in targets]
        return BlendedDataset(self._build_corpora(prefixes, bookends, built, split), shares, sum(targets), self.config)

    def _blend_by_length(self, datasets: Sequence[MegatronDataset], size: int | None) -> BlendedDataset:
        lengths = [len(dataset) for dataset in datasets]
        if 0 in lengths:
            empty = datasets[lengths.index(0)]
            raise ConfigError(
                f"{empty.dataset_path} has no whole sample for {empty.index_split.name}, and a blend takes no weight "
                f"of 0. Leave the corpus out, or give this split more of it."
            )
        return BlendedDataset(datasets, lengths, None if size is None else min(size, sum(lengths)), self.config)

    def _build_corpora(
        self, prefixes: Sequence[str], bookends: Bookends, sizes: Sizes, split: Split
    ) -> list[MegatronDataset]:
        threads = min(self.config.num_dataset_builder_threads, len(prefixes))
        arguments: list[tuple[Any, ...]] = [
            (prefix, bookends, size, split) for prefix, size in zip(prefixes, sizes, strict=True)
        ]
        if threads <= 1:
            return [self._build_corpus(*each) for each in arguments]
        return map_watched(lambda each: self._build_corpus(*each), arguments, threads=threads, name="tdu-tokens")

    def _build_corpus(self, prefix: str, bookends: Bookends, size: int | None, split: Split) -> MegatronDataset:
        prefix = os.fspath(prefix)
        corpus = self.cls.build_low_level_dataset(prefix, self.config)
        exposed = split_range(bookends, self.cls.numel_low_level_dataset(corpus))
        return self.cls(corpus, prefix, exposed, size, split, self.config)


def _check_types(cls: Any, sizes: Any, is_built_on_rank: Any, config: Any) -> None:
    for method in ("build_low_level_dataset", "numel_low_level_dataset"):
        if not callable(getattr(cls, method, None)):
            raise ConfigTypeError(
                f"cls={cls!r} has no {method}(): pass the class of the data sets, such as GPTDataset."
            )
    if isinstance(sizes, str | Mapping) or not isinstance(sizes, Collection):
        raise ConfigTypeError(f"sizes={sizes!r}: pass three numbers of samples (or None), for train, valid and test.")
    if not callable(is_built_on_rank):
        raise ConfigTypeError(f"is_built_on_rank={is_built_on_rank!r}: pass a function, such as lambda: True.")
    if not isinstance(config, BlendedMegatronDatasetConfig):
        raise ConfigTypeError(f"config is {of_type(config)}: pass a GPTDatasetConfig(...).")


def _check_arguments(sizes: Sizes, config: BlendedMegatronDatasetConfig) -> None:
    if config.blend is None and config.blend_per_split is None:
        raise ConfigError("There is nothing to build: give blend with split, or blend_per_split.")
    if len(sizes) != len(Split):
        raise ConfigError(f"Sizes are three numbers of samples (or None); {list(sizes)} were given.")
    validation_size = sizes[Split.valid.value]
    if config.full_validation and validation_size is not None:
        raise ConfigError(
            f"full_validation takes every validation sample once, and a size of {validation_size} was given for "
            "validation. Pass None."
        )
