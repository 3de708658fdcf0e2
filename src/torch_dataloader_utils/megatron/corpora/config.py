"""Configure data sets over token corpora. Names and defaults are Megatron-Core's; options it does not know are ours."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from torch_dataloader_utils._core.arguments import check_choice, check_not_negative, hold_flags, hold_integers
from torch_dataloader_utils._core.blend_index import normalize_weights
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._store import (
    Credentials,
    RemoteOptions,
    Secret,
    StoreAccess,
    censored_text,
    open_store,
    redact,
)
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.megatron.corpora.corpus_files import check_prefix
from torch_dataloader_utils.megatron.corpora.index_format import CorpusFacts
from torch_dataloader_utils.megatron.corpora.split import Split, SplitMatrix, parse_split

# Prefixes of corpora, and their weights (None: the lengths of the corpora).
Blend = tuple[Sequence[str], Sequence[float] | None]

# The process that builds indices missing from the cache. "lock": the first process to get the lock in the cache
# directory. "job": rank 0. "node": local rank 0 of each node. With "job" and "node" all other ranks wait at a barrier.
IndexBuilder = Literal["lock", "job", "node"]

_NO_PAD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Ids of special tokens, in place of a tokenizer."""

    eod: int | None = None
    pad: int | None = None


_FLAGS = (
    "multiple_validation_sets",
    "full_validation",
    "mmap_bin_files",
    "allow_ambiguous_pad_tokens",
    "fast_cache_load",
    "defer_npy_index_mmap",
)
_SAMPLE_FLAGS = (
    "reset_position_ids",
    "reset_attention_mask",
    "eod_mask_loss",
    "create_attention_mask",
    "drop_last_partial_validation_sequence",
    "add_extra_token_to_sequence",
    "inter_document_masking",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendedMegatronDatasetConfig:
    """The corpora to read, their division into splits, and the place of built indices.

    Args:
        random_seed: seed of the document and sample shuffles, below 2^32 (the limit of numpy's RandomState).
        sequence_length: number of tokens of a sample.
        blend: one blend for all splits, divided by `split`.
        blend_per_split: one blend each for train, valid and test; excludes `blend` and `split`.
        multiple_validation_sets: whether the validation corpora of `blend_per_split` become a list of data sets instead
            of a blend. A single corpus becomes a data set, not a list, as in Megatron-Core.
        full_validation: whether validation is one whole pass, every sample once: the size must then be None.
        split: weights of train, valid and test, as "969,30,1".
        num_dataset_builder_threads: number of corpora of a blend that are opened and indexed at once.
        path_to_cache: local directory of built indices. None keeps the indices of a local corpus beside the corpus, and
            the indices of blends in memory.
        mmap_bin_files: whether local .bin files are mapped. Otherwise they are read in place.
        tokenizer: object with attributes `eod` and `pad`, for example `SpecialTokens`.
        mid_level_dataset_surplus: share of samples that corpora of a weighted blend build beyond the blend's need.
        allow_ambiguous_pad_tokens: whether a pad id is masked even if another special token has the same id.
        fast_cache_load: whether the cache is trusted to be full and right. Needs `path_to_cache`; excludes `blend`.
        defer_npy_index_mmap: whether indices are mapped on first access. Needs a full cache in `path_to_cache`.
        sequences_per_dataset: counts of the corpora, from `read_sequences`: each corpus is then opened on first access.
        storage_options: options of the storage client for remote corpora; kept as a `Secret`, so that no print of the
            configuration shows the values.
        credentials: function that returns storage options with credentials, called again when the credentials expire.
        remote: how remote corpora are read: RemoteOptions(backend, retry, coalesce, connections).
        index_builder: process that builds missing indices: "lock" (the first to get the lock in the cache directory),
            "job" (rank 0) or "node" (local rank 0 of each node).
        cache_lock_timeout_seconds: number of seconds to wait for another process that builds.
    """

    random_seed: int
    sequence_length: int
    blend: Blend | None = None
    blend_per_split: Sequence[Blend | None] | None = None
    multiple_validation_sets: bool = False
    full_validation: bool = False
    split: str | None = None
    num_dataset_builder_threads: int = 1
    path_to_cache: str | Path | None = None
    mmap_bin_files: bool = True
    tokenizer: Any = None
    mid_level_dataset_surplus: float = 0.005
    allow_ambiguous_pad_tokens: bool = False
    fast_cache_load: bool = False
    defer_npy_index_mmap: bool = False
    sequences_per_dataset: Mapping[str, CorpusFacts] | None = None
    storage_options: Mapping[str, Any] | Secret | None = None
    credentials: Credentials | None = None
    remote: RemoteOptions | None = None
    index_builder: IndexBuilder = "lock"
    cache_lock_timeout_seconds: float = 3600.0
    # Made once, so that all corpora of a job share a client.
    access: StoreAccess = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        access = StoreAccess.of(self.storage_options, self.credentials, self.remote)
        object.__setattr__(self, "access", access)
        object.__setattr__(self, "storage_options", access.options)
        hold_integers(self, "random_seed", least=0)
        if self.random_seed >= 1 << 32:
            raise ConfigError(f"random_seed={self.random_seed}: pass one below 2**32, as numpy's RandomState takes it.")
        hold_integers(self, "sequence_length", "num_dataset_builder_threads", least=1)
        hold_flags(self, *_FLAGS)
        check_not_negative("mid_level_dataset_surplus", self.mid_level_dataset_surplus)
        check_not_negative("cache_lock_timeout_seconds", self.cache_lock_timeout_seconds, what="number of seconds")
        check_choice("index_builder", self.index_builder, ("lock", "job", "node"))
        if self.path_to_cache is not None:
            _check_cache(self.path_to_cache)
        _check_facts(self.sequences_per_dataset)
        if self.split is not None:
            parse_split(self.split)
        _check_blends(self.blend, self.blend_per_split, self.split)
        if self.multiple_validation_sets:
            _check_validation_sets(self.blend_per_split)
        if (self.fast_cache_load or self.defer_npy_index_mmap) and self.path_to_cache is None:
            raise ConfigError("fast_cache_load and defer_npy_index_mmap read a full cache: give path_to_cache.")
        if self.fast_cache_load and self.blend is not None:
            raise ConfigError("fast_cache_load needs blend_per_split: splitting one blend means opening its corpora.")

    @property
    def split_matrix(self) -> SplitMatrix | None:
        """Start and end of each split as fractions of a corpus, or None without `split`."""
        return None if self.split is None else parse_split(self.split)


def _check_cache(path: str | Path) -> None:
    directory = check_path("path_to_cache", path)
    if not open_store(directory).is_local:
        raise ConfigError(
            f"path_to_cache={redact(directory)!r} is the URL of a store, and indices are mapped: give a directory on a "
            "local disk, or on a shared file system."
        )


def _check_facts(facts: Any) -> None:
    if facts is None:
        return
    if not isinstance(facts, Mapping) or not all(isinstance(each, CorpusFacts) for each in facts.values()):
        raise ConfigTypeError(
            "sequences_per_dataset is not a dict of CorpusFacts: pass what read_sequences(path) gives."
        )


def _check_blends(blend: Blend | None, per_split: Sequence[Blend | None] | None, split: str | None) -> None:
    if per_split is not None:
        if blend is not None or split is not None:
            raise ConfigError("blend_per_split already says which data each split has: drop blend and split.")
        if isinstance(per_split, str) or not isinstance(per_split, Sequence):
            raise ConfigTypeError(f"blend_per_split={per_split!r}: pass three blends, for train, valid and test.")
        if len(per_split) != len(Split):
            raise ConfigError(f"blend_per_split has {len(per_split)} entries; train, valid and test are three.")
    if blend is not None and split is None:
        raise ConfigError("blend needs split, the weights of train, valid and test, such as '969,30,1'.")
    for given in (blend, *(per_split or ())):
        if given is not None:
            _check_blend(given)


def _check_blend(blend: Any) -> None:
    is_pair = _is_list(blend) and isinstance(blend, Sequence) and len(blend) == 2
    if not is_pair or not _is_list(blend[0]) or len(blend[0]) == 0 or not (blend[1] is None or _is_list(blend[1])):
        raise ConfigError(
            f"A blend is a list of corpus prefixes and their weights or None, as in (['web', 'code'], [7, 3]); "
            f"{censored_text(repr(blend))} was given."
        )
    prefixes, weights = blend
    for prefix in prefixes:
        check_prefix("A prefix of a blend", prefix)
    if weights is None:
        return
    if len(weights) != len(prefixes):
        raise ConfigError(f"A blend of {len(prefixes)} corpora has {len(weights)} weights. Give one weight per corpus.")
    shares = normalize_weights(weights)
    if 0 in shares:
        raise ConfigError(f"{redact(os.fspath(prefixes[shares.index(0)]))} has a weight of 0 in a blend. Leave it out.")


def _is_list(value: Any) -> bool:
    """Return whether a value is a list, a tuple, an array or the like, but not a text or a dict."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def _check_validation_sets(per_split: Sequence[Blend | None] | None) -> None:
    valid = None if per_split is None else per_split[Split.valid.value]
    if valid is None:
        raise ConfigError("multiple_validation_sets needs blend_per_split with corpora for validation.")
    if valid[1] is not None:
        raise ConfigError("multiple_validation_sets blends nothing: give the validation corpora without weights.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTDatasetConfig(BlendedMegatronDatasetConfig):
    """Configuration of `GPTDataset`: the options of `BlendedMegatronDatasetConfig`, and the contents of a sample.

    Args:
        reset_position_ids: whether positions begin at 0 again after an end-of-document token.
        reset_attention_mask: whether tokens see their own document only.
        eod_mask_loss: whether end-of-document tokens of the input have no loss.
        create_attention_mask: whether each sample has the [1, L, L] mask.
        drop_last_partial_validation_sequence: whether a partial last sample of the validation split is left out. If
            not, the sample is padded.
        add_extra_token_to_sequence: whether a sample takes one token more, so that the last label is a real token.
        inter_document_masking: whether samples have `cu_seqlens` and `max_seqlen` of their documents instead of a mask,
            and positions of each document.
    """

    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    create_attention_mask: bool = True
    drop_last_partial_validation_sequence: bool = True
    add_extra_token_to_sequence: bool = True
    inter_document_masking: bool = False

    def __post_init__(self) -> None:
        # The decorator makes a second class for the slots, and super() would still refer to the first class.
        BlendedMegatronDatasetConfig.__post_init__(self)
        hold_flags(self, *_SAMPLE_FLAGS)
        needs_eod = self.reset_position_ids or self.reset_attention_mask or self.eod_mask_loss
        if needs_eod and read_token(self.tokenizer, "eod") is None:
            raise ConfigError(
                "reset_position_ids, reset_attention_mask and eod_mask_loss look for the end-of-document token: give a "
                "tokenizer with eod, or tokenizer=SpecialTokens(eod=…)."
            )

    @property
    def extra_tokens(self) -> int:
        """Number of tokens that a sample takes beyond its length: x."""
        return int(self.add_extra_token_to_sequence)


def read_token(tokenizer: Any, name: str) -> int | None:
    """Return a special token of a tokenizer; None if the tokenizer lacks the token or does not implement it."""
    try:
        return cast("int | None", getattr(tokenizer, name, None))
    except NotImplementedError:
        return None


def select_pad_token(tokenizer: Any, *, allows_ambiguous: bool) -> int:
    """Return the id that marks padding inside samples: the tokenizer's pad id, or −1, an id that no corpus has.

    −1 also replaces a pad id that another special token shares, unless `allows_ambiguous`: masking the pad id would
    mask the other token as well.
    """
    pad = read_token(tokenizer, "pad")
    if pad is None:
        return _NO_PAD
    named: Mapping[str, int] = getattr(tokenizer, "special_tokens_dict", None) or {}
    others = [token for name, token in named.items() if name != "pad_token"]
    others = others or [token for name in ("eos", "eod") if (token := read_token(tokenizer, name)) is not None]
    return pad if allows_ambiguous or pad not in others else _NO_PAD
