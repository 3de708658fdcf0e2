"""Arguments of another type are refused where they are given, by name."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from tests.megatron.corpora.corpora import write_lengths
from torch_dataloader_utils import RowDataset, StructuredDataset
from torch_dataloader_utils._core.blend_index import blend_by_weight, blend_exhaustively
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, StoreError
from torch_dataloader_utils.megatron.corpora import (
    BlendedMegatronDatasetBuilder,
    FullValidationSampler,
    GlobalBatchSampler,
    GPTDataset,
    GPTDatasetConfig,
    IndexedDataset,
    IndexedDatasetBuilder,
    PretrainingRandomSampler,
    PretrainingSampler,
    build_corpus,
    find_corpora,
    merge_corpora,
    read_sequences,
)
from torch_dataloader_utils.megatron.corpora.split import parse_split
from torch_dataloader_utils.samples import fill_best_fit, fill_greedily

FLAGS = [field.name for field in fields(GPTDatasetConfig) if field.type is bool]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "documents.parquet"
    pq.write_table(pa.table({"tokens": [[1, 2], [3]]}), path)
    return path


def _config(**options: Any) -> GPTDatasetConfig:
    return GPTDatasetConfig(
        **{"random_seed": 1, "sequence_length": 8, "blend": (["web"], None), "split": "1", **options}
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output_prefix", None),
        ("output_prefix", 5),
        ("column", None),
        ("skip_nulls", "x"),
        ("overwrite", "x"),
    ],
)
def test_a_corpus_is_not_built_of_what_is_none(source: Path, tmp_path: Path, name: str, value: Any) -> None:
    arguments = {"sources": source, "output_prefix": tmp_path / "out", "column": "tokens", name: value}
    with pytest.raises(ConfigTypeError, match=f"{name}={value!r}: pass"):
        build_corpus(**arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["documents.parquet"]


def test_a_corpus_is_not_built_of_rows_that_are_taken_one_by_one(source: Path, tmp_path: Path) -> None:
    loader, dataset = StructuredDataset.create_dataloader(source, num_workers=0)
    rows = RowDataset(source)
    for sources, says in (
        (None, "a NoneType: pass a path"),
        (5, "an int: pass a path"),
        (b"tokens", "a bytes: pass a path"),
        (rows, "a RowDataset: pass a path, a list of paths, or a StructuredDataset or IcebergDataset"),
        (DataLoader(rows), "a DataLoader: pass a path, a list of paths, or a StructuredDataset"),
        (loader, r"a TableDataLoader: pass a path, a list of paths, or the loader's data set, loader\.dataset"),
    ):
        with pytest.raises(ConfigTypeError, match=f"^sources is {says}"):
            build_corpus(sources, tmp_path / "out", column="tokens")  # type: ignore[arg-type]
    assert rows.cache_info().misses == 0
    assert build_corpus(dataset, tmp_path / "out", column="tokens").document_count == 2
    collections = source.parent.glob("*.parquet"), np.array([str(source)]), {1: str(source)}.values()
    for number, paths in enumerate(collections):
        assert build_corpus(paths, tmp_path / f"found-{number}", column="tokens").document_count == 2


def test_a_place_that_cannot_be_written_is_told(source: Path) -> None:
    (source.parent / "file").touch()
    with pytest.raises(StoreError, match=r"out\.parts cannot be written .*Choose a directory"):
        build_corpus(source, source.parent / "file" / "out", column="tokens")
    with pytest.raises(StoreError, match=r"\.bin cannot be written .*Choose a directory"):
        IndexedDatasetBuilder(source.parent / f"{'n' * 300}.bin")


@pytest.mark.parametrize("value", [None, 5, b"web"])
@pytest.mark.parametrize(
    "use",
    [
        IndexedDataset,
        IndexedDataset.exists,
        IndexedDatasetBuilder,
        find_corpora,
        read_sequences,
        lambda value: merge_corpora([value], "out"),
    ],
)
def test_what_is_no_path_is_refused(use: Any, value: Any) -> None:
    with pytest.raises(ConfigTypeError, match=f"{value!r}: pass a path"):
        use(value)


@pytest.mark.parametrize("name", ["multimodal", "mmap", "trust_index"])
def test_a_text_is_no_flag_of_a_corpus(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigTypeError, match=f"{name}='False': pass True or False"):
        IndexedDataset(write_lengths(tmp_path / "web", [9]), **{name: "False"})


@pytest.mark.parametrize("url", ["https://host/web", "HTTPS://host/web", "simplecache::https://host/web"])
def test_a_signed_url_is_no_prefix(url: str) -> None:
    for ask in (IndexedDataset, IndexedDataset.exists):
        with pytest.raises(ConfigError, match=rf"^path_prefix='{url}' has a query, .* headers in storage"):
            ask(f"{url}?sig=hunter2")


@pytest.mark.parametrize("name", FLAGS)
def test_a_text_is_no_flag(name: str) -> None:
    with pytest.raises(ConfigTypeError, match=f"{name}='False': pass True or False"):
        _config(**{name: "False"})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("blend", 5, "A blend is a list of corpus prefixes and their weights"),
        ("blend", (["web"], 5), "A blend is a list of corpus prefixes and their weights"),
        ("blend", ["https://host/web?sig=hunter2"], r"\['https://host/web'\] was given"),
        (
            "blend",
            (["https://host/web?sig=hunter2"], None),
            r"blend='https://host/web' has a query, .* appended to a prefix",
        ),
        ("blend", ([5], None), "A prefix of a blend=5: pass a path"),
        ("blend", (["web"], ["a"]), r"weights=\['a'\]: pass a list of numbers"),
        ("blend", (["web", "code"], [[1], [2]]), "pass a list of numbers"),
        ("split", 5, "split=5: pass a text of weights"),
        ("split", "-1,1,1", "'-1,1,1' holds something that is not a number"),
        ("sequences_per_dataset", 5, "pass what read_sequences"),
        ("sequences_per_dataset", {"web": (3, 4)}, "pass what read_sequences"),
        ("blend", (["web", "code"], [1, 0]), "code has a weight of 0 in a blend"),
        ("path_to_cache", 5, "path_to_cache=5: pass a path"),
        ("path_to_cache", "memory://cache", "path_to_cache='memory://cache' is the URL of a store"),
    ],
)
def test_a_configuration_says_what_it_takes(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        _config(**{name: value})


def test_blends_may_be_lists_and_arrays() -> None:
    _config(blend=[[Path("web"), "code"], np.array([0.7, 0.3])])
    with pytest.raises(ConfigTypeError, match="blend_per_split=5: pass three blends"):
        _config(blend=None, split=None, blend_per_split=5)


@pytest.mark.parametrize(
    "split", ["969, 30, 1", "[969, 30, 1]", "(969,30,1)", "'969,30,1'", "969/30/1", "96.9% 3% .1%"]
)
def test_a_split_may_be_written_as_a_list(split: str) -> None:
    assert np.allclose(parse_split(split), parse_split("969,30,1"), atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["-1,1,1", "nan,1,1", "1e-1,1", "969-30-1", "1_000,1", "inf"])
def test_a_split_of_which_something_would_be_lost_is_refused(split: str) -> None:
    with pytest.raises(ConfigError, match=r"holds something that is not a number\. Write it as '969,30,1'"):
        parse_split(split)


@pytest.mark.parametrize(
    ("name", "value"),
    [("sizes", None), ("sizes", 5), ("sizes", "111"), ("is_built_on_rank", 5), ("cls", dict), ("cls", None)],
)
def test_a_builder_says_what_it_takes(tmp_path: Path, name: str, value: Any) -> None:
    config = _config(blend=([write_lengths(tmp_path / "web", [9] * 9)], None))
    arguments = {"cls": GPTDataset, "sizes": [None] * 3, "is_built_on_rank": lambda: True, "config": config}
    BlendedMegatronDatasetBuilder(**arguments).build()  # type: ignore[arg-type]
    with pytest.raises(ConfigTypeError, match=f"{name}={value!r}"):
        BlendedMegatronDatasetBuilder(**{**arguments, name: value})


SAMPLERS: list[tuple[Any, dict[str, int]]] = [
    (PretrainingSampler, {"consumed_samples": 0, "micro_batch_size": 2}),
    (PretrainingRandomSampler, {"consumed_samples": 0, "micro_batch_size": 2}),
    (GlobalBatchSampler, {"consumed_samples": 0, "micro_batch_size": 2, "global_batch_size": 8}),
    (FullValidationSampler, {}),
]


@pytest.mark.parametrize(("sampler", "options"), SAMPLERS)
@pytest.mark.parametrize("value", ["a", 1.5])
def test_samplers_count_in_whole_numbers(sampler: Any, options: dict[str, int], value: Any) -> None:
    options = {"total_samples": 16, "data_parallel_rank": 0, "data_parallel_size": 2, **options}
    sampler(**options)
    for name in options:
        with pytest.raises(ConfigTypeError, match=f"{name}={value!r}: pass a whole number"):
            sampler(**{**options, name: value})


@pytest.mark.parametrize(("sampler", "name"), [(PretrainingSampler, "drop_last"), (GlobalBatchSampler, "drop_last")])
def test_samplers_take_no_text_for_a_flag(sampler: Any, name: str) -> None:
    numbers = (16, 0, 2, 0, 2) if sampler is PretrainingSampler else (16, 0, 2, 8, 0, 2)
    with pytest.raises(ConfigTypeError, match=f"{name}='no': pass True or False"):
        sampler(*numbers, **{name: "no"})


@pytest.mark.parametrize(
    ("lengths", "capacity", "says"),
    [
        (["a"], 5, r"lengths=\['a'\]: pass a list of whole numbers"),
        ([[1]], 5, "pass a list of whole numbers"),
        ([1.5], 5, "pass a list of whole numbers"),
        ([1], "a", "(sequence_length|capacity)='a': pass a whole number"),
        ([2**62, 2**62], 5, r"2 documents have 2\*\*62 tokens or more in sum"),
    ],
)
def test_documents_are_filled_by_whole_numbers(lengths: Any, capacity: Any, says: str) -> None:
    for fill in (fill_greedily, lambda *each: fill_best_fit(*each, window_documents=4)):
        with pytest.raises(ConfigError, match=says):
            fill(lengths, capacity)


@pytest.mark.parametrize("weights", [["a"], 5, [[1]]])
def test_blends_are_of_lists_of_numbers(weights: Any) -> None:
    for blend in (blend_exhaustively, lambda weights: blend_by_weight(weights, 5)):
        with pytest.raises(ConfigTypeError, match="pass a list of numbers, one for each data set"):
            blend(weights)
    with pytest.raises(ConfigTypeError, match="size='a': pass a whole number"):
        blend_by_weight([1.0], "a")  # type: ignore[arg-type]
