"""What every store promises, over local files and an fsspec memory file system."""

import fcntl
import os
import pickle
import signal
import struct
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Timer, get_native_id

import fsspec
import pytest

from torch_dataloader_utils._store import CoalesceLimits, RemoteOptions, StoreAccess, open_store
from torch_dataloader_utils.errors import ConfigError, FileChangedError, NoDataError, StoreError

DATA = bytes(range(256)) * 4


class LocalPlace:
    """Writes and deletes files of a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def put(self, name: str, data: bytes) -> str:
        path = Path(self.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return str(path)

    def drop(self, path: str) -> None:
        Path(path).unlink()


class MemoryPlace:
    """Writes and deletes files of fsspec's process-wide memory file system, below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = f"memory://{root.name}"
        self._fs = fsspec.filesystem("memory")

    def put(self, name: str, data: bytes) -> str:
        self._fs.pipe_file(f"{self.root}/{name}", data)
        return f"{self.root}/{name}"

    def drop(self, path: str) -> None:
        self._fs.rm(path)


@pytest.fixture(params=[LocalPlace, MemoryPlace])
def place(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    if isinstance(made, MemoryPlace) and made._fs.exists(made.root):
        made._fs.rm(made.root, recursive=True)


@pytest.mark.slow
def test_ranges_are_read_into_buffers(place):
    path = place.put("a", DATA)
    store = open_store(path)
    identity = store.stat(path).identity
    memory = bytearray(30)
    spans, buffers = (
        [(7, 10), (0, 0), (1000, 20)],
        [memoryview(memory)[:10], memoryview(bytearray()), memoryview(memory)[10:]],
    )
    store.read_into(path, spans, buffers, identity)
    assert bytes(memory) == DATA[7:17] + DATA[1000:1020]
    with pytest.raises((StoreError, FileChangedError)):
        store.read_into(path, [(1020, 10)], [memoryview(memory)[:10]], identity)
    other = place.put("a", DATA[::-1] + b"more")
    with pytest.raises(FileChangedError):
        store.read_into(other, spans[:1], buffers[:1], identity)


def test_stat_tail_and_ranges_agree(place):
    path = place.put("a", DATA)
    store = pickle.loads(pickle.dumps(open_store(path)))
    stat = store.stat(path)
    assert stat.size == len(DATA)
    tail = store.tail(path, 10, stat)
    assert (bytes(tail.data), tail.size, tail.identity) == (DATA[-10:], stat.size, stat.identity)
    assert store.tail(path, 10) == tail
    assert bytes(store.tail(path, 10_000).data) == DATA
    spans = [(500, 20), (0, 4), (4, 0), (1020, 4)]
    assert [bytes(b) for b in store.ranges(path, spans, stat.identity)] == [DATA[a : a + n] for a, n in spans]
    assert store.ranges(path, []) == []


def test_ranges_that_are_not_merged_give_the_same_bytes(place):
    path = place.put("a", DATA)
    limits = CoalesceLimits(hole_bytes=0, most_bytes=1)
    store = open_store(path, StoreAccess.of(remote=RemoteOptions(coalesce=limits)))
    spans = [(i, 3) for i in range(0, 300, 7)]
    assert [bytes(b) for b in store.ranges(path, spans)] == [DATA[a : a + n] for a, n in spans]


def test_a_replaced_file_has_changed(place):
    path = place.put("a", DATA)
    store = open_store(path)
    identity = store.stat(path).identity
    place.put("a", DATA + b"!")
    with pytest.raises(FileChangedError, match="not the file that was planned"):
        store.ranges(path, [(0, 4)], identity)
    assert bytes(store.ranges(path, [(0, 4)])[0]) == DATA[:4]


@pytest.mark.slow
def test_a_truncated_file_has_changed_even_without_an_identity(place):
    path = place.put("a", DATA)
    store = open_store(path)
    place.put("a", DATA[:100])
    with pytest.raises(FileChangedError, match="gave 10 of 20 bytes"):
        store.ranges(path, [(90, 20)])


def test_a_deleted_file_has_changed_if_it_was_planned_and_is_missing_if_not(place):
    path = place.put("a", DATA)
    store = open_store(path)
    identity = store.stat(path).identity
    place.drop(path)
    with pytest.raises(FileChangedError, match="is gone"):
        store.ranges(path, [(0, 4)], identity)
    for ask in (store.stat, store.list_files, lambda p: store.tail(p, 8), lambda p: store.ranges(p, [(0, 1)])):
        with pytest.raises(NoDataError, match="does not exist"):
            ask(path)


def test_a_file_directory_or_pattern_lists_its_files_in_order(place):
    paths = [place.put(name, DATA[:n]) for n, name in enumerate(["b/2", "b/1", "a/x/3", "c"])]
    store = open_store(place.root)

    def names(listing):
        return [entry.path.removeprefix(place.root + "/") for entry in listing.entries]

    below = store.list_files(place.root)
    assert names(below) == ["a/x/3", "b/1", "b/2", "c"]
    assert [entry.stat.size for entry in below.entries] == [2, 1, 0, 3]
    assert (below.directory, below.is_pattern) == (place.root, False)
    some = store.list_files(f"{place.root}/b/*")
    assert (names(some), some.directory, some.is_pattern) == (["b/1", "b/2"], f"{place.root}/b", True)
    assert names(store.list_files(f"{place.root}/[ab]")) == ["a/x/3", "b/1", "b/2"]
    assert names(store.list_files(f"{place.root}/**/3")) == ["a/x/3"]
    alone = store.list_files(paths[0])
    assert (names(alone), alone.directory) == (["b/2"], "")
    assert alone.entries[0].stat == store.stat(paths[0])
    with pytest.raises(NoDataError):
        store.list_files(f"{place.root}/*.nope")


def test_a_local_pipe_is_a_changed_file_that_nobody_waits_for(tmp_path):
    path = str(tmp_path / "a")
    os.mkfifo(path)
    store, buffer = open_store(path), memoryview(bytearray(4))
    guard = Timer(20, lambda: os.open(path, os.O_RDWR))
    guard.start()
    for ask in (
        lambda: store.tail(path, 8),
        lambda: store.ranges(path, [(0, 4)]),
        lambda: store.ranges(path, [(0, 4)], "4-1"),
        lambda: store.read_into(path, [(0, 4)], [buffer], "4-1"),
        lambda: store.ranges(path, [], "4-1"),
    ):
        with pytest.raises(FileChangedError):
            ask()
    assert guard.is_alive()
    guard.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_a_local_file_that_another_program_holds_a_lease_on_is_waited_for(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(DATA)
    holder, is_held = os.open(path, os.O_RDWR), Event()

    def hold_until_asked():
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
            # F_SETOWN_EX, F_OWNER_TID: this thread is asked, and no other, which it would end.
            fcntl.fcntl(holder, 15, struct.pack("ii", 0, get_native_id()))
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        finally:
            is_held.set()
        signal.sigtimedwait([signal.SIGIO], 20)
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    with ThreadPoolExecutor(1) as pool:
        was_asked = pool.submit(hold_until_asked)
        is_held.wait()
        assert bytes(open_store(str(path)).tail(str(path), 4).data) == DATA[-4:]
        if not was_asked.result():
            pytest.skip("no leases here")
    os.close(holder)


def test_threads_share_a_store(place):
    path = place.put("a", DATA)
    store = open_store(path)
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda i: bytes(store.ranges(path, [(i, 5)])[0]), range(100))
    assert list(parts) == [DATA[i : i + 5] for i in range(100)]


def test_a_link_keeps_its_name_and_a_loop_of_links_ends(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_bytes(b"1")
    (tmp_path / "year=1").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "up").symlink_to(tmp_path)
    entries = open_store(str(tmp_path / "year=1")).list_files(str(tmp_path / "year=1")).entries
    assert entries[0].path == str(tmp_path / "year=1" / "f")


def test_a_link_to_a_directory_beside_it_gives_its_files_again(tmp_path):
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "f").write_bytes(b"1")
    (tmp_path / "day=2").symlink_to("day=1")
    entries = open_store(str(tmp_path)).list_files(str(tmp_path)).entries
    assert [entry.path for entry in entries] == [f"{tmp_path}/day=1/f", f"{tmp_path}/day=2/f"]


def test_a_file_url_is_a_local_path(tmp_path):
    (tmp_path / "f").write_bytes(b"123")
    url = f"file://{tmp_path}/f"
    store = open_store(url)
    assert store.is_local
    assert store.local_path(url) == str(tmp_path / "f")
    assert store.list_files(url).entries[0].path == str(tmp_path / "f")


def test_a_remote_store_has_no_local_path():
    with pytest.raises(ConfigError, match="no local path"):
        open_store("memory://a").local_path("memory://a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_says_so(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"1")
    path.chmod(0)
    with pytest.raises(StoreError, match="no permission"):
        open_store(str(path)).tail(str(path), 1)


def test_a_chained_url_reads_inside_its_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("inner/a.bin", DATA)
    url = f"zip://inner/a.bin::file://{tmp_path}/z.zip"
    store = open_store(url)
    assert bytes(store.tail(url, 6).data) == DATA[-6:]
    assert [entry.path for entry in store.list_files(f"zip://inner::file://{tmp_path}/z.zip").entries] == [url]
