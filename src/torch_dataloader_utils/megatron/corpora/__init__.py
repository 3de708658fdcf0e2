"""Corpora of tokens in Megatron's format, and samples of one length that are drawn from corpora.

    corpus_build/   a column of text or token lists  →  a corpus: `<prefix>.bin` and `<prefix>.idx`
    here            corpora                          →  map-style data sets of samples, blended or not (`GPTDataset`)

Promises: the same files, seed and options give the same samples in the same order as Megatron-Core, so the position
in an old checkpoint keeps its meaning; a file cut or damaged anywhere is an error, never other tokens; indices are
built once per cache directory and appear whole. Not for: samples of one length without a corpus (`pack=` of a data
set), or sequences of unequal length (`megatron.schedules` spreads sequences over ranks, `wrappers.TokenBatchSampler`
limits the tokens of a batch).
"""

from torch_dataloader_utils._core.blend_index import BlendIndex, blend_by_weight, blend_exhaustively
from torch_dataloader_utils.megatron.corpora.blended_dataset import BlendedDataset
from torch_dataloader_utils.megatron.corpora.builder import IndexedDatasetBuilder, find_corpora, merge_corpora
from torch_dataloader_utils.megatron.corpora.config import BlendedMegatronDatasetConfig, GPTDatasetConfig, SpecialTokens
from torch_dataloader_utils.megatron.corpora.corpus_build.corpus import CorpusReport, build_corpus
from torch_dataloader_utils.megatron.corpora.dataset_builder import BlendedMegatronDatasetBuilder
from torch_dataloader_utils.megatron.corpora.gpt_dataset import GPTDataset, GPTSample
from torch_dataloader_utils.megatron.corpora.index_format import CorpusFacts, select_dtype
from torch_dataloader_utils.megatron.corpora.indexed_dataset import IndexedDataset
from torch_dataloader_utils.megatron.corpora.megatron_dataset import MegatronDataset
from torch_dataloader_utils.megatron.corpora.samplers import (
    FullValidationSampler,
    GlobalBatchSampler,
    PretrainingRandomSampler,
    PretrainingSampler,
)
from torch_dataloader_utils.megatron.corpora.sequences import describe_corpus, read_sequences, write_sequences
from torch_dataloader_utils.megatron.corpora.split import Split, parse_split

__all__ = [
    "BlendIndex",
    "BlendedDataset",
    "BlendedMegatronDatasetBuilder",
    "BlendedMegatronDatasetConfig",
    "CorpusFacts",
    "CorpusReport",
    "FullValidationSampler",
    "GPTDataset",
    "GPTDatasetConfig",
    "GPTSample",
    "GlobalBatchSampler",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "MegatronDataset",
    "PretrainingRandomSampler",
    "PretrainingSampler",
    "SpecialTokens",
    "Split",
    "blend_by_weight",
    "blend_exhaustively",
    "build_corpus",
    "describe_corpus",
    "find_corpora",
    "merge_corpora",
    "parse_split",
    "read_sequences",
    "select_dtype",
    "write_sequences",
]
