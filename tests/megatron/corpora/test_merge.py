"""Corpora of a directory, and several merged into one: what is found, what is refused."""

from pathlib import Path

import numpy as np
import pytest

from tests.megatron.corpora.corpora import EXAMPLE, NOBODY, write_corpus
from torch_dataloader_utils.errors import ConfigError, NoDataError, SchemaError
from torch_dataloader_utils.megatron.corpora import IndexedDataset, find_corpora, merge_corpora


def test_corpora_of_a_directory_are_found_by_name(tmp_path: Path) -> None:
    for name in ("b", "a.1", "a"):
        write_corpus(tmp_path / name, EXAMPLE)
    assert find_corpora(tmp_path) == [str(tmp_path / name) for name in ("a", "a.1", "b")]
    assert find_corpora(f"file://{tmp_path}") == find_corpora(tmp_path)
    (tmp_path / "c.idx").touch()
    with pytest.raises(ConfigError, match="only one of its two files"):
        find_corpora(tmp_path)


def test_a_directory_without_corpora_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for directory in ("empty", tmp_path / "empty"):
        with pytest.raises(NoDataError, match=r"There is no corpus in .*empty, .* Name the directory"):
            find_corpora(directory)
    (tmp_path / "file").touch()
    for directory in ("none", "file"):
        with pytest.raises(NoDataError, match=f"There is no directory {directory}"):
            find_corpora(directory)
    with pytest.raises(ConfigError, match="is the URL of a store"):
        find_corpora("http://127.0.0.1:9/corpora")


def test_merging_a_corpus_with_itself_moves_boundaries_and_pointers(tmp_path: Path, example: str) -> None:
    merge_corpora([example, example], str(tmp_path / "merged"))
    merged = IndexedDataset(str(tmp_path / "merged"))
    assert merged.document_indices.tolist() == [0, 2, 3, 5, 6]
    assert merged.index.sequence_pointers.tolist() == [0, 6, 10, 18, 24, 28]
    assert [sequence.tolist() for sequence in merged[3:]] == [[1, 2, 3], [4, 5], [9, 8, 7, 6]]


def test_a_corpus_is_not_merged_into_itself(tmp_path: Path, example: str) -> None:
    output = str(tmp_path / "all")
    merge_corpora(find_corpora(tmp_path), output)
    for prefixes in (find_corpora(tmp_path), [str(tmp_path / ".." / tmp_path.name / "all")]):
        with pytest.raises(ConfigError, match=r"all is both merged and written.* Leave it out of path_prefixes"):
            merge_corpora(prefixes, output)
    assert len(IndexedDataset(output)) == len(IndexedDataset(example))


def test_modes_are_merged(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "modal", EXAMPLE, modes=[1, 0, 2])
    merge_corpora([prefix, prefix], str(tmp_path / "merged"), multimodal=True)
    modes = IndexedDataset(str(tmp_path / "merged"), multimodal=True).sequence_modes
    assert modes is not None
    assert modes.tolist() == [1, 0, 2, 1, 0, 2]
    with pytest.raises(SchemaError, match=r"has sequence modes, and this corpus keeps none\. Pass multimodal=True"):
        merge_corpora([prefix], str(tmp_path / "plain"))


def test_merge_refuses_other_dtypes_and_leaves_nothing(tmp_path: Path, example: str) -> None:
    other = write_corpus(tmp_path / "other", EXAMPLE, dtype=np.int32)
    before = set(tmp_path.iterdir())
    with pytest.raises(SchemaError, match="int32"):
        merge_corpora([example, other], str(tmp_path / "merged"))
    with pytest.raises(ConfigError, match="no corpus"):
        merge_corpora([], str(tmp_path / "merged"))
    assert set(tmp_path.iterdir()) == before


def test_corpora_in_a_store_are_refused_before_they_are_opened(tmp_path: Path, example: str) -> None:
    out = str(tmp_path / "out")
    for prefixes, output in (([example, NOBODY], out), ([NOBODY], out), ([example], NOBODY)):
        with pytest.raises(ConfigError, match="is the URL of a store"):
            merge_corpora(prefixes, output)
