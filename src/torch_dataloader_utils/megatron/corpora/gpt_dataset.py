"""Cut a corpus, with documents laid end to end, into samples of a fixed number of tokens."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import ConfigError, SchemaError
from torch_dataloader_utils.megatron.corpora.config import GPTDatasetConfig, read_token, select_pad_token
from torch_dataloader_utils.megatron.corpora.index_cache import KeptIndex, select_cache
from torch_dataloader_utils.megatron.corpora.indexed_dataset import IndexedDataset, Part
from torch_dataloader_utils.megatron.corpora.megatron_dataset import MegatronDataset, SequenceIds
from torch_dataloader_utils.megatron.corpora.sample_index import CorpusEpochs, SampleIndices, build_indices, plan_epochs
from torch_dataloader_utils.megatron.corpora.sequences import select_facts
from torch_dataloader_utils.megatron.corpora.split import Split


def number_documents(tokens: Tensor, eod: int) -> Tensor:
    """Return the document of each token of a sample, int64 [L]: an end-of-document token ends its own document.

    tokens 4 0 5 6 0 7 with eod 0: documents 0 0 1 1 1 2
    """
    ends = (tokens == eod).long()
    return torch.cumsum(ends, dim=0) - ends


def build_attention_mask(sequence_length: int, documents: Tensor | None = None) -> Tensor:
    """Return the attention mask, bool [1, L, L].

    True hides a token from a row: later tokens, and with `documents` all tokens of other documents.
    """
    row = torch.arange(sequence_length)
    hidden = row[None, :] > row[:, None]
    if documents is not None:
        hidden |= documents[None, :] != documents[:, None]
    return hidden[None]


def build_position_ids(sequence_length: int, documents: Tensor | None = None) -> Tensor:
    """Return the positions 0, 1, 2, …, int64 [L]. With `documents` each document begins at 0 again.

    documents 0 0 1 1 1 2: positions 0 1 0 1 2 0
    """
    positions = torch.arange(sequence_length)
    if documents is None or sequence_length == 0:
        return positions
    starts = torch.searchsorted(documents, documents, side="left")
    return positions - starts


def build_document_borders(part_tokens: Sequence[int], sequence_length: int) -> Tensor:
    """Return the cumulative lengths of the documents in a sample, int32 [documents + 1].

    `part_tokens` has the number of tokens of each document in the sample, in order. Padding belongs to the last
    document. An empty part is an empty document, as in Megatron-Core, unless [L + 1] has no place for all borders.

        parts 3 2, L=5      cu_seqlens 0 3 5
        parts 2, L=4        cu_seqlens 0 4 (two tokens of padding)
        parts 0 1 1, L=3    cu_seqlens 0 0 1 3
        parts 0 1 1, L=2    cu_seqlens 0 1 2
    """
    parts = list(part_tokens) if len(part_tokens) <= sequence_length else [part for part in part_tokens if part]
    borders = np.cumsum([0, *(parts or [0])], dtype=np.int32)
    borders[-1] = sequence_length
    return torch.from_numpy(borders)


# Part of the cache key: raise the version when the same description gives other indices.
_INDEX_VERSION = 1


class GPTSample(TypedDict):
    """Sample of a `GPTDataset`, which documents the keys."""

    tokens: Tensor
    labels: Tensor
    attention_mask: NotRequired[Tensor]
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: NotRequired[Tensor]
    max_seqlen: NotRequired[Tensor]


class GPTDataset(MegatronDataset):
    """Samples of L = sequence_length tokens, with the next token of each token as label, a loss mask and positions.

    Keys: `tokens`, `labels`, `position_ids` int64 [L], `loss_mask` float32 [L], and, with `create_attention_mask`,
    `attention_mask` bool [1, L, L]. With `inter_document_masking` a sample has `cu_seqlens`, int32 [L + 1] filled up
    with L, and `max_seqlen`, int32 [], instead of the mask, and positions begin at 0 in every document.

    Order and content are Megatron-Core's for the same files, seed and options. All samples share one attention mask
    unless `reset_attention_mask`: copy the tensor before writing to it.
    """

    config: GPTDatasetConfig

    def __init__(
        self,
        indexed_dataset: IndexedDataset,
        dataset_path: str | None,
        indexed_indices: SequenceIds,
        num_samples: int | None,
        index_split: Split,
        config: GPTDatasetConfig,
    ) -> None:
        super().__init__(indexed_dataset, dataset_path, indexed_indices, num_samples, index_split, config)
        self._pad = select_pad_token(config.tokenizer, allows_ambiguous=config.allow_ambiguous_pad_tokens)
        self._indices: SampleIndices | None = None
        self._shared_mask: Tensor | None = None
        if not config.defer_npy_index_mmap:
            self.load_indices()

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: IndexedDataset) -> int:
        """Return the number of sequences: GPT corpora are divided by sequence, not by document."""
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: GPTDatasetConfig) -> IndexedDataset:
        """Return the corpus, unopened if its counts are known."""
        facts = select_facts(config.sequences_per_dataset, dataset_path)
        return IndexedDataset(dataset_path, mmap=config.mmap_bin_files, storage_options=config.access, facts=facts)

    @property
    def document_index(self) -> npt.NDArray[np.integer]:
        """Sequence ids, in the order in which the tokens of the sequences are laid end to end: [D]."""
        return self.load_indices().document_index

    @property
    def sample_index(self) -> npt.NDArray[np.integer]:
        """Start of each sample as position in `document_index` and token offset: [K + 1, 2]."""
        return self.load_indices().sample_index

    @property
    def shuffle_index(self) -> npt.NDArray[np.integer]:
        """Row of `sample_index` for each sample: [K]."""
        return self.load_indices().shuffle_index

    def describe(self) -> dict[str, Any]:
        """Return everything the indices depend on."""
        return super().describe() | {
            "index_version": _INDEX_VERSION,
            "extra_tokens": self.config.extra_tokens,
            "drops_partial": self._drops_partial,
        }

    def load_indices(self) -> SampleIndices:
        """Return the three indices: from memory, from the cache, or built."""
        if self._indices is None:
            self._indices = self._kept_index.load_or_build(self._build_indices)
        return self._indices

    @property
    def _kept_index(self) -> KeptIndex[SampleIndices]:
        name = type(self).__name__
        return KeptIndex(
            kind=SampleIndices,
            cache=select_cache(self.config, f"{self.dataset.path_prefix}/cache/{name}_indices"),
            name=f"{name}-{self.index_split.name}",
            describe=self.describe,
        )

    def _build_indices(self) -> SampleIndices:
        return build_indices(
            self.dataset.sequence_lengths,
            self.indices,
            self._plan_epochs(),
            sequence_length=self.config.sequence_length,
            extra_tokens=self.config.extra_tokens,
            seed=self.config.random_seed,
        )

    def _plan_epochs(self) -> CorpusEpochs:
        try:
            return plan_epochs(
                self._count_tokens(),
                sequence_length=self.config.sequence_length,
                extra_tokens=self.config.extra_tokens,
                num_samples=self.num_samples,
                drops_partial=self._drops_partial,
            )
        except ConfigError as error:
            raise ConfigError(f"{redact(self.dataset_path)}, {self.index_split.name}: {error}") from error

    @property
    def _exposes_everything(self) -> bool:
        return isinstance(self.indices, range) and self.indices == range(len(self.dataset))

    def _count_tokens(self) -> int:
        if self._exposes_everything:
            return self.dataset.token_count
        lengths = self.dataset.sequence_lengths
        # A slice of the mapped lengths is a view; an array of ids copies.
        ids = self.indices
        chosen = lengths[ids.start : ids.stop] if isinstance(ids, range) else lengths[ids]
        return int(chosen.sum(dtype=np.int64))

    @property
    def _drops_partial(self) -> bool:
        return self.index_split is not Split.valid or self.config.drop_last_partial_validation_sequence

    def __len__(self) -> int:
        if self._indices is None and self._exposes_everything:
            return self._plan_epochs().sample_count
        return len(self.shuffle_index)

    def __getitem__(self, index: int | None) -> GPTSample:
        """Return sample `index`. None, the padding of a batch, gives some sample with a loss mask of zeros."""
        text, part_tokens = self._read_sample(0 if index is None else index)
        config, pad = self.config, self._pad
        if config.add_extra_token_to_sequence:
            tokens, labels = text[:-1].clone(), text[1:].clone()
        else:
            tokens, labels = text, torch.roll(text, shifts=-1)
            labels[-1] = pad
        masks = self._build_masks(tokens, labels, part_tokens)
        sample = cast("GPTSample", {"tokens": tokens, "labels": labels, **masks})
        if index is None:
            sample["loss_mask"].zero_()
        # Padding may be an id that no embedding has.
        tokens[tokens == pad] = 0
        labels[labels == pad] = 0
        return sample

    def _build_masks(self, tokens: Tensor, labels: Tensor, part_tokens: Sequence[int]) -> dict[str, Tensor]:
        """Return the keys of a sample beside tokens and labels, in Megatron-Core's order."""
        config, length = self.config, self.config.sequence_length
        loss_mask = self._build_loss_mask(tokens, labels)
        if config.inter_document_masking:
            borders = build_document_borders(part_tokens, length)
            sizes = torch.diff(borders)
            return {
                "loss_mask": loss_mask,
                "position_ids": torch.arange(length) - torch.repeat_interleave(borders[:-1], sizes),
                "cu_seqlens": torch.nn.functional.pad(borders, (0, length + 1 - len(borders)), value=length),
                "max_seqlen": sizes.max(),
            }
        documents = self._number_documents(tokens)
        mask = {"attention_mask": self._build_attention_mask(documents)} if config.create_attention_mask else {}
        positions = build_position_ids(length, documents if config.reset_position_ids else None)
        return {**mask, "loss_mask": loss_mask, "position_ids": positions}

    def _number_documents(self, tokens: Tensor) -> Tensor | None:
        """Return `number_documents`, or None if neither positions nor attention depend on documents."""
        config = self.config
        eod = read_token(config.tokenizer, "eod")
        if eod is None or not (config.reset_position_ids or config.reset_attention_mask):
            return None
        return number_documents(tokens, eod)

    def _build_loss_mask(self, tokens: Tensor, labels: Tensor) -> Tensor:
        loss_mask = torch.ones(self.config.sequence_length)
        eod = read_token(self.config.tokenizer, "eod")
        if eod is not None and self.config.eod_mask_loss:
            loss_mask[tokens == eod] = 0.0
        loss_mask[labels == self._pad] = 0.0
        return loss_mask

    def _build_attention_mask(self, documents: Tensor | None) -> Tensor:
        length = self.config.sequence_length
        if self.config.reset_attention_mask:
            return build_attention_mask(length, documents)
        if self._shared_mask is None:
            self._shared_mask = build_attention_mask(length)
        return self._shared_mask

    def _read_sample(self, index: int) -> tuple[Tensor, Sequence[int]]:
        """Return the padded text, int64 [L + x], and for each document its number of tokens in the first L tokens."""
        indices, extra_tokens = self.load_indices(), self.config.extra_tokens
        count = len(indices.shuffle_index)
        if not -count <= index < count:
            raise IndexError(f"{self.dataset_path} has {count} samples for {self.index_split.name}; {index} asked for.")
        row = int(indices.shuffle_index[index])
        (first, offset), (last, end) = indices.sample_index[row : row + 2].tolist()
        ids = indices.document_index[first : last + 1].tolist()
        parts: list[Part] = [(sequence, 0, None) for sequence in ids]
        parts[0] = (ids[0], offset, None)
        parts[-1] = (ids[-1], parts[-1][1], end + extra_tokens - parts[-1][1])
        if self.dataset.dtype.kind == "f":
            raise SchemaError(f"{self.dataset_path} holds {self.dataset.dtype.name}; samples are made of integers.")
        pieces = self.dataset.get_parts(parts)
        length = self.config.sequence_length + extra_tokens
        text = np.full(length, self._pad, dtype=np.int64)
        joined = np.concatenate(pieces)
        text[: len(joined)] = joined
        part_tokens = [len(piece) for piece in pieces]
        # Megatron-Core takes the extra token from the last document, also where padding follows.
        part_tokens[-1] -= extra_tokens
        if extra_tokens and part_tokens[-1] == 0:
            part_tokens.pop()
        return torch.from_numpy(text), part_tokens

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_shared_mask"] = None
        if self._kept_index.is_on_disk:
            state["_indices"] = None
        return state
