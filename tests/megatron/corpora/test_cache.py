"""The index cache: built once, checked, built again after damage; locks and directories that cannot be used."""

import fcntl
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torch_dataloader_utils.errors import CorruptFileError, NoDataError, StoreError
from torch_dataloader_utils.megatron.corpora.index_cache import IndexCache, read_arrays, write_arrays

ARRAYS = {
    "a": np.arange(5, dtype=np.int32),
    "b": np.arange(6, dtype=np.int64).reshape(3, 2),
    "c": np.zeros(0, dtype=np.uint32),
}
WHAT = {"seed": 1, "weights": [0.1, 0.2]}


def test_arrays_come_back_as_read_only_views(tmp_path: Path) -> None:
    write_arrays(tmp_path / "x.index", ARRAYS, WHAT)
    arrays = read_arrays(tmp_path / "x.index", WHAT)
    (tmp_path / "x.index").unlink()
    for name, array in ARRAYS.items():
        assert (arrays[name].tolist(), arrays[name].dtype) == (array.tolist(), array.dtype)
        assert not arrays[name].flags.writeable
        assert arrays[name].flags.aligned


@pytest.mark.slow
def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    write_arrays(path, ARRAYS, WHAT)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        for checks_content in (True, False):
            with pytest.raises(CorruptFileError):
                read_arrays(path, WHAT, checks_content=checks_content)


@pytest.mark.slow
def test_a_flipped_byte_is_refused_or_lies_in_padding(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    write_arrays(path, ARRAYS, WHAT)
    whole = path.read_bytes()
    silent = 0
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            arrays = read_arrays(path, WHAT)
        except CorruptFileError:
            continue
        silent += 1
        assert all(arrays[name].tolist() == array.tolist() for name, array in ARRAYS.items())
    assert silent <= 64 * (len(ARRAYS) + 1)


def test_indices_of_something_else_are_refused(tmp_path: Path) -> None:
    write_arrays(tmp_path / "x.index", ARRAYS, WHAT)
    with pytest.raises(CorruptFileError, match="something else"):
        read_arrays(tmp_path / "x.index", {**WHAT, "seed": 2})


def test_cache_builds_once_and_again_after_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = IndexCache(directory=tmp_path / "deep" / "cache")
    built = []

    def build() -> dict[str, Any]:
        built.append(1)
        return dict(ARRAYS)

    for _ in range(2):
        assert cache.load_or_build("x", WHAT, build)["a"].tolist() == [0, 1, 2, 3, 4]
    assert len(built) == 1
    path = cache.path_of("x", WHAT)
    path.write_bytes(path.read_bytes()[:-1])
    cache.load_or_build("x", WHAT, build)
    assert len(built) == 2
    assert [record.message.startswith("A damaged index is replaced") for record in caplog.records] == [True]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_trust_reads_what_is_there_and_never_builds(tmp_path: Path) -> None:
    trusting = IndexCache(directory=tmp_path, trusts_cache=True)
    with pytest.raises(NoDataError, match="run once without them"):
        trusting.load_or_build("x", WHAT, lambda: pytest.fail("built"))
    IndexCache(directory=tmp_path).load_or_build("x", WHAT, lambda: dict(ARRAYS))
    assert trusting.load_or_build("x", WHAT, lambda: pytest.fail("built"))["a"].tolist() == [0, 1, 2, 3, 4]


def test_a_directory_that_cannot_be_written_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    cache = IndexCache(directory=tmp_path / "file" / "cache")
    assert cache.load_or_build("x", WHAT, lambda: dict(ARRAYS))["a"].tolist() == [0, 1, 2, 3, 4]
    assert "built in memory" in caplog.text


def test_a_full_disk_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    cache = IndexCache(directory=tmp_path)
    assert cache.load_or_build("x", WHAT, lambda: dict(ARRAYS))["a"].tolist() == [0, 1, 2, 3, 4]
    assert "stay in memory" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_another_builder_ends(tmp_path: Path) -> None:
    cache = IndexCache(directory=tmp_path, lock_timeout_seconds=0.0)
    lock = cache.path_of("x", WHAT).with_suffix(".lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="Another process has held"):
            cache.load_or_build("x", WHAT, lambda: dict(ARRAYS))
    # The holder is gone and its file stays: the next one takes it over.
    assert cache.load_or_build("x", WHAT, lambda: dict(ARRAYS))["a"].tolist() == [0, 1, 2, 3, 4]
    assert not lock.exists()


def test_a_builder_that_fails_leaves_no_lock(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        IndexCache(directory=tmp_path).load_or_build("x", WHAT, fail)
    assert list(tmp_path.iterdir()) == []


def _build_in_process(directory: Path, log: Path) -> None:
    def build() -> dict[str, Any]:
        with log.open("a") as file:
            file.write("built\n")
        return dict(ARRAYS)

    IndexCache(directory=directory).load_or_build("x", WHAT, build)


@pytest.mark.processes
def test_processes_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_build_in_process, args=(tmp_path / "cache", tmp_path / "log")) for _ in range(6)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0] * 6
    assert (tmp_path / "log").read_text() == "built\n"
    assert len(list((tmp_path / "cache").iterdir())) == 1
