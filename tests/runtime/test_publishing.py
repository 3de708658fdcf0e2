"""What is written to this host's disk: whole or absent, whatever dies or fills up, and whoever else writes."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from torch_dataloader_utils._runtime import publish
from torch_dataloader_utils._runtime.publish import PendingFile, write_atomically
from torch_dataloader_utils.errors import ConfigError, NoDataError

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: object) -> str:
    """A script in a process of its own: forks are made there."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


SAVE = """
import sys
from pathlib import Path
from tests.discover.test_save import made, same
from tests.faults.crash_points import crash_everywhere, fill_disk_everywhere
from torch_dataloader_utils.discover import load_inventory, save_inventory
from torch_dataloader_utils.errors import StoreError
root = Path(sys.argv[1])
root.mkdir(exist_ok=True)
old, new, seen = made(2, 3), made(5, 4), []
save_inventory(old, root / "i")

def check():
    found = load_inventory(root / "i")
    assert same(found, old) or same(found, new)
    seen.append(same(found, new))

def save():
    save_inventory(new, root / "i")
"""


@pytest.mark.processes
def test_a_crash_at_any_point_of_saving_leaves_the_old_inventory_or_the_new_one(tmp_path: Path) -> None:
    root = tmp_path / "crash-here"
    steps, last = run(SAVE + "print(crash_everywhere(save, check), seen[-1])", root).split()
    assert int(steps) >= 3
    assert last == "True"
    assert [path.name for path in files(root)] == ["i"]  # the last one swept what the others had left


@pytest.mark.processes
def test_a_full_disk_leaves_the_old_inventory_and_is_told(tmp_path: Path) -> None:
    root = tmp_path / "full"
    run(SAVE + "fill_disk_everywhere(save, check, range(0, 2000, 500)); assert not any(seen)", root)
    assert [path.name for path in files(root)] == ["i"]


def left_by(host: str, pid: int, path: Path) -> Path:
    left = path.with_name(f".{path.name}.{host}-{pid}-0123.pending")
    left.write_bytes(b"half")
    return left


def test_only_what_dead_writers_of_the_same_path_left_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    here = publish._host()
    dead = left_by(here, 2**22 + 1, path)  # above the largest number a process has
    others = [
        left_by(here, os.getpid(), path),
        left_by("00000000", 2**22 + 1, path),
        left_by(here, 2**22 + 1, tmp_path / "ab"),
    ]
    held = PendingFile(path)
    with write_atomically(path) as file:
        file.write(b"whole")
    assert not dead.exists()
    assert all(other.exists() for other in others)
    held.discard()
    assert path.read_bytes() == b"whole"


@pytest.mark.parametrize("is_held", [False, True])
def test_a_writer_that_is_swept_before_it_has_its_lock_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    path, lock = tmp_path / "a", publish._lock
    # As in another container of the same host name, where no process has this number.
    monkeypatch.setattr(publish.os, "getpid", lambda: 2**22 + 1)

    def sweep_first(file: BinaryIO) -> None:
        monkeypatch.setattr(publish, "_lock", lock)
        left = next(tmp_path.glob(".a.*"))
        with left.open("rb") as swept:
            if not is_held:
                publish._sweep(path)
                return lock(file)
            lock(swept)
            try:
                lock(file)
            finally:
                left.unlink()

    monkeypatch.setattr(publish, "_lock", sweep_first)
    with write_atomically(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"


def test_a_file_is_held_until_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    monkeypatch.setattr(publish.os, "getpid", lambda: 2**22 + 1)
    pending = PendingFile(path)
    pending.file.write(b"whole")
    pending.sync()
    publish._sweep(path)
    pending.publish()
    assert pending.file.closed
    assert [(each.name, each.read_bytes()) for each in files(tmp_path)] == [("a", b"whole")]


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), write_atomically(path, mode=0o600) as file:
        file.writelines([b"new", None])  # type: ignore[list-item]
    assert [(each.name, each.read_bytes()) for each in files(tmp_path)] == [("a", b"old")]
    with write_atomically(path, mode=0o600) as file:
        file.write(b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    with pytest.raises(NoDataError, match="Make it first"):
        PendingFile(tmp_path / "none" / "a")


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link", tmp_path):
        with pytest.raises(ConfigError, match="Pass the path of a file"), write_atomically(path) as file:
            file.write(b"whole")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "pipe"]
