"""Configuration of the data sets over token corpora; names and defaults are Megatron-Core's, unknown ones are ours."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from torch_dataloader_utils._core.arguments import check_not_negative, hold_flags, hold_integers
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

# Prefixes, and their weights (None: their lengths).
Blend = tuple[Sequence[str], Sequence[float] | None]

# The builder of indices that are not in the cache: the process that gets the lock in the cache directory first, or
# rank 0 of the job, or local rank 0 of each node, with all others waiting at a barrier of torch.distributed.
IndexBuilder = Literal["lock", "job", "node"]

_NO_PAD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Stands in for a tokenizer where only these ids matter."""

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
    """The corpora to read, how they are divided, and where indices are kept.

    Args:
        random_seed: seed of the document and sample shuffles; below 2^32, as numpy's RandomState takes it.
        sequence_length: tokens per sample.
        blend: one blend for all splits, divided by `split`.
        blend_per_split: a blend for train, valid and test each; excludes `blend` and `split`.
        multiple_validation_sets: the validation corpora of `blend_per_split` stay apart: a list of data sets, no blend.
            A single corpus is a data set, not a list of one, as Megatron-Core has it.
        full_validation: validation is one whole pass, every sample once: its size must be None.
        split: weights of train, valid and test, as "969,30,1".
        num_dataset_builder_threads: corpora of a blend opened and indexed at once.
        path_to_cache: directory of built indices, no URL; None keeps them beside a local corpus (blends in memory).
        mmap_bin_files: map local .bin files, or read them in place.
        tokenizer: anything with `eod` and `pad`, such as `SpecialTokens`.
        mid_level_dataset_surplus: share of samples that corpora of a weighted blend build on top of what it needs.
        allow_ambiguous_pad_tokens: mask a pad id even though another special token has the same.
        fast_cache_load: take the cache as it is: full, and right. Needs `path_to_cache`; excludes `blend`.
        defer_npy_index_mmap: map indices on first access. Needs a full cache in `path_to_cache`.
        sequences_per_dataset: counts of the corpora, from `read_sequences`: none is opened before its first access.
        storage_options: for the storage client of remote corpora; kept as a `Secret`, which no print of the
            configuration shows.
        credentials: a function that returns storage options with credentials, called again when they expire.
        remote: how remote corpora are read: RemoteOptions(backend, retry, coalesce, connections).
        index_builder: "lock", "job" or "node"; see `IndexBuilder`.
        cache_lock_timeout_seconds: how long to wait for another process that builds.
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
        if self.index_builder not in ("lock", "job", "node"):
            raise ConfigError(f"index_builder is 'lock', 'job' or 'node'; {self.index_builder!r} was given.")
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
        """Where each split begins and ends, as fractions of a corpus."""
        return None if self.split is None else parse_split(self.split)


def _check_cache(path: str | Path) -> None:
    directory = check_path("path_to_cache", path)
    if not open_store(directory).is_local:
        raise ConfigError(
            f"path_to_cache={redact(directory)!r} is the URL of a store, and indices are mapped: give a directory of a "
            "local disk, or of a file system that nodes share."
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
    """Whether it holds several values: a list, a tuple or an array, but not a text or a dict."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def _check_validation_sets(per_split: Sequence[Blend | None] | None) -> None:
    valid = None if per_split is None else per_split[Split.valid.value]
    if valid is None:
        raise ConfigError("multiple_validation_sets needs blend_per_split with corpora for validation.")
    if valid[1] is not None:
        raise ConfigError("multiple_validation_sets blends nothing: give the validation corpora without weights.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTDatasetConfig(BlendedMegatronDatasetConfig):
    """The same, and the contents of a sample of `GPTDataset`.

    Args:
        reset_position_ids: positions begin at 0 again after an end-of-document token.
        reset_attention_mask: tokens do not see documents before their own.
        eod_mask_loss: no loss on end-of-document tokens of the input.
        create_attention_mask: put the [1, L, L] mask into each sample.
        drop_last_partial_validation_sequence: False pads the last sample of the validation split instead.
        add_extra_token_to_sequence: take one token more per sample, so that the last label is a real one.
        inter_document_masking: add `cu_seqlens` and `max_seqlen` of the documents in a sample.
    """

    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    create_attention_mask: bool = True
    drop_last_partial_validation_sequence: bool = True
    add_extra_token_to_sequence: bool = True
    inter_document_masking: bool = False

    def __post_init__(self) -> None:
        # A class with slots is made anew by the decorator, and super() would still mean the first one.
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
        """x: tokens that a sample takes beyond its length."""
        return int(self.add_extra_token_to_sequence)


def read_token(tokenizer: Any, name: str) -> int | None:
    """A special token of a tokenizer; None when it has none or does not implement it."""
    try:
        return cast("int | None", getattr(tokenizer, name, None))
    except NotImplementedError:
        return None


def select_pad_token(tokenizer: Any, *, allows_ambiguous: bool) -> int:
    """The id that marks padding inside samples: the tokenizer's, or −1, which no corpus holds.

    −1 also replaces a pad id that another special token shares, unless `allows_ambiguous`: masking it would mask
    that token as well.
    """
    pad = read_token(tokenizer, "pad")
    if pad is None:
        return _NO_PAD
    named: Mapping[str, int] = getattr(tokenizer, "special_tokens_dict", None) or {}
    others = [token for name, token in named.items() if name != "pad_token"]
    others = others or [token for name in ("eos", "eod") if (token := read_token(tokenizer, name)) is not None]
    return pad if allows_ambiguous or pad not in others else _NO_PAD
