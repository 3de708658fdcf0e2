"""Blend samples of several data sets in fixed proportions, as one data set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.blend_index import (
    BlendIndex,
    as_weights,
    blend_by_weight,
    blend_exhaustively,
    normalize_weights,
)
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.corpora.config import BlendedMegatronDatasetConfig
from torch_dataloader_utils.megatron.corpora.index_cache import KeptIndex, select_cache
from torch_dataloader_utils.megatron.corpora.megatron_dataset import MegatronDataset, Sample

_INDEX_VERSION = 1


class BlendedDataset(Dataset[Sample]):
    """Blend of data sets: sample i is from the data set that is furthest behind its share at i.

    With a `size` the weights are shares. Without a size the weights are whole numbers of samples, and each data set
    gives exactly its number. Samples have the key `dataset_id`.

    Args:
        datasets: data sets of one class and one split.
        weights: shares of the data sets, or numbers of samples.
        size: number of samples of the blend, or None.
        config: where indices are kept.

    Raises:
        ConfigTypeError: weights that are not a list of numbers, or a size that is not a whole number.
        ConfigError: data sets of several kinds or splits, weights that do not fit, or a data set asked for more
            samples than it has.
    """

    def __init__(
        self,
        datasets: Sequence[MegatronDataset],
        weights: Sequence[float],
        size: int | None,
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        _check_datasets(datasets, weights, size)
        self.datasets = tuple(datasets)
        self.size = None if size is None else check_integer("size", size, least=0)
        self.config = config
        self.split = self.datasets[0].index_split
        # Normalised weights are divided again, as in Megatron: the last bit of a weight decides ties.
        self.weights = [int(each) for each in as_weights(weights)] if size is None else normalize_weights(weights)
        self._index: BlendIndex | None = None
        if not config.defer_npy_index_mmap:
            self._check_counts(self.load_indices())

    @property
    def dataset_index(self) -> npt.NDArray[np.int16]:
        """Number of the data set that gives each sample, int16 [size]."""
        return self.load_indices().dataset_index

    @property
    def dataset_sample_index(self) -> npt.NDArray[np.int64]:
        """Number of each sample within its data set, int64 [size]."""
        return self.load_indices().dataset_sample_index

    def describe(self) -> dict[str, Any]:
        """Return everything the blend depends on."""
        return {
            "class": type(self).__name__,
            "index_version": _INDEX_VERSION,
            "datasets": [dataset.describe() for dataset in self.datasets],
            "split": self.split.name,
            "weights": self.weights,
            "size": self.size,
        }

    def load_indices(self) -> BlendIndex:
        """Return the blend: from memory, from `path_to_cache`, or built."""
        if self._index is None:
            self._index = self._kept_index.load_or_build(self._build_index)
        return self._index

    @property
    def _kept_index(self) -> KeptIndex[BlendIndex]:
        return KeptIndex(
            kind=BlendIndex,
            cache=select_cache(self.config, None),
            name=f"{type(self).__name__}-{self.split.name}",
            describe=self.describe,
        )

    def _build_index(self) -> BlendIndex:
        if self.size is None:
            return blend_exhaustively([int(weight) for weight in self.weights])
        return blend_by_weight(self.weights, self.size, normalize=False)

    def _check_counts(self, index: BlendIndex) -> None:
        taken = np.bincount(index.dataset_index, minlength=len(self.datasets))
        for number, (dataset, count) in enumerate(zip(self.datasets, taken.tolist(), strict=True)):
            if count > len(dataset):
                raise ConfigError(
                    f"The blend takes {count} samples from data set {number} ({dataset.dataset_path}), which has "
                    f"{len(dataset)}. Raise mid_level_dataset_surplus, or ask for fewer samples."
                )

    def __len__(self) -> int:
        return sum(int(weight) for weight in self.weights) if self.size is None else self.size

    def __getitem__(self, index: int | None) -> Sample:
        """Return sample `index` of the blend; None, the padding of a batch, gives a sample without loss."""
        blend = self.load_indices()
        if index is None:
            return {"dataset_id": 0, **self.datasets[0][None]}
        if not -len(self) <= index < len(self):
            raise IndexError(f"The blend has {len(self)} samples; {index} was asked for.")
        dataset_id = int(blend.dataset_index[index])
        return {"dataset_id": dataset_id, **self.datasets[dataset_id][int(blend.dataset_sample_index[index])]}

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if self._kept_index.is_on_disk:
            state["_index"] = None
        return state


def _check_datasets(datasets: Sequence[MegatronDataset], weights: Sequence[float], size: int | None) -> None:
    given = as_weights(weights).tolist()
    if not datasets or len(datasets) != len(given):
        raise ConfigError(f"A blend needs one weight per data set: {len(datasets)} data sets, {len(given)} weights.")
    kinds = {(type(dataset), dataset.index_split) for dataset in datasets}
    if len(kinds) > 1:
        shown = sorted(f"{kind.__name__} of {split.name}" for kind, split in kinds)
        raise ConfigError(f"A blend is of one class and one split, and here are {shown}. Blend each by itself.")
    if size is None and not all(weight.is_integer() for weight in given):
        raise ConfigError(
            f"Without a size the weights are numbers of samples; {list(weights)} are not whole. "
            "Pass whole numbers, or a size."
        )
