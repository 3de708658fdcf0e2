"""Reading corpora: mapped, in place and remote give the same tokens; files that changed are errors."""

import gc
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.effort import effort
from tests.megatron.corpora.corpora import EXAMPLE, write_corpus
from torch_dataloader_utils.errors import (
    ConfigError,
    CorruptFileError,
    FileChangedError,
    NoDataError,
    StoreError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.megatron.corpora import IndexedDataset, IndexedDatasetBuilder, describe_corpus
from torch_dataloader_utils.megatron.corpora.index_format import DTYPES


@pytest.fixture
def remote_example(example: str, request: pytest.FixtureRequest) -> str:
    filesystem = fsspec.filesystem("memory")
    prefix = f"/{request.node.name}/example"
    for suffix in ("idx", "bin"):
        filesystem.pipe(f"{prefix}.{suffix}", Path(f"{example}.{suffix}").read_bytes())
    return f"memory:/{prefix}"


@pytest.fixture(params=["mapped", "plain", "remote"])
def dataset(request: pytest.FixtureRequest, example: str, remote_example: str) -> IndexedDataset:
    prefix = remote_example if request.param == "remote" else example
    return IndexedDataset(prefix, mmap=request.param == "mapped")


def test_items_slices_and_parts_agree_in_all_readers(dataset: IndexedDataset) -> None:
    assert len(dataset) == 3
    assert [sequence.tolist() for sequence in dataset] == [[1, 2, 3], [4, 5], [9, 8, 7, 6]]
    assert dataset[-1].tolist() == [9, 8, 7, 6]
    assert [sequence.tolist() for sequence in dataset[1:]] == [[4, 5], [9, 8, 7, 6]]
    assert dataset[2:1] == []
    assert dataset.get(2, 1, 2).tolist() == [8, 7]
    assert dataset.get(2, offset=4).tolist() == []
    assert dataset.sequence_lengths.tolist() == [3, 2, 4]
    assert dataset.document_indices.tolist() == [0, 2, 3]
    assert dataset.sequence_modes is None
    assert (dataset.dtype, dataset.token_count) == (np.dtype("uint16"), 9)


def test_wrong_requests_are_errors_and_never_other_tokens(dataset: IndexedDataset) -> None:
    for index in (3, -4):
        with pytest.raises(IndexError):
            dataset[index]
    for wrong in (1.0, "1", None):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            dataset[wrong]  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            dataset.get(wrong)  # type: ignore[arg-type]
    assert dataset[np.int64(1)].tolist() == dataset[torch.tensor(1)].tolist() == dataset[1].tolist()
    for offset, length in ((0, 4), (3, 1), (-1, 1), (4, None), (2, -1)):
        with pytest.raises(ConfigError, match="sequence 0 has 3 tokens"):
            dataset.get(0, offset, length)
    with pytest.raises(UnsupportedFeatureError, match="step 2"):
        dataset[::2]


def test_modes_come_with_the_tokens(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "modal", EXAMPLE, modes=[1, 0, 2])
    dataset = IndexedDataset(prefix, multimodal=True)
    tokens, mode = dataset[2]
    assert (tokens.tolist(), mode) == ([9, 8, 7, 6], 2)
    sequences, modes = dataset[0:2]
    assert ([sequence.tolist() for sequence in sequences], modes.tolist()) == ([[1, 2, 3], [4, 5]], [1, 0])
    assert IndexedDataset(prefix)[0].tolist() == [1, 2, 3]


@pytest.mark.slow
def test_views_outlive_the_data_set(example: str) -> None:
    dataset = IndexedDataset(example)
    view, lengths = dataset[2], dataset.sequence_lengths
    del dataset
    gc.collect()
    assert view.tolist() == [9, 8, 7, 6]
    assert lengths.tolist() == [3, 2, 4]
    assert not view.flags.writeable


def test_remote_index_is_checked_when_it_is_first_used(remote_example: str) -> None:
    filesystem = fsspec.filesystem("memory")
    path = remote_example.removeprefix("memory:/") + ".bin"
    filesystem.pipe(path, filesystem.cat(path)[:-2])
    dataset = IndexedDataset(remote_example)
    with pytest.raises(CorruptFileError, match=r"describes at least 18 bytes of tokens, its \.bin has 16"):
        dataset[0]


def test_plain_file_that_shrinks_is_an_error(example: str) -> None:
    dataset = IndexedDataset(example, mmap=False)
    with Path(f"{example}.bin").open("r+b") as file:
        file.truncate(12)
    with pytest.raises(CorruptFileError, match="ends at byte 12"):
        dataset[2]


def test_missing_files_are_named(tmp_path: Path, example: str) -> None:
    with pytest.raises(NoDataError, match=r"nothing\.idx"):
        IndexedDataset(str(tmp_path / "nothing"))
    with pytest.raises(NoDataError, match=r"nothing\.idx"):
        IndexedDataset("memory://nothing")
    assert not IndexedDataset.exists("memory://nothing")
    assert IndexedDataset.exists(example)
    Path(f"{example}.bin").unlink()
    assert not IndexedDataset.exists(example)


def test_a_pipe_is_refused_without_waiting_for_a_writer(example: str) -> None:
    Path(f"{example}.bin").unlink()
    os.mkfifo(f"{example}.bin")
    for maps in (True, False):
        with pytest.raises(NoDataError, match=r"\.bin is not a file but .* a pipe"):
            IndexedDataset(example, mmap=maps)


def test_pickle_opens_the_same_files_again_or_refuses(dataset: IndexedDataset) -> None:
    copy = pickle.loads(pickle.dumps(dataset))
    assert [sequence.tolist() for sequence in copy] == [[1, 2, 3], [4, 5], [9, 8, 7, 6]]


def test_pickle_refuses_files_that_changed(tmp_path: Path, example: str) -> None:
    pickled = pickle.dumps(IndexedDataset(example))
    write_corpus(tmp_path / "example", [[[7]]])
    with pytest.raises(FileChangedError, match="changed since"):
        pickle.loads(pickled)


def test_known_counts_open_nothing_and_are_held_to(tmp_path: Path, example: str) -> None:
    facts = describe_corpus(example)
    Path(f"{example}.idx").rename(tmp_path / "away")
    dataset = IndexedDataset(example, facts=facts)
    assert (len(dataset), dataset.token_count, dataset.identities) == (3, 9, facts.identities)
    (tmp_path / "away").rename(f"{example}.idx")
    assert dataset[0].tolist() == [1, 2, 3]
    write_corpus(tmp_path / "example", [[[7]]])
    with pytest.raises(FileChangedError, match="sequences file"):
        _ = IndexedDataset(example, facts=facts)[0]


_DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 100), max_size=5), max_size=4), max_size=6)


