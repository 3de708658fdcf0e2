"""identity="content": the same data elsewhere is the same data, other data is not."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.discover.datasets import FILES, WRITERS, Write, write_parquet
from tests.effort import effort
from torch_dataloader_utils import StructuredDataset, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._core.sealed_state import sealed
from torch_dataloader_utils._core.table_file import TableFields, TableFile
from torch_dataloader_utils._store import LocalStore, StoreAccess
from torch_dataloader_utils.discover.content import identified
from torch_dataloader_utils.discover.saved_inventory import _KEY, to_table
from torch_dataloader_utils.discover.sealed_parquet import sealed_parquet
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, DataError, FileChangedError


def _written(folder: Path, write: Write, first: int = 1000) -> None:
    folder.mkdir(parents=True)
    for file in range(3):
        numbers = range(first + 1000 * file, first + 1000 * (file + 1))
        write(folder / f"part-{file}", pa.table({"n": pa.array(numbers, pa.int64())}))


def _rows(loader: Any, steps: int | None = None) -> list[int]:
    rows: list[int] = []
    for step, batch in enumerate(loader, start=1):
        rows += batch["n"].tolist()
        if step == steps:
            break
    return rows


def _open(folder: Path, file_format: str, **options: Any) -> Any:
    loader, _ = StructuredDataset.create_dataloader(
        folder, file_format, 100, shuffle=True, num_workers=0, **{"identity": "content", **options}
    )
    return loader


@pytest.mark.parametrize("kind", WRITERS)
def test_a_state_goes_on_exactly_on_a_touched_copy_under_another_root(kind: str, tmp_path: Path) -> None:
    file_format, write = WRITERS[kind]
    _written(tmp_path / "here", write)
    whole = _rows(_open(tmp_path / "here", file_format))
    loader = _open(tmp_path / "here", file_format)
    begun, state = _rows(loader, 7), loader.state_dict()

    shutil.copytree(tmp_path / "here", tmp_path / "else/where/there", copy_function=shutil.copy)
    shutil.rmtree(tmp_path / "here")
    for file in (tmp_path / "else/where/there").iterdir():
        os.utime(file, (1, 1))
    loader = _open(tmp_path / "else/where/there", file_format)
    loader.load_state_dict(state)
    assert begun + _rows(loader) == whole


@pytest.mark.parametrize("kind", WRITERS)
def test_other_data_under_the_same_names_is_refused(kind: str, tmp_path: Path) -> None:
    file_format, write = WRITERS[kind]
    _written(tmp_path / "here", write)
    _written(tmp_path / "there", write, first=2000)
    state = _open(tmp_path / "here", file_format).state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"files by digest .* other bytes"):
        _open(tmp_path / "there", file_format).load_state_dict(state)


def test_by_default_a_copy_is_other_data_and_the_message_names_the_option(tmp_path: Path) -> None:
    _written(tmp_path / "here", WRITERS["parquet"][1])
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    state = _open(tmp_path / "here", "parquet", identity="strict").state_dict()
    for identity in ("strict", "content"):
        with pytest.raises(CheckpointMismatchError, match='identity="content"'):
            _open(tmp_path / "there", "parquet", identity=identity).load_state_dict(state)


@pytest.mark.slow
@given(files=FILES, changed=st.integers(0, 7), byte=st.integers(0, 2**16))
def test_a_copy_has_the_fingerprint_and_one_with_a_changed_byte_has_not(
    files: list[list[int]], changed: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there") / "copy"
    for number, groups in enumerate(files):
        write_parquet(here / f"{number}", number, groups or [1])
    shutil.copytree(here, there)
    by_content = scan_files(here, identity="content")
    assert scan_files(there, identity="content").fingerprint() == by_content.fingerprint()
    assert scan_files(there).fingerprint() != scan_files(here).fingerprint()

    file = there / f"{changed % len(files)}"
    data = bytearray(file.read_bytes())
    data[byte % len(data)] ^= 1
    file.write_bytes(data)
    with suppress(DataError):  # a footer that does not decode is refused before it is known
        assert scan_files(there, identity="content").fingerprint() != by_content.fingerprint()


def test_a_saved_inventory_is_known_by_content_again(tmp_path: Path) -> None:
    _written(tmp_path / "here", WRITERS["parquet"][1])
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    inventory = scan_files(tmp_path / "here", identity="content")
    save_inventory(inventory, tmp_path / "saved.parquet")
    loaded = load_inventory(tmp_path / "saved.parquet")
    assert (
        loaded.fingerprint()
        == inventory.fingerprint()
        == scan_files(tmp_path / "there", identity="content").fingerprint()
    )
    state = _open(tmp_path / "here", "parquet", inventory=loaded, identity="strict").state_dict()
    _open(tmp_path / "there", "parquet").load_state_dict(state)


def test_an_inventory_that_was_scanned_strictly_can_be_known_by_content(tmp_path: Path) -> None:
    _written(tmp_path / "here", WRITERS["parquet"][1])
    state = _open(tmp_path / "here", "parquet").state_dict()
    _open(tmp_path / "here", "parquet", inventory=scan_files(tmp_path / "here")).load_state_dict(state)


def test_a_large_footer_counts_as_a_whole(tmp_path: Path) -> None:
    """The ends of such a file say nothing of its values: the last 64 KiB are the schema."""
    names = [f"{'column' * 30}{number}" for number in range(400)]
    for place, value in (("here", 1), ("there", 2)):
        (tmp_path / place).mkdir()
        columns = {name: pa.array([0 if number < 399 else value] * 5) for number, name in enumerate(names)}
        pq.write_table(pa.table(columns), tmp_path / place / "part", compression="none", use_dictionary=False)
    here, there = (tmp_path / place / "part" for place in ("here", "there"))
    assert here.stat().st_size == there.stat().st_size
    assert here.read_bytes()[: 64 << 10][-9:] == there.read_bytes()[: 64 << 10][-9:]
    prints = [scan_files(file, identity="content").fingerprint() for file in (here, there)]
    assert prints[0] != prints[1]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A file of each format, of which the digest is kept on the host."""
    folder, places = tmp_path_factory.mktemp("large"), {}
    table = pa.table({"n": pa.array(range(600_000), pa.int64()), "s": pa.array(["word and word"] * 600_000)})
    for kind, (_, write) in WRITERS.items():
        places[kind] = folder / kind
        write(places[kind], table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield places


@pytest.mark.slow
@settings(max_examples=effort(5), deadline=None)
@pytest.mark.parametrize("kind", WRITERS)
@given(data=st.data())
def test_no_byte_changes_unnoticed_though_size_and_time_stay(
    kind: str, data: st.DataObject, large: dict[str, Path]
) -> None:
    file, file_format = large[kind], WRITERS[kind][0]
    status, content = file.stat(), file.read_bytes()
    before = scan_files(file, file_format, identity="content")
    at = data.draw(st.integers(0, len(content) - 1))
    try:
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(bytes([content[at] ^ data.draw(st.sampled_from([1, 2, 4, 128]))]))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        with suppress(DataError):  # such as a footer that does not decode any more
            assert scan_files(file, file_format, identity="content").fingerprint() != before.fingerprint()
        saved = replace(before, files=replace(before.files, changed_ns=None))
        with pytest.raises(FileChangedError, match="its bytes have digest"):
            _open(file, file_format, inventory=saved)
        _open(file, file_format, inventory=saved, identity="strict")
    finally:
        file.write_bytes(content)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert scan_files(file, file_format, identity="content").fingerprint() == before.fingerprint()


def test_reads_are_pinned_to_what_was_proved_also_of_a_saved_inventory(tmp_path: Path) -> None:
    _written(tmp_path / "here", WRITERS["parquet"][1])
    save_inventory(scan_files(tmp_path / "here"), tmp_path / "saved.parquet")
    loader = _open(tmp_path / "here", "parquet", inventory=load_inventory(tmp_path / "saved.parquet"))
    for file in (tmp_path / "here").iterdir():
        status = file.stat()
        file.write_bytes(file.read_bytes())
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(FileChangedError):
        _rows(loader)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_scan_of_text_reads_no_more_for_the_digest(
    kind: str, large: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    read_into = LocalStore.read_into

    def heard(store: LocalStore, path: str, spans: Any, *rest: Any) -> None:
        read.extend(length for _, length in spans)
        read_into(store, path, spans, *rest)

    monkeypatch.setattr(LocalStore, "read_into", heard)
    found = {}
    for cache in (str(tmp_path / "one"), str(tmp_path / "other"), "off"):
        monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", cache)
        read.clear()
        scan_files(large[kind], kind, identity="strict" if cache.endswith("one") else "content")
        found[cache] = sum(read)
    one, other, off = found.values()
    assert one == other == off - large[kind].stat().st_size
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "other"))
    kept = scan_files(large[kind], kind, identity="content")
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", "off")
    assert scan_files(large[kind], kind, identity="content").fingerprint() == kept.fingerprint()


