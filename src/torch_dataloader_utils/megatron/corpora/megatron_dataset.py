"""The contract of a data set over one split of one corpus, which `BlendedMegatronDatasetBuilder` builds."""

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
        dataset_path: its prefix as the user wrote it; part of the cache key.
        indexed_indices: the exposed elements of the corpus, as a range or an array of ids.
        num_samples: how many samples are wanted; None for one pass.
        index_split: what the samples are for.
        config: everything else.
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
        """How many elements (sequences or documents) a split string divides."""

    @staticmethod
    @abstractmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> IndexedDataset:
        """Open the corpus."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int | None) -> Sample:
        """Sample `index`; None gives a sample that fills up a batch and has no loss."""

    @abstractmethod
    def load_indices(self) -> object:
        """Build the indices or find them in the cache; called once before data sets are handed to the trainer."""

    def describe(self) -> dict[str, Any]:
        """Everything the indices depend on, as JSON values; subclasses add theirs."""
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
    """The ids as JSON: their borders when they are neighbours, else a digest. An array and its range agree."""
    if isinstance(ids, range) and ids.step == 1:
        return {"start": ids.start, "stop": max(ids.start, ids.stop)}
    array = np.asarray(ids, dtype=np.int64)
    if array.size and (np.diff(array) == 1).all():
        return {"start": int(array[0]), "stop": int(array[-1]) + 1}
    return {"count": array.size, "blake2b": hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()}