@settings(max_examples=effort(60), deadline=None)
@given(documents=_DOCUMENTS, code=st.sampled_from(sorted(DTYPES)), mmap=st.booleans())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], code: int, mmap: bool
) -> None:
    prefix = str(tmp_path_factory.mktemp("corpus") / "c")
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=DTYPES[code]) as builder:
        for document in documents:
            builder.add_document([token for part in document for token in part], [len(part) for part in document])
        builder.finalize(f"{prefix}.idx")
    dataset = IndexedDataset(prefix, mmap=mmap)
    assert [part.tolist() for part in dataset] == [part for document in documents for part in document]
    assert np.diff(dataset.document_indices).tolist() == [len(document) for document in documents]
    assert [part.tolist() for part in dataset[:]] == [part.tolist() for part in dataset]
    assert dataset.dtype == DTYPES[code]


def test_views_are_read_only_and_copies_of_them_are_not(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "corpus", EXAMPLE, dtype=np.int32)
    for mmap in (True, False):
        corpus = IndexedDataset(prefix, mmap=mmap)
        with pytest.raises(ValueError, match="read-only"):
            corpus[0][0] = 7
        copied = next(iter(DataLoader(corpus, batch_size=None, collate_fn=lambda view: torch.from_numpy(view.copy()))))
        copied += 1
        assert copied.tolist() == [2, 3, 4]
        assert corpus[0].tolist() == [1, 2, 3]


def test_a_bin_that_was_cut_is_seen_without_a_mapping(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "corpus", EXAMPLE, dtype=np.int32)
    corpus = IndexedDataset(prefix, mmap=False)
    os.truncate(f"{prefix}.bin", 4)
    with pytest.raises(CorruptFileError, match="ends at byte 4"):
        corpus[0]


@contextmanager
def few_open_files() -> Iterator[None]:
    """Of files that are open now, there may be five more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is on numbers, and what earlier tests still hold has gaps between them.
    spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    for descriptor in spare:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_more_corpora_are_mapped_than_files_may_be_open(example: str) -> None:
    with few_open_files():
        corpora = [IndexedDataset(example) for _ in range(30)]
    assert [corpus[0].tolist() for corpus in corpora] == [corpora[0][0].tolist()] * 30


def test_too_many_open_files_are_told_with_the_corpus(example: str) -> None:
    with few_open_files(), pytest.raises(StoreError, match=r"example\.(idx|bin) cannot be opened.*ulimit -n"):
        _ = [IndexedDataset(example, mmap=False) for _ in range(30)]


def test_a_mapping_is_of_the_file_that_was_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, other = (write_corpus(tmp_path / name, EXAMPLE, dtype=np.int32) for name in ("corpus", "other"))
    mapped = pa.memory_map

    def replace_and_map(path: bytes) -> object:
        if path == os.fsencode(f"{prefix}.bin") and Path(f"{other}.bin").exists():
            Path(f"{other}.bin").rename(f"{prefix}.bin")
        return mapped(path)

    monkeypatch.setattr(pa, "memory_map", replace_and_map)
    identity = IndexedDataset(prefix).identities[1].identity
    assert identity.endswith(f"-{Path(f'{prefix}.bin').stat().st_mtime_ns}")


# Another corpus of the same size takes the place of one just as its .bin is opened: to read it, then to copy it.
REPLACED = """
import sys
from pathlib import Path
from tests.megatron.corpora.corpora import write_corpus
from torch_dataloader_utils.errors import FileChangedError
from torch_dataloader_utils.megatron.corpora import IndexedDataset, merge_corpora

folder, openings = Path(sys.argv[1]), int(sys.argv[2])
prefix = write_corpus(folder / "corpus", [[[1, 1, 1]], [[2, 2, 2]]])

def replace(event, arguments):
    global openings
    if event == "open" and str(arguments[0]) == f"{prefix}.bin":
        openings -= 1
        if openings == 0:
            write_corpus(Path(prefix), [[[3]], [[4, 4, 4, 4, 4]]])

sys.addaudithook(replace)
try:
    if sys.argv[3] == "read":
        IndexedDataset(prefix)
    else:
        merge_corpora([prefix], f"{folder}/merged")
except FileChangedError as error:
    print(error)
"""


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize(("use", "openings"), [("read", 1), ("merge", 1), ("merge", 3)])
def test_a_corpus_that_is_replaced_as_it_is_opened_is_no_mixture(tmp_path: Path, use: str, openings: int) -> None:
    command = [sys.executable, "-c", REPLACED, str(tmp_path), str(openings), use]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    assert "replaced while the corpus was opened" in done.stdout or "changed while it was copied" in done.stdout
    assert not (tmp_path / "merged.idx").exists()
