"""Local files overwritten in place, with size and time as before: the time of the last change differs."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.faults.tables import parquet_bytes, table
from torch_dataloader_utils import Decoding, StructuredDataset, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._core import inventory as inventory_module
from torch_dataloader_utils.errors import FileChangedError

ROWS = 400
OVERWRITTEN = r"a\.\w+ was changed after it was planned, though its size and modification time"


def content(file_format: str, first: int) -> bytes:
    if file_format == "csv":
        return b"row,check\n" + b"".join(b"%06d,%08d\n" % (row, row * 7 + 3) for row in range(first, first + ROWS))
    return parquet_bytes(table(first, ROWS), 100, compression="none", use_dictionary=False)


def overwrite(path: Path) -> None:
    """Other rows under the old size and time; again until the clock of the file system has moved."""
    before = path.stat()
    contents = (content(path.suffix[1:], first) for first in range(200_000, 300_000))
    data = next(data for data in contents if len(data) == before.st_size)
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def chmod(path: Path) -> None:
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.chmod(0o640)
        path.chmod(0o600)


@pytest.fixture(params=["parquet", "csv"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / f"a.{request.param}"
    target.write_bytes(content(request.param, 100_000))
    return target


def load(path: Path, **options: Any) -> Any:
    options = {"batch_size": 25, "num_workers": 0, "decoding": Decoding(ahead_bytes=1), **options}
    loader, _ = StructuredDataset.create_dataloader(str(path), path.suffix[1:], **options)
    return loader


def receive(batches: Any, seen: list[int]) -> None:
    for batch in batches:
        seen += batch["row"].tolist()


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_overwritten_in_place_before_it_is_read_is_an_error(path: Path, workers: int) -> None:
    loader = load(path, num_workers=workers)
    overwrite(path)
    with pytest.raises(FileChangedError, match=OVERWRITTEN):
        list(loader)
    assert sum(batch.num_rows for batch in load(path)) == ROWS


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_overwritten_in_the_middle_gives_rows_of_the_old_one_only(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content("parquet", 100_000))
    seen: list[int] = []
    batches = iter(load(path, num_workers=workers, prefetch_factor=1 if workers else None))
    seen += next(batches)["row"].tolist()
    overwrite(path)
    # A worker may look before the old time of the file is set again.
    with pytest.raises(FileChangedError, match=f"{OVERWRITTEN}|is not the file that was planned"):
        receive(batches, seen)
    assert seen == list(range(100_000, 100_000 + len(seen)))
    assert len(seen) < ROWS


def test_a_changed_mode_ends_a_job_whose_state_then_fits(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content("parquet", 100_000))
    loader = load(path)
    batches = iter(loader)
    seen = next(batches)["row"].tolist()
    chmod(path)
    with pytest.raises(
        FileChangedError, match=r"only its mode, owner, name or number of links.*resume from the last state"
    ):
        receive(batches, seen)
    again = load(path)
    again.load_state_dict(loader.state_dict())
    seen += [row for batch in again for row in batch["row"].tolist()]
    assert sorted(seen) == list(range(100_000, 100_000 + ROWS))


def test_saved_inventories_and_fingerprints_know_nothing_of_it(path: Path, tmp_path: Path) -> None:
    planned = scan_files(str(path), path.suffix[1:])
    save_inventory(planned, tmp_path / "saved.parquet")
    chmod(path)
    assert scan_files(str(path), path.suffix[1:]).fingerprint() == planned.fingerprint()
    loaded = load_inventory(tmp_path / "saved.parquet")
    assert sum(batch.num_rows for batch in load(path, inventory=loaded)) == ROWS


def test_another_host_may_have_copies_that_were_made_at_other_times(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = pickle.dumps(scan_files(str(path), path.suffix[1:]))
    chmod(path)
    with pytest.raises(FileChangedError, match=OVERWRITTEN):
        list(load(path, inventory=pickle.loads(sent)))
    monkeypatch.setattr(inventory_module, "node", lambda: "elsewhere")
    assert sum(batch.num_rows for batch in load(path, inventory=pickle.loads(sent))) == ROWS
