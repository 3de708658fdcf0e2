"""The same files and the same samples as Megatron-Core, where it is installed.

Write with one side and read with the other; build indices with both and compare them number for number. Its C++ index
builders are exercised too.
"""

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from torch_dataloader_utils._core.blend_index import normalize_weights
from torch_dataloader_utils.megatron.corpora import (
    BlendedDataset,
    BlendedMegatronDatasetBuilder,
    GPTDataset,
    GPTDatasetConfig,
    IndexedDataset,
    IndexedDatasetBuilder,
    SpecialTokens,
    blend_by_weight,
    blend_exhaustively,
    merge_corpora,
)
from torch_dataloader_utils.megatron.corpora.index_format import DTYPES

with warnings.catch_warnings():
    # Importing warns about kernels that are not installed; nothing here needs them.
    warnings.simplefilter("ignore")
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset", exc_type=ImportError)
    blending = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder", exc_type=ImportError)
    helpers = pytest.importorskip("megatron.core.datasets.helpers_cpp", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore")

EOD, PAD = 7, 0


@dataclass(frozen=True)
class _Tokenizer:
    eod: int = EOD
    eos: int = EOD
    pad: int = PAD
    vocab_size: int = 1000

    @property
    def unique_identifiers(self) -> dict[str, str]:
        return {"class": "test"}


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    """It asks for its rank even when there is only one."""
    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("gloo", init_method=f"file://{directory}/group", rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def _documents(seed: int, count: int) -> Iterator[tuple[np.ndarray, list[int]]]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        # No empty sequences: version 0.16.1 stops at an assertion when the last one of a split is empty.
        lengths = random.integers(1, 40, random.integers(1, 4))
        tokens = random.integers(1, 120, lengths.sum())
        tokens[random.random(len(tokens)) < 0.05] = EOD
        yield tokens, lengths.tolist()


def _write(builder: Any, prefix: str, seed: int, modes: bool = False) -> None:
    for tokens, lengths in _documents(seed, 60):
        builder.add_document(torch.from_numpy(tokens), lengths, [len(lengths)] * len(lengths) if modes else None)
    builder.finalize(f"{prefix}.idx")


def _write_both(directory: Path, number: int, dtype: Any = np.uint16, modes: bool = False) -> tuple[str, str]:
    ours, theirs = str(directory / f"ours{number}"), str(directory / f"theirs{number}")
    _write(IndexedDatasetBuilder(f"{ours}.bin", dtype=dtype, multimodal=modes), ours, number, modes)
    _write(indexed.IndexedDatasetBuilder(f"{theirs}.bin", dtype=dtype, multimodal=modes), theirs, number, modes)
    return ours, theirs


def _same_files(left: str, right: str) -> bool:
    return all(Path(f"{left}.{end}").read_bytes() == Path(f"{right}.{end}").read_bytes() for end in ("idx", "bin"))


@pytest.mark.parametrize("dtype", [dtype.type for dtype in DTYPES.values()])
@pytest.mark.parametrize("modes", [False, True])
def test_files_are_equal_byte_for_byte(tmp_path: Path, dtype: Any, modes: bool) -> None:
    assert _same_files(*_write_both(tmp_path, 0, dtype, modes))


@pytest.mark.slow
def test_merged_files_are_equal_byte_for_byte(tmp_path: Path) -> None:
    pairs = [_write_both(tmp_path, number) for number in range(3)]
    merge_corpora([ours for ours, _ in pairs], str(tmp_path / "ours"))
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for _, theirs in pairs:
        builder.add_index(theirs)
    builder.finalize(str(tmp_path / "theirs.idx"))
    assert _same_files(str(tmp_path / "ours"), str(tmp_path / "theirs"))


@pytest.mark.parametrize("modes", [False, True])
def test_each_side_reads_what_the_other_wrote(tmp_path: Path, modes: bool) -> None:
    ours, theirs = _write_both(tmp_path, 0, modes=modes)
    read_by_us = IndexedDataset(theirs, multimodal=modes)
    read_by_them = indexed.IndexedDataset(ours, multimodal=modes)
    assert len(read_by_us) == len(read_by_them)
    for left, right in zip(read_by_us, (read_by_them[i] for i in range(len(read_by_us))), strict=True):
        if modes:
            assert left[1] == right[1]
            left, right = left[0], right[0]
        assert left.tolist() == right.tolist()
    assert read_by_us.document_indices.tolist() == read_by_them.document_indices.tolist()


_BLENDS = [
    ([0.7, 0.2, 0.1], (1000, 100, 0)),
    (None, (60, 5, 2)),
    (None, (None, None, None)),
]


@pytest.mark.cases(4)
@pytest.mark.parametrize(("weights", "sizes"), _BLENDS)
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("drop", [True, False])
def test_indices_and_samples_are_equal(
    tmp_path: Path, weights: list[float] | None, sizes: tuple[int | None, ...], extra: bool, drop: bool
) -> None:
    pairs = [_write_both(tmp_path, number) for number in range(3)]
    for reset, mask_eod in ((False, False), (True, False), (False, True)):
        options: dict[str, Any] = {
            "random_seed": 1234,
            "sequence_length": 16,
            "split": "80,12,8",
            "reset_position_ids": reset,
            "reset_attention_mask": reset,
            "eod_mask_loss": mask_eod,
            "add_extra_token_to_sequence": extra,
            "drop_last_partial_validation_sequence": drop,
        }
        our_config = GPTDatasetConfig(
            blend=([ours for ours, _ in pairs], weights),
            tokenizer=SpecialTokens(eod=EOD, pad=PAD),
            path_to_cache=tmp_path / "cache",
            **options,
        )
        their_config = gpt.GPTDatasetConfig(
            blend=([theirs for _, theirs in pairs], weights),
            tokenizer=_Tokenizer(),
            path_to_cache=str(tmp_path / f"theirs-{reset}-{mask_eod}"),
            **options,
        )
        ours = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, our_config).build()
        theirs = blending.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, their_config).build()
        for left, right in zip(ours, theirs, strict=True):
            _compare(left, right)


