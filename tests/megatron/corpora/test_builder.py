"""Writing corpora: what is written, what is refused, and what stays after an error."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.megatron.corpora.corpora import NOBODY, write_corpus
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptFileError,
    DataError,
    NoDataError,
    SchemaError,
)
from torch_dataloader_utils.megatron.corpora import IndexedDataset, IndexedDatasetBuilder


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_documents_come_from_list_buffers_with_end_tokens(tmp_path: Path) -> None:
    prefix = str(tmp_path / "c")
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32) as builder:
        builder.add_documents([0, 1, 2, 3, 4], [1, 4, 4, 5], eod=9)
        builder.add_documents([], [0])
        builder.add_item(torch.tensor([[7, 8]]))
        builder.end_document()
        assert (builder.document_count, builder.sequence_count, builder.token_count) == (4, 4, 9)
        builder.finalize(f"{prefix}.idx")
    dataset = IndexedDataset(prefix)
    assert [sequence.tolist() for sequence in dataset] == [[1, 2, 3, 9], [9], [4, 9], [7, 8]]
    assert dataset.document_indices.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("dtype", "tokens", "error"),
    [
        (np.uint16, [65_536], DataError),
        (np.uint16, [-1], DataError),
        (np.int8, [128], DataError),
        (np.int32, np.array([2**31], dtype=np.uint64), DataError),
        (np.int32, [1.5], SchemaError),
        (np.float32, ["a"], SchemaError),
        (np.float32, [1.0, 1e300], DataError),
        (np.float32, np.array([-4e38]), DataError),
    ],
)
def test_tokens_that_do_not_fit_are_refused_not_wrapped(
    tmp_path: Path, dtype: type, tokens: Any, error: type[Exception]
) -> None:
    with IndexedDatasetBuilder(tmp_path / "c.bin", dtype=dtype) as builder, pytest.raises(error):
        builder.add_item(tokens)
    assert _names(tmp_path) == set()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match="Make it first"):
        IndexedDatasetBuilder(tmp_path / "none" / "c.bin")


def test_wrong_lengths_and_open_documents_are_refused(tmp_path: Path) -> None:
    with IndexedDatasetBuilder(tmp_path / "c.bin", multimodal=True) as builder:
        with pytest.raises(ConfigError, match="add up to 3, it has 2"):
            builder.add_document([1, 2], [1, 2])
        with pytest.raises(ConfigError, match="2 sequences need as many modes"):
            builder.add_document([1, 2], [1, 1], modes=[1])
        with pytest.raises(ConfigError, match="must rise"):
            builder.add_documents([1, 2], [0, 2, 1])
        with pytest.raises(ConfigError, match="must rise"):
            builder.add_documents([1, 2], [0, 3])
        builder.add_item([1])
        with pytest.raises(ConfigError, match="not ended"):
            builder.finalize(tmp_path / "c.idx")
    assert _names(tmp_path) == set()


@pytest.mark.parametrize("mode", [200, -129, 2.5, True, "1", None])
def test_a_sequence_whose_mode_is_refused_is_not_added(tmp_path: Path, mode: Any) -> None:
    with IndexedDatasetBuilder(tmp_path / "c.bin", dtype=np.uint16, multimodal=True) as builder:
        builder.add_document([1, 2, 3], [3], [-128])
        with pytest.raises(ConfigError, match=f"^mode={mode!r}"):
            builder.add_item([7, 8], mode=mode)
        with pytest.raises(ConfigError, match=f"^mode={mode!r}"):
            builder.add_document([7, 8], [1, 1], [1, mode])
        builder.add_document(torch.tensor([4]), [1], np.array([127]))
        builder.finalize(tmp_path / "c.idx")
    corpus = IndexedDataset(str(tmp_path / "c"), multimodal=True)
    assert [(tokens.tolist(), int(kept)) for tokens, kept in corpus] == [([1, 2, 3], -128), ([4], 127)]
    assert corpus.document_indices.tolist() == [0, 1, 2]


@contextlib.contextmanager
def _disk_of(file_bytes: int) -> Iterator[None]:
    """Files cannot grow beyond this: a write gives what fits, and the next one is an OSError, as on a full disk."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


_MANY = np.full(100_000, 2, dtype=np.int32)


@pytest.mark.parametrize(
    "add",
    [
        lambda builder, _: builder.add_item(_MANY),
        lambda builder, _: builder.add_document(_MANY, [_MANY.size]),
        lambda builder, _: builder.add_documents(_MANY, [0, 500, _MANY.size]),
        lambda builder, source: builder.add_index(source),
    ],
)
def test_what_a_full_disk_refused_is_not_in_the_corpus(tmp_path: Path, add: Callable[..., None]) -> None:
    source = write_corpus(tmp_path / "source", [[_MANY.tolist()]], dtype=np.int32)
    with IndexedDatasetBuilder(tmp_path / "c.bin", dtype=np.int32) as builder:
        builder.add_document([1, 1], [2])
        with _disk_of(300_000), pytest.raises(OSError):
            add(builder, source)
        assert (builder.sequence_count, builder.document_count, builder.token_count) == (1, 1, 2)
        builder.add_document([3], [1])
        builder.finalize(tmp_path / "c.idx")
    assert [tokens.tolist() for tokens in IndexedDataset(str(tmp_path / "c"))] == [[1, 1], [3]]


