"""What is written to this host's disk: whole or absent, whatever dies or fills up, and whoever else writes."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from torch_dataloader_utils._store import PendingFile, publish, write_atomically
from torch_dataloader_utils.cache import kept_files
from torch_dataloader_utils.cache.kept_files import KeptFiles
from torch_dataloader_utils.errors import ConfigError, NoDataError

ROOT = Path(__file__).parents[2]
FOOTER = bytes(range(256)) * 8


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


def test_a_footer_is_found_by_its_own_file_and_version_only(tmp_path: Path) -> None:
    tails = KeptFiles(tmp_path / "footers")
    tails.put("s3://b/a", "one", FOOTER)
    assert tails.get("s3://b/a", "one") == FOOTER
    assert tails.get("s3://b/a", "two") is None
    assert tails.get("s3://b/b", "one") is None
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_footer_that_is_cut_or_flipped_anywhere_is_not_used(tmp_path: Path) -> None:
    tails = KeptFiles(tmp_path)
    tails.put("a", "one", FOOTER[:100])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert tails.get("a", "one") is None
        path.write_bytes(whole[:size] + bytes([whole[size] ^ 4]) + whole[size + 1 :])
        assert tails.get("a", "one") is None


def test_a_footer_in_the_place_of_another_one_is_not_used(tmp_path: Path) -> None:
    tails = KeptFiles(tmp_path / "footers")
    tails.put("a", "one", FOOTER)
    (first,) = (tmp_path / "footers").glob("*/*")
    tails.put("b", "one", FOOTER)
    (second,) = set((tmp_path / "footers").glob("*/*")) - {first}
    second.replace(first)
    assert KeptFiles(tmp_path / "footers").get("a", "one") is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
def test_a_directory_that_others_can_enter_is_not_used(tmp_path: Path, mode: int) -> None:
    place, private = tmp_path / "footers", tmp_path / "held" / "footers"
    KeptFiles(place).put("a", "one", FOOTER)
    KeptFiles(private, private=private.parent).put("a", "one", FOOTER)
    for opened, checked in ((place, place), (private, private.parent)):
        checked.chmod(mode)
        tails = KeptFiles(opened, private=checked)
        assert tails.get("a", "one") is None
        tails.put("b", "one", FOOTER)
        assert len(list(opened.glob("*/*"))) == 1
        checked.chmod(0o700)
        assert tails.get("a", "one") == FOOTER
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert KeptFiles(place).get("a", "one") is None


@pytest.mark.parametrize("is_pipe", [True, False])
def test_a_pipe_or_a_huge_file_in_the_place_of_a_footer_is_not_read(tmp_path: Path, is_pipe: bool) -> None:
    tails = KeptFiles(tmp_path / "footers")
    tails.put("a", "one", FOOTER)
    (kept,) = (tmp_path / "footers").glob("*/*")
    kept.unlink()
    if is_pipe:
        os.mkfifo(kept)
    else:
        kept.touch()
        os.truncate(kept, 1 << 43)
    assert tails.get("a", "one") is None


def test_a_link_in_the_place_of_a_footer_is_not_followed(tmp_path: Path) -> None:
    tails = KeptFiles(tmp_path / "footers")
    tails.put("a", "one", FOOTER)
    (path,) = files(tmp_path)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert tails.get("a", "one") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where nobody else may")
def test_a_directory_that_cannot_be_written_keeps_nothing_and_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "footers").mkdir(mode=0o500)
    KeptFiles(tmp_path / "footers").put("a", "one", FOOTER)
    assert files(tmp_path) == []


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    for variable in ("HOME", "XDG_CACHE_HOME", kept_files.VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert kept_files.footer_cache() is None


def test_a_file_in_the_place_of_the_directory_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "footers").write_text("in the way")
    tails = KeptFiles(tmp_path / "footers")
    tails.put("a", "one", FOOTER)
    assert tails.get("a", "one") is None


KEEP = """
import sys
from pathlib import Path
from tests.faults.crash_points import crash_everywhere, fill_disk_everywhere
from torch_dataloader_utils.cache.kept_files import KeptFiles
root, data = Path(sys.argv[1]), bytes(range(256)) * 8

def check():
    found = KeptFiles(root).get("a", "one")
    assert found in (None, data), found

def put():
    KeptFiles(root).put("a", "one", data)
"""


@pytest.mark.processes
def test_a_crash_at_any_point_leaves_a_whole_footer_or_none(tmp_path: Path) -> None:
    root = tmp_path / "crash-here"
    script = KEEP + "print(crash_everywhere(put, check), KeptFiles(root).get('a', 'one') == data)"
    for least_steps in (3, 2):  # the second time the directories are there, and what is left to do is open and rename
        steps, is_kept = run(script, root).split()
        assert int(steps) >= least_steps
        assert is_kept == "True"
        (kept,) = [path for path in files(root) if path.suffix != ".tmp"]
        kept.unlink()
    assert len(files(root)) == 1  # what the process that died before the rename has left; swept by age


@pytest.mark.processes
def test_a_full_disk_leaves_a_whole_footer_or_nothing(tmp_path: Path) -> None:
    script = KEEP + "fill_disk_everywhere(put, check, range(0, 2000, 400)); fill_disk_everywhere(put, check, range(1))"
    run(script, tmp_path)
    assert files(tmp_path) == []


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    tails = KeptFiles(tmp_path, most_bytes=20_000)
    tails.put("first", "one", FOOTER)
    left = files(tmp_path)[0].with_name("cut.1-1.tmp")
    left.write_bytes(b"half")
    os.utime(left, (1, 1))
    for number in range(2 * 4096):
        tails.put(f"{number}", "one", b"x")
        if not left.exists():
            break
    assert not left.exists()


@pytest.mark.slow
def test_what_others_put_into_the_directory_does_not_keep_it_from_being_swept(tmp_path: Path) -> None:
    tails = KeptFiles(tmp_path, most_bytes=20_000)
    tails.put("first", "one", FOOTER)
    (first,) = files(tmp_path)
    os.utime(first, (1, 1))
    (tmp_path / ".DS_Store").write_bytes(b"x")
    first.with_name("folder").mkdir()
    for number in range(2 * 4096):
        tails.put(f"{number}", "one", b"x" * 20)
    assert not first.exists()
    assert (tmp_path / ".DS_Store").exists()


@pytest.mark.processes
def test_many_processes_that_keep_the_same_footers_see_whole_ones_only(tmp_path: Path) -> None:
    script = (
        KEEP
        + """
import os
children = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        tails = KeptFiles(root)
        for number in range(200):
            key = str(number % 7)
            tails.put(key, "one", data + key.encode())
            assert tails.get(key, "one") == data + key.encode()
        os._exit(0)
    children.append(pid)
assert all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in children)
"""
    )
    run(script, tmp_path)
    assert len(files(tmp_path)) == 7


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
