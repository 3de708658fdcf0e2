"""Train, validation and test data sets of a configuration: sizes, blends and splits of Megatron-Core."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.megatron.corpora.corpora import write_lengths
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.megatron.corpora import (
    BlendedDataset,
    BlendedMegatronDatasetBuilder,
    GPTDataset,
    GPTDatasetConfig,
    Split,
)
from torch_dataloader_utils.megatron.corpora.config import IndexBuilder
from torch_dataloader_utils.megatron.corpora.dataset_builder import build_ranks_first


def _build(sizes: list[int | None], **options: Any) -> list[Any]:
    config = GPTDatasetConfig(random_seed=1234, sequence_length=8, create_attention_mask=False, **options)
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()


@pytest.fixture
def corpora(tmp_path: Path) -> list[str]:
    return [write_lengths(tmp_path / f"c{i}", [10 + (i * 7 + k * 3) % 11 for k in range(30 + i)]) for i in range(3)]


def test_sizes_of_a_weighted_blend_are_the_originals(corpora: list[str]) -> None:
    train, valid, test = _build([100, None, None], blend_per_split=[(corpora, [0.7, 0.2, 0.1]), None, None])
    assert (valid, test) == (None, None)
    # Float noise makes 21 and 11 of 20 and 10.
    assert [dataset.num_samples for dataset in train.datasets] == [71, 22, 12]
    assert len(train) == 102
    assert sum(train.weights) == pytest.approx(1.0)


def test_one_blend_is_divided_into_splits(corpora: list[str]) -> None:
    train, valid, test = _build([None, None, None], blend=(corpora, None), split="80,20,0")
    assert test is None
    assert [len(part) for part in (train, valid)] == [
        sum(len(each) for each in part.datasets) for part in (train, valid)
    ]
    for left, right in zip(train.datasets, valid.datasets, strict=True):
        assert left.indices.stop == right.indices.start
        assert (left.index_split, right.index_split) == (Split.train, Split.valid)
    seen = {
        (sample["dataset_id"], tuple(sample["tokens"].tolist())) for sample in (train[i] for i in range(len(train)))
    }
    assert len(seen) == len(train)


def test_a_size_without_weights_is_capped_and_proportional(corpora: list[str]) -> None:
    train, _, _ = _build([20, None, None], blend=(corpora, None), split="1")
    assert (len(train), sum(train.weights)) == (20, pytest.approx(1.0))
    everything, _, _ = _build([10**6, None, None], blend=(corpora, None), split="1")
    assert len(everything) == sum(len(dataset) for dataset in everything.datasets)


def test_a_single_corpus_is_blended_only_by_a_weight_in_one_blend_for_all_splits(corpora: list[str]) -> None:
    one, weighted = (corpora[:1], None), (corpora[:1], [3.0])
    assert isinstance(_build([None, None, None], blend=one, split="1")[0], GPTDataset)
    train = _build([1000, None, None], blend=weighted, split="1")[0]
    assert isinstance(train, BlendedDataset)
    assert (len(train), train.weights, train.datasets[0].num_samples) == (1000, [1.0], 1005)
    apart = _build([1000, None, None], blend_per_split=[weighted, None, None])[0]
    assert (type(apart), apart.num_samples) == (GPTDataset, 1000)
    with pytest.raises(ConfigError, match="train has weights: it needs a size too"):
        _build([None, None, None], blend_per_split=[weighted, None, None])


@pytest.mark.parametrize("weights", [[float("nan")], [-1.0], [0.0], [float("inf")]])
def test_weights_of_a_single_corpus_are_held_to_those_of_several(corpora: list[str], weights: list[float]) -> None:
    for prefixes, given in ((corpora[:1], weights), (corpora[:2], [1.0, *weights] if weights != [0.0] else [0.0] * 2)):
        for blend in ({"blend": (prefixes, given), "split": "1"}, {"blend_per_split": [(prefixes, given), None, None]}):
            with pytest.raises(ConfigError, match="Weights must be finite, not negative and not all 0"):
                _build([5, None, None], **blend)


def test_validation_corpora_stay_apart_on_request(corpora: list[str]) -> None:
    _, valid, _ = _build([None] * 3, blend_per_split=[None, (corpora, None), None], multiple_validation_sets=True)
    assert [dataset.dataset_path for dataset in valid] == corpora
    blended = _build([None] * 3, blend_per_split=[None, (corpora, None), None])[1]
    assert [len(dataset) for dataset in valid] == [len(dataset) for dataset in blended.datasets]
    _, valid, _ = _build([None, 50, None], blend_per_split=[None, (corpora, None), None], multiple_validation_sets=True)
    assert [dataset.num_samples for dataset in valid] == [50, 50, 50]
    one = _build([None] * 3, blend_per_split=[None, (corpora[:1], None), None], multiple_validation_sets=True)[1]
    assert isinstance(one, GPTDataset)
    with pytest.raises(ConfigError, match="without weights"):
        _build([None, 5, None], blend_per_split=[None, (corpora, [1.0] * 3), None], multiple_validation_sets=True)
    with pytest.raises(ConfigError, match="needs blend_per_split"):
        _build([None] * 3, blend=(corpora, None), split="1,1,1", multiple_validation_sets=True)


def test_full_validation_is_one_pass(corpora: list[str]) -> None:
    options: dict[str, Any] = {"blend_per_split": [None, (corpora, None), None], "full_validation": True}
    _, valid, _ = _build([None, None, None], **options)
    assert len(valid) == sum(len(dataset) for dataset in valid.datasets)
    with pytest.raises(ConfigError, match="a size of 5 was given"):
        _build([None, 5, None], **options)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("num_dataset_builder_threads", [0, 1.5, "2"]),
        ("mid_level_dataset_surplus", [-0.1, float("nan"), "0.005"]),
        ("cache_lock_timeout_seconds", [-1, float("inf"), None]),
    ],
)
def test_numbers_of_a_configuration_are_checked_before_anything_is_opened(name: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(ConfigError, match=f"{name}={value!r}: pass a"):
            GPTDatasetConfig(random_seed=1, sequence_length=8, **{name: value})
    with pytest.raises(ConfigError, match=r"random_seed=4294967296: pass one below 2\*\*32"):
        GPTDatasetConfig(random_seed=1 << 32, sequence_length=8)


def test_a_blend_with_fewer_weights_than_corpora_says_what_is_missing(corpora: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"2 corpora has 1 weights\. Give one weight per corpus"):
        _build([5, None, None], blend=(corpora[:2], [1.0]), split="1")


def test_weights_need_a_size_and_a_corpus_needs_samples(corpora: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a size"):
        _build([None, 1, 1], blend=(corpora, [1.0, 1.0, 1.0]), split="1")
    for no_blend in (corpora[0], corpora, [corpora[0]], (corpora[0], None), ([], None)):
        with pytest.raises(ConfigError, match="A blend is a list of corpus prefixes and their weights"):
            _build([1, 1, 1], blend=no_blend, split="1")
    with pytest.raises(ConfigError, match="nothing to build"):
        _build([1, 1, 1])
    with pytest.raises(ConfigError, match="three numbers"):
        _build([1, 1], blend=(corpora, None), split="1")
    for size, wanted in (("10", ConfigTypeError), (10.5, ConfigTypeError), (True, ConfigTypeError), (-1, ConfigError)):
        with pytest.raises(wanted, match=f"The size for valid={size!r}: pass a whole number of at least 0"):
            _build([1, size, 1], blend=(corpora, None), split="1")  # type: ignore[list-item]
    short = write_lengths(tmp_path / "short", [3])
    with pytest.raises(ConfigError, match="short has no whole sample for train"):
        _build([None] * 3, blend=([corpora[0], short], None), split="1")
    with pytest.raises(ConfigError, match="short, valid: 3 samples were asked for from a split without tokens"):
        _build([1, 3, 1], blend=([short], None), split="1,0.1,0.1")


def test_blends_take_no_more_than_there_is(corpora: list[str]) -> None:
    train, _, _ = _build([None, None, None], blend=(corpora, None), split="1")
    config = train.config
    with pytest.raises(ConfigError, match="takes 60 samples from data set 0"):
        BlendedDataset(train.datasets[:1], [1.0], 60, config)
    with pytest.raises(ConfigError, match="one weight per data set"):
        BlendedDataset(train.datasets, [1.0], 60, config)
    with pytest.raises(ConfigError, match="not whole"):
        BlendedDataset(train.datasets[:1], [1.5], None, config)
    with pytest.raises(IndexError, match="samples"):
        train[len(train)]
    assert train[None]["loss_mask"].sum() == 0


def test_splits_are_not_blended_with_each_other(corpora: list[str]) -> None:
    train, valid, _ = _build([None, None, None], blend=(corpora, None), split="50,50,0")
    mixed = [train.datasets[0], valid.datasets[0]]
    with pytest.raises(ConfigError, match=r"\['GPTDataset of train', 'GPTDataset of valid'\]\. Blend each by itself"):
        BlendedDataset(mixed, [1.0, 1.0], 2, train.config)


@pytest.mark.parametrize(
    ("weights", "size", "wanted", "says"),
    [
        (["a"], None, ConfigTypeError, r"weights=\['a'\]: pass a list of numbers"),
        (None, 5, ConfigTypeError, "weights=None: pass a list of numbers"),
        ([float("nan")], None, ConfigError, r"\[nan\] are not whole"),
        ([1.0], 10.5, ConfigTypeError, "size=10.5"),
        ([1.0], "x", ConfigTypeError, "size='x'"),
        ([1.0], -1, ConfigError, "size=-1"),
    ],
)
def test_weights_and_size_of_a_blend_are_numbers(
    corpora: list[str], weights: Any, size: Any, wanted: type[Exception], says: str
) -> None:
    train, _, _ = _build([None, None, None], blend=(corpora, None), split="1")
    with pytest.raises(wanted, match=says):
        BlendedDataset(train.datasets[:1], weights, size, train.config)


def test_a_blend_travels_without_indices_that_a_file_holds(corpora: list[str], tmp_path: Path) -> None:
    blends = [
        _build([2_000, 0, 0], blend=(corpora, [1, 2, 3]), split="1", path_to_cache=path)[0]
        for path in (tmp_path / "cache", None)
    ]
    sent = [pickle.dumps(blend) for blend in blends]
    assert len(sent[0]) < 10 * 2_000 < len(sent[1])  # each sample is 10 bytes of the index
    copies = [pickle.loads(each) for each in sent]
    assert copies[0].dataset_index.tolist() == copies[1].dataset_index.tolist() == blends[0].dataset_index.tolist()


def test_threads_and_a_second_run_give_the_same_data(corpora: list[str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"blend": (corpora, [1.0, 2.0, 3.0]), "split": "90,10,0"}
    first, _, _ = _build([50, 5, 0], path_to_cache=tmp_path / "cache", num_dataset_builder_threads=3, **options)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert len(files) == 8
    again, _, _ = _build([50, 5, 0], path_to_cache=tmp_path / "cache", **options)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == files
    assert again.dataset_index.tolist() == first.dataset_index.tolist()
    per_split = _build(
        [50, None, None],
        path_to_cache=tmp_path / "cache2",
        blend_per_split=[(corpora, [1.0, 2.0, 3.0]), None, None],
    )[0]
    trusting = _build(
        [50, None, None],
        path_to_cache=tmp_path / "cache2",
        fast_cache_load=True,
        defer_npy_index_mmap=True,
        blend_per_split=[(corpora, [1.0, 2.0, 3.0]), None, None],
    )[0]
    assert len(trusting) == len(per_split)
    assert trusting[7]["tokens"].tolist() == per_split[7]["tokens"].tolist()


def test_ranks_that_need_no_data_get_none(corpora: list[str]) -> None:
    config = GPTDatasetConfig(random_seed=1, sequence_length=8, blend=(corpora, None), split="1")
    assert BlendedMegatronDatasetBuilder(GPTDataset, [None] * 3, lambda: False, config).build() == [None] * 3


BUILDERS: tuple[IndexBuilder, ...] = ("job", "node", "lock")


def _run_rank(rank: int, corpora: list[str], directory: Path) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank, world_size=2)
    try:
        for builder in BUILDERS:
            options = {"path_to_cache": directory / builder, "index_builder": builder}
            train, _, _ = _build([60, None, None], blend_per_split=[(corpora, [1.0, 2.0, 3.0]), None, None], **options)
            torch.save(torch.tensor(train.dataset_index), directory / f"{builder}-{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.processes
def test_ranks_build_once_and_agree(corpora: list[str], tmp_path: Path) -> None:
    mp.start_processes(_run_rank, (corpora, tmp_path), nprocs=2, start_method="spawn")
    indices = [torch.load(tmp_path / f"{builder}-{rank}.pt") for builder in BUILDERS for rank in range(2)]
    assert all(torch.equal(indices[0], index) for index in indices)
    for builder in BUILDERS:
        assert len(list((tmp_path / builder).iterdir())) == 4


def test_a_builder_that_fails_does_not_leave_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    barriers = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "barrier", lambda: barriers.append(1))
    with pytest.raises(ZeroDivisionError), build_ranks_first("job"):
        raise ZeroDivisionError
    assert barriers == [1]
