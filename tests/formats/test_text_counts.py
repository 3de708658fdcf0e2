"""Lines of large text files are counted once a host, for each version of a file and each way of cutting it."""

import os
from pathlib import Path

import pytest

from torch_dataloader_utils import scan_files
from torch_dataloader_utils.formats.file_scan import TextOptions
from torch_dataloader_utils.formats.text import scan as text_scan

LINE = b'{"x": 1, "padding": "' + b"." * 200 + b'"}\n'
LINES = 45_000  # 10 MB


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "large.jsonl").write_bytes(LINE * LINES)
    return data


@pytest.fixture
def counted(monkeypatch):
    """The files whose lines are counted."""
    files, count = [], text_scan._counted

    def count_named(store, entry, *arguments, **options):
        files.append(Path(entry.path).name)
        return count(store, entry, *arguments, **options)

    monkeypatch.setattr(text_scan, "_counted", count_named)
    return files


def scan(folder, block_bytes=1 << 20):
    inventory = scan_files(str(folder), "jsonl", text=TextOptions(block_bytes=block_bytes))
    return inventory.num_rows, inventory.groups.byte_length.tolist()


def test_a_second_scan_counts_nothing_and_says_the_same(folder, counted):
    first = scan(folder)
    assert first[0] == LINES
    assert len(first[1]) == 10
    assert counted == ["large.jsonl"]
    assert scan(folder) == first
    assert counted == ["large.jsonl"]


def test_other_blocks_and_other_versions_are_counted_anew(folder, counted):
    file = folder / "large.jsonl"
    os.utime(file, ns=(1, 1))
    scan(folder)
    assert scan(folder, block_bytes=2 << 20)[0] == LINES
    assert len(counted) == 2
    file.write_bytes(LINE * (LINES - 1) + b"\n" * len(LINE))  # as many bytes, one row less
    os.utime(file, ns=(1, 1))
    assert scan(folder)[0] == LINES - 1
    assert len(counted) == 3


def test_small_files_and_a_switched_off_cache_keep_nothing(folder, counted, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", "off")
    scan(folder)
    scan(folder)
    assert counted == ["large.jsonl"] * 2
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "other"))
    small = tmp_path / "small"
    small.mkdir()
    (small / "small.jsonl").write_bytes(LINE * 10)
    scan(small)
    assert not (tmp_path / "other").exists()