def test_a_corpus_has_all_that_was_added_before_the_disk_was_full_and_after(tmp_path: Path) -> None:
    added: list[list[int]] = []

    def add_until(last: int) -> None:
        while len(added) < last:
            tokens = [len(added)] * 50
            builder.add_document(tokens, [50])
            added.append(tokens)

    with IndexedDatasetBuilder(tmp_path / "c.bin", dtype=np.int32) as builder:
        with _disk_of(100_000), pytest.raises(OSError):
            add_until(10_000)
        add_until(len(added) + 100)
        builder.finalize(tmp_path / "c.idx")
    assert [tokens.tolist() for tokens in IndexedDataset(str(tmp_path / "c"))] == added


class _CannotShrink:
    """A file of which nothing can be cut off."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def truncate(self) -> None:
        raise OSError("cannot shrink")


def test_a_builder_that_cannot_take_back_what_it_wrote_is_discarded(tmp_path: Path) -> None:
    with IndexedDatasetBuilder(tmp_path / "c.bin", dtype=np.int32) as builder:
        builder._bin.file = _CannotShrink(builder._bin.file)  # type: ignore[assignment]
        with _disk_of(300_000), pytest.raises(OSError):
            builder.add_item(_MANY)
        with pytest.raises(ConfigError, match="discarded before"):
            builder.add_item([1])
        with pytest.raises(ConfigError, match="discarded before"):
            builder.finalize(tmp_path / "c.idx")
    assert _names(tmp_path) == set()


def test_tokens_that_were_lost_before_the_end_are_an_error(tmp_path: Path) -> None:
    with IndexedDatasetBuilder(tmp_path / "c.bin", dtype=np.int32) as builder:
        builder.add_document(np.arange(100_000), [100_000])
        os.truncate(next(tmp_path.iterdir()), 300_000)
        with pytest.raises(CorruptFileError, match="built of 400000 bytes of tokens, and 300000 are on the disk"):
            builder.finalize(tmp_path / "c.idx")
    assert _names(tmp_path) == set()


def test_lengths_and_offsets_that_are_no_whole_numbers_are_refused(tmp_path: Path) -> None:
    with IndexedDatasetBuilder(tmp_path / "c.bin") as builder:
        for wrong in ([1.9, 2.9], [1.0, 2.0], [True, True]):
            with pytest.raises(ConfigTypeError, match="lengths of documents are of type"):
                builder.add_document([1, 2, 3], wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigTypeError, match="offsets of documents are of type"):
                builder.add_documents([1, 2, 3], wrong)
        assert (builder.sequence_count, builder.token_count) == (0, 0)


def test_tokens_that_are_not_finite_stay_what_they_are(tmp_path: Path) -> None:
    with IndexedDatasetBuilder(tmp_path / "c.bin", dtype=np.float32) as builder:
        builder.add_document(np.array([np.inf, -np.inf, 3e38]), [3])
        builder.finalize(tmp_path / "c.idx")
    assert IndexedDataset(str(tmp_path / "c"))[0].tolist() == [np.inf, -np.inf, float(np.float32(3e38))]


def test_a_builder_is_finalized_once(tmp_path: Path) -> None:
    builder = IndexedDatasetBuilder(tmp_path / "c.bin")
    builder.finalize(tmp_path / "c.idx")
    with pytest.raises(ConfigError, match=r"c\.bin was finalized or discarded before\. Make a new builder"):
        builder.finalize(tmp_path / "c.idx")
    assert _names(tmp_path) == {"c.bin", "c.idx"}


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    with IndexedDatasetBuilder(tmp_path / "c.bin") as builder:
        builder.add_document([1, 2], [2])
        assert not [name for name in _names(tmp_path) if not name.startswith(".")]
        builder.finalize(tmp_path / "c.idx")
        assert _names(tmp_path) == {"c.bin", "c.idx"}
    assert _names(tmp_path) == {"c.bin", "c.idx"}


class _PowerCut(BaseException):
    """Not an Exception: nothing may catch it and go on."""


@pytest.mark.parametrize("call", range(12))
def test_a_crash_at_any_step_leaves_the_old_corpus_the_new_one_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    prefix = write_corpus(tmp_path / "c", [[[1]]])
    left = [call]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise _PowerCut
            left[0] -= 1
            return function(*args, **kwargs)

        return run

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", counted(os.fsync))
        patched.setattr(Path, "replace", counted(Path.replace))
        patched.setattr(Path, "unlink", counted(Path.unlink))
        with contextlib.suppress(_PowerCut):
            write_corpus(tmp_path / "c", [[[2, 3]]])
    try:
        assert IndexedDataset(prefix)[0].tolist() in ([1], [2, 3])
    except NoDataError:
        assert not Path(f"{prefix}.idx").exists()


def test_pending_files_of_dead_writers_are_swept(tmp_path: Path) -> None:
    old, young = tmp_path / ".c.bin.dead.pending", tmp_path / ".c.bin.new.pending"
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    with IndexedDatasetBuilder(tmp_path / "c.bin") as builder:
        os.utime(next(path for path in tmp_path.iterdir() if path not in (old, young)), (0, 0))
        builder.add_document([1], [1])
        with IndexedDatasetBuilder(tmp_path / "c.bin"):
            pass
        builder.finalize(tmp_path / "c.idx")
    assert _names(tmp_path) == {"c.bin", "c.idx", young.name}


def test_a_corpus_in_a_store_is_not_added(tmp_path: Path) -> None:
    with (
        IndexedDatasetBuilder(tmp_path / "out.bin") as builder,
        pytest.raises(ConfigError, match="is the URL of a store"),
    ):
        builder.add_index(NOBODY)
