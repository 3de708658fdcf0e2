"""identity="content": the same data elsewhere is the same data, other data is not."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.discover.datasets import FILES, WRITERS, Write, write_parquet
from torch_dataloader_utils import StructuredDataset, load_inventory, save_inventory, scan_files
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, DataError


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
    with pytest.raises(CheckpointMismatchError, match="files by content"):
        _open(tmp_path / "there", file_format).load_state_dict(state)


def test_by_default_a_copy_is_other_data_and_the_message_names_the_option(tmp_path: Path) -> None:
    _written(tmp_path / "here", WRITERS["parquet"][1])
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    state = _open(tmp_path / "here", "parquet", identity="strict").state_dict()
    for identity in ("strict", "content"):
        with pytest.raises(CheckpointMismatchError, match='identity="content"'):
            _open(tmp_path / "there", "parquet", identity=identity).load_state_dict(state)


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


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    _written(tmp_path / "here", WRITERS["parquet"][1])
    with pytest.raises(ConfigError, match='use "strict" or "content"'):
        scan_files(tmp_path / "here", identity="footer")  # type: ignore[arg-type]