def test_what_was_known_by_the_ends_of_files_is_not_taken_for_proved(tmp_path: Path) -> None:
    _written(tmp_path / "here", WRITERS["parquet"][1])
    inventory = scan_files(tmp_path / "here", identity="content")
    table, about = to_table(inventory)
    described = table.replace_schema_metadata({_KEY: json.dumps({"version": 2, **about})})
    (tmp_path / "old.parquet").write_bytes(sealed_parquet(described))
    old = load_inventory(tmp_path / "old.parquet")
    assert old.fingerprint() == scan_files(tmp_path / "here").fingerprint()
    loader = _open(tmp_path / "here", "parquet", inventory=old)
    assert loader.dataset.planner.inventory.fingerprint() == inventory.fingerprint()

    state = {key: value for key, value in loader.state_dict().items() if key != "checksum"}
    shown = {**dict(state["settings"]), "files": "3 files by content 0badc0de"}
    state = sealed({**state, "fingerprint": "0" * 32, "settings": [list(each) for each in shown.items()]})
    with pytest.raises(CheckpointMismatchError, match="looked at the ends of each file"):
        loader.load_state_dict(state)


def test_rows_that_a_table_deletes_by_position_count(tmp_path: Path) -> None:
    def fingerprint(deleted: list[int]) -> str:
        write_parquet(tmp_path / "part", 0, [10])
        extra = TableFile(table=TableFields(schema=b"", keys=b""), positions=np.array(deleted, dtype=np.int64))
        inventory = scan_files(tmp_path / "part")
        inventory = replace(inventory, files=replace(inventory.files, extras=(extra,)))
        return identified(inventory, "content", StoreAccess()).fingerprint()

    assert fingerprint([1, 2]) == fingerprint([1, 2]) != fingerprint([1, 3])


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    _written(tmp_path / "here", WRITERS["parquet"][1])
    with pytest.raises(ConfigError, match='use "strict" or "content"'):
        scan_files(tmp_path / "here", identity="footer")  # type: ignore[arg-type]