# One pass is 134 samples: fewer, as many (the surplus begins a second pass), one more, and several passes.
@pytest.mark.parametrize("size", [60, 133, 134, 135, 500])
@pytest.mark.parametrize("weights", [None, [1.0], [0.3]])
@pytest.mark.parametrize("is_per_split", [False, True])
def test_one_corpus_is_blended_where_theirs_is(
    tmp_path: Path, size: int, weights: list[float] | None, is_per_split: bool
) -> None:
    options: dict[str, Any] = {
        "random_seed": 1234,
        "sequence_length": 16,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
    }

    def blend(prefix: str) -> dict[str, Any]:
        given = ([prefix], weights)
        return {"blend_per_split": [given, None, None]} if is_per_split else {"blend": given, "split": "1,0,0"}

    our_prefix, their_prefix = _write_both(tmp_path, 0)
    our_config = GPTDatasetConfig(tokenizer=SpecialTokens(eod=EOD, pad=PAD), **blend(our_prefix), **options)
    their_config = gpt.GPTDatasetConfig(tokenizer=_Tokenizer(), **blend(their_prefix), **options)
    sizes = (size, 0, 0)
    ours = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, our_config).build()[0]
    theirs = blending.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, their_config).build()[0]
    assert ours is not None
    assert type(ours).__name__ == type(theirs).__name__
    if isinstance(ours, BlendedDataset):
        _compare(ours, theirs)
    else:
        assert len(ours) == len(theirs)
        _compare_indices(ours, theirs)


def test_validation_corpora_that_stay_apart_are_equal(tmp_path: Path) -> None:
    pairs = [_write_both(tmp_path, number) for number in range(2)]
    options: dict[str, Any] = {
        "random_seed": 5,
        "sequence_length": 16,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "multiple_validation_sets": True,
        "full_validation": True,
    }

    def blends(side: int) -> list[Any]:
        prefixes = [pair[side] for pair in pairs]
        return [(prefixes, None), (prefixes, None), None]

    our_config = GPTDatasetConfig(blend_per_split=blends(0), tokenizer=SpecialTokens(eod=EOD, pad=PAD), **options)
    their_config = gpt.GPTDatasetConfig(blend_per_split=blends(1), tokenizer=_Tokenizer(), **options)
    sizes = (40, None, None)
    ours = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, our_config).build()[1]
    theirs = blending.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, their_config).build()[1]
    assert isinstance(ours, list)
    for left, right in zip(ours, theirs, strict=True):
        _compare_indices(left, right)


def _compare_indices(left: Any, right: Any) -> None:
    for name in ("document_index", "sample_index", "shuffle_index"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
        assert getattr(left, name).dtype == getattr(right, name).dtype


def _compare(ours: Any, theirs: Any) -> None:
    assert isinstance(ours, BlendedDataset)
    assert len(ours) == len(theirs)
    np.testing.assert_array_equal(ours.dataset_index, theirs.dataset_index)
    np.testing.assert_array_equal(ours.dataset_sample_index, theirs.dataset_sample_index)
    for left, right in zip(ours.datasets, theirs.datasets, strict=True):
        _compare_indices(left, right)
        # Version 0.16.1 writes the padding of one sample into a mask that it shares with all later ones.
        right.masks_and_position_ids_are_cacheable = False
    for i in range(0, len(ours), 1 + len(ours) // 20):
        left, right = ours[i], theirs[i]
        assert left.keys() == right.keys()
        assert left["dataset_id"] == right["dataset_id"]
        for key in left.keys() - {"dataset_id"}:
            assert left[key].dtype == right[key].dtype
            assert torch.equal(left[key], right[key]), key


@pytest.mark.parametrize("seed", range(6))
def test_blends_are_equal_to_the_compiled_rule(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 60))
    weights = normalize_weights(random.dirichlet(np.full(count, 0.3 + seed)).clip(1e-9).tolist())
    size = 30_000
    dataset_index, sample_index = np.zeros(size, np.int16), np.zeros(size, np.int64)
    helpers.build_blending_indices(dataset_index, sample_index, weights, count, size, False)
    blend = blend_by_weight(weights, size, normalize=False)
    np.testing.assert_array_equal(blend.dataset_index, dataset_index)
    np.testing.assert_array_equal(blend.dataset_sample_index, sample_index)
    sizes = random.integers(1, 500, count)
    total = int(sizes.sum())
    dataset_index, sample_index = np.zeros(total, np.int16), np.zeros(total, np.int64)
    helpers.build_exhaustive_blending_indices(dataset_index, sample_index, sizes.astype(np.int64), count)
    exhaustive = blend_exhaustively(sizes.tolist())
    np.testing.assert_array_equal(exhaustive.dataset_index, dataset_index)
    np.testing.assert_array_equal(exhaustive.dataset_sample_index, sample_index)
