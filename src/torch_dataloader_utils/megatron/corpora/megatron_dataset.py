"""Define the contract of a data set over one split of one corpus, for `BlendedMegatronDatasetBuilder` to build."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from torch_dataloader_utils.megatron.corpora.config import BlendedMegatronDatasetConfig
from torch_dataloader_utils.megatron.corpora.indexed_dataset import IndexedDataset
from torch_dataloader_utils.megatron.corpora.split import Split

Sample = Mapping[str, Any]
SequenceIds = range | npt.NDArray[np.integer]


class MegatronDataset(Dataset[Sample], ABC):
    """Samples of one split of one corpus.

    Args:
        dataset: the corpus.
        dataset_path: prefix of the corpus as the user wrote it; part of the cache key.
        indexed_indices: exposed elements of the corpus, as a range or an array of ids.
        num_samples: number of samples wanted; None for one pass.
        index_split: the split that the samples belong to.
        config: all other options.
    """

    def __init__(
        self,
        dataset: IndexedDataset,
        dataset_path: str | None,
        indexed_indices: SequenceIds,
        num_samples: int | None,
        index_split: Split,
        config: BlendedMegatronDatasetConfig,
    ) -> None:
        self.dataset = dataset
        self.dataset_path = dataset.path_prefix if dataset_path is None else str(dataset_path)
        self.indices = indexed_indices
        self.num_samples = num_samples
        self.index_split = index_split
        self.config = config

    @staticmethod
    @abstractmethod
    def numel_low_level_dataset(low_level_dataset: IndexedDataset) -> int:
        """Return the number of elements (sequences or documents) that a split string divides."""

    @staticmethod
    @abstractmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> IndexedDataset:
        """Open the corpus."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int | None) -> Sample:
        """Return sample `index`; None gives a sample without loss that fills up a batch."""

    @abstractmethod
    def load_indices(self) -> object:
        """Build the indices or load them from the cache; called once before the trainer gets the data sets."""

    def describe(self) -> dict[str, Any]:
        """Return everything the indices depend on, as JSON values; subclasses add entries."""
        return {
            "class": type(self).__name__,
            "dataset_path": self.dataset_path,
            "files": [[stat.size, stat.identity] for stat in self.dataset.identities],
            "sequence_ids": _describe_ids(self.indices),
            "num_samples": self.num_samples,
            "index_split": self.index_split.name,
            "random_seed": self.config.random_seed,
            "sequence_length": self.config.sequence_length,
        }


def _describe_ids(ids: SequenceIds) -> Mapping[str, Any]:
    """Return the ids as JSON: their borders if they are neighbours, else a digest.

    An array and a range of the same neighbouring ids have the same description.
    """
    if isinstance(ids, range) and ids.step == 1:
        return {"start": ids.start, "stop": max(ids.start, ids.stop)}
    array = np.asarray(ids, dtype=np.int64)
    if array.size and (np.diff(array) == 1).all():
        return {"start": int(array[0]), "stop": int(array[-1]) + 1}
    return {"count": array.size, "blake2b": hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()}
