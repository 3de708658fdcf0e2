"""A host's cache: entries are whole or fetched, one process fetches what several want, and room is made by next use."""

import fcntl
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.store.test_local_patterns import as_a_user
from torch_dataloader_utils import HostCache
from torch_dataloader_utils._observe.counters import Counts, count_thread_in
from torch_dataloader_utils._store import Buffer, RemoteOptions, Span, StoreAccess
from torch_dataloader_utils._store.censor import environment_credentials
from torch_dataloader_utils.cache.entries import HEAD_BYTES, GroupKey, ValueKey
from torch_dataloader_utils.cache.host_cache import OpenCache
from torch_dataloader_utils.cache.schedules import ReadSchedule, ReadSchedules
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, StoreError

ROOT = Path(__file__).parents[2]
LENGTH = 4000
SPAN = (4, LENGTH)
# Room for the journal and schedules, but for no entry.
BESIDE = 3900


def key(group: int, identity: str = "one") -> GroupKey:
    return GroupKey("me", "s3://b/a", identity, group)


_CONTENT = bytes(range(251))


class Origin:
    """Where missing bytes come from; remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[Span] = []

    def fetch(self, spans: Sequence[Span]) -> list[Buffer]:
        self.asked += spans
        return [content(span) for span in spans]


def content(span: Span) -> bytes:
    start = span[0] % 251
    return (_CONTENT * (span[1] // 251 + 2))[start : start + span[1]]


def open_cache(directory: Path, groups: float = 100) -> OpenCache:
    """A cache with room for so many entries."""
    return OpenCache(HostCache(directory, max_bytes=int(groups * (HEAD_BYTES + LENGTH)) + BESIDE))


def files(directory: Path, kind: str = "entries") -> list[Path]:
    return [path for path in directory.glob(f"tdu-cache-*/{kind}/**/*") if path.is_file()]


def read(cache: OpenCache, group: int, origin: Origin, span: Span = SPAN) -> None:
    assert cache.ranges(key(group), [span], origin.fetch, 60) == [content(span)]


def test_bytes_are_fetched_once_and_belong_to_one_version(tmp_path: Path) -> None:
    origin, cache = Origin(), open_cache(tmp_path)
    spans = [(0, 10), (50, 0), (20, 5), (0, 10)]
    for _ in range(2):
        assert cache.ranges(key(1), spans, origin.fetch, 60) == [content(span) for span in spans]
        assert open_cache(tmp_path).ranges(key(1), spans[:1], origin.fetch, 60) == [content(spans[0])]
    assert [span for span in origin.asked if span[1]] == [(0, 10), (20, 5)]
    cache.ranges(key(1, "two"), spans[:1], origin.fetch, 60)
    cache.ranges(key(2), spans[:1], origin.fetch, 60)
    assert len(files(tmp_path)) == 4


def test_files_are_this_user_s_alone(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "new" / "newer")
    read(cache, 1, Origin())
    cache.put(ValueKey("me", "a", "one", "footer"), b"footer")
    for path in (tmp_path / "new").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_directory_that_others_may_use_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = open_cache(tmp_path)
    options = HostCache(tmp_path, max_bytes=1)
    options.root.mkdir(mode=0o755)
    read(cache, 1, Origin())
    assert files(tmp_path) == []
    assert "not a directory of this user alone" in caplog.text


@pytest.mark.slow
@given(place=st.integers(0, HEAD_BYTES + LENGTH - 1), change=st.sampled_from(["cut", "flip", "longer"]))
@example(place=HEAD_BYTES - 1, change="flip")  # the last byte of the head, which is not used otherwise
def test_a_damaged_entry_is_fetched_again_and_counted(
    tmp_path_factory: pytest.TempPathFactory, place: int, change: str
) -> None:
    directory, origin, counts = tmp_path_factory.mktemp("cache"), Origin(), Counts()
    cache = open_cache(directory)
    read(cache, 1, origin)
    (path,) = files(directory)
    whole = path.read_bytes()
    flipped = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
    path.write_bytes({"cut": whole[:place], "flip": flipped, "longer": whole + b"x"}[change])
    before = count_thread_in(counts)
    read(cache, 1, origin)
    read(cache, 1, origin)
    count_thread_in(before)
    assert len(origin.asked) == 2
    assert getattr(counts, "cache_events.damaged") == 1


def test_an_entry_under_another_name_and_a_link_are_not_used(tmp_path: Path) -> None:
    origin, cache = Origin(), open_cache(tmp_path)
    read(cache, 1, origin)
    (first,) = files(tmp_path)
    read(cache, 2, origin)
    (second,) = set(files(tmp_path)) - {first}
    second.write_bytes(first.read_bytes())
    first.unlink()
    first.symlink_to(second)
    read(cache, 1, origin)
    read(cache, 2, origin)
    assert len(origin.asked) == 4


def _append(data: bytes) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        with (root / "journal").open("ab") as journal:
            journal.write(data)

    return spoil


def _pipe(name: str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        (root / name).parent.mkdir(mode=0o700, exist_ok=True)
        (root / name).unlink(missing_ok=True)
        os.mkfifo(root / name)

    return spoil


def _sparse(name: str, size: int = 1 << 43) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        (root / name).parent.mkdir(mode=0o700, exist_ok=True)
        with (root / name).open("ab") as file:
            os.truncate(file.fileno(), size)

    return spoil


LATER = key(12).entry_name(SPAN)
NAME = LATER.encode()
STRAY = {
    "zeros in the journal": _append(bytes(48)),
    "letters in the journal": _append(b"z" * 48),
    "an entry of too many bytes in the journal": _append(NAME + (1 << 60).to_bytes(8, "little")),
    "half of a record in the journal": _append(NAME),
    "a journal of a terabyte": _sparse("journal"),
    "a pipe as journal": _pipe("journal"),
    "a file of 40 letters": _sparse("entries/zz/" + "z" * 40, 0),
    "a large file of 40 digits in another folder": _sparse(f"entries/zz/{LATER}"),
    "a large file of 40 digits": _sparse(f"entries/{LATER[:2]}/{LATER}"),
    "a pipe as entry": _pipe(f"entries/{LATER[:2]}/{LATER}"),
    "a directory as entry": lambda root: (root / f"entries/{LATER[:2]}/{LATER}").mkdir(parents=True),
    "a pipe where an entry is fetched": _pipe(f"pending/{LATER}"),
    "a pipe among the schedules": _pipe("schedules/t-1"),
    "a schedule of a terabyte": _sparse("schedules/t-1"),
}


@pytest.mark.parametrize("spoil", STRAY.values(), ids=STRAY)
@pytest.mark.parametrize("opens_anew", [False, True])
def test_whatever_lies_in_the_directory_costs_requests_alone(
    tmp_path: Path, spoil: Callable[[Path], None], opens_anew: bool
) -> None:
    cache, origin = open_cache(tmp_path, 4), Origin()
    for group in range(3):
        read(cache, group, origin)
    spoil(HostCache(tmp_path, max_bytes=1).root)
    cache = open_cache(tmp_path, 4) if opens_anew else cache
    for group in range(20):
        read(cache, group, origin)
    origin.asked.clear()
    for _ in range(5):
        read(cache, 30, origin)
    assert len(origin.asked) == 1
    sizes = [path.stat().st_size for path in files(tmp_path)]
    assert sum(size for size in sizes if size < 1 << 30) <= 4 * (HEAD_BYTES + LENGTH) + BESIDE


def value(name: str, what: str = "footer", identity: str = "one", scope: str = "me") -> ValueKey:
    return ValueKey(scope, f"s3://b/{name}", identity, what)


def test_a_value_belongs_to_its_file_version_kind_and_reader(tmp_path: Path) -> None:
    cache, made = open_cache(tmp_path), []

    def make() -> bytes:
        made.append(None)
        return b"footer"

    for _ in range(2):
        assert cache.once(value("a"), make, 60) == b"footer"
    assert len(made) == 1
    for other in (value("b"), value("a", "rows"), value("a", identity="two"), value("a", scope="you")):
        assert cache.get(other) is None
    cache.put(value("b"), b"other")
    one, two = (path for path in files(tmp_path))
    one.write_bytes(two.read_bytes())
    assert sorted(map(str, (cache.get(value("a")), cache.get(value("b"))))) != ["None", "None"]
    assert cache.once(value("a"), lambda: b"footer", 60) == b"footer"
    assert cache.once(value("b"), lambda: b"other", 60) == b"other"


def all_bytes(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())


@given(sizes=st.lists(st.tuples(st.booleans(), st.integers(1, 120_000)), min_size=1, max_size=40))
@example(sizes=[(True, 100_000)] * 30)
@example(sizes=[(True, 30_000), (False, 100_000)] * 15)
def test_all_files_together_stay_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[bool, int]]
) -> None:
    directory, most, origin = tmp_path_factory.mktemp("cache"), 400_000, Origin()
    cache = OpenCache(HostCache(directory, max_bytes=most))
    cache.foresee("t", ReadSchedule(keys=np.ones(99, np.uint64), times=np.zeros(99), num_present=99))
    for number, (is_value, size) in enumerate(sizes):
        if is_value:
            cache.put(value(str(number)), bytes(size))
        else:
            read(cache, number, origin, (4, size))
        assert all_bytes(directory) <= most
    small = [path for path in files(directory) if path.name.startswith("k")]
    assert sum(path.stat().st_size for path in small) <= most
    assert files(directory)


def test_a_schedule_without_room_is_not_written(tmp_path: Path) -> None:
    most, uses = 400_000, 5_500  # four schedules fill the cache, and no entry can make room for a fifth schedule
    cache = OpenCache(HostCache(tmp_path, max_bytes=most))
    schedule = ReadSchedule(keys=np.arange(uses, dtype=np.uint64), times=np.zeros(uses), num_present=uses)
    for number in range(6):
        cache.foresee(f"t{number}", schedule)
        assert all_bytes(tmp_path) <= most
    assert len(files(tmp_path, "schedules")) == 4


def test_ranges_do_not_push_out_footers_and_footers_leave_room_for_ranges(tmp_path: Path) -> None:
    cache, origin = OpenCache(HostCache(tmp_path, max_bytes=1_000_000)), Origin()
    for number in range(100):
        cache.put(value(str(number)), bytes(20_000))
    assert len(files(tmp_path)) > 40  # they may have all that is free
    for number in range(100):
        read(cache, number, origin, (4, 20_000))
    left = [number for number in range(100) if cache.get(value(str(number))) is not None]
    assert left == [97, 98, 99]


def test_a_disk_that_another_process_fills_is_within_the_limit_too(tmp_path: Path) -> None:
    """Entries that others are writing count, and so does what dead processes left, until it is swept."""
    cache, origin = open_cache(tmp_path, 3), Origin()
    read(cache, 0, origin)
    root = HostCache(tmp_path, max_bytes=1).root
    for name in ("pending/" + "1" * 40, "schedules/.token-1"):
        (root / name).write_bytes(bytes(LENGTH))
    for group in range(1, 9):
        read(cache, group, origin)
        assert all_bytes(tmp_path) <= 3 * (HEAD_BYTES + LENGTH) + BESIDE
    read(open_cache(tmp_path, 3), 9, origin)
    assert files(tmp_path, "pending") + files(tmp_path, "schedules") == []


@pytest.mark.parametrize("error", [OSError(5, "EIO"), RuntimeError("x"), KeyError(1)])
@pytest.mark.parametrize(
    "name", ["os.open", "os.preadv", "os.pwritev", "os.fstat", "os.unlink", "os.stat", "os.scandir", "fcntl.flock"]
)
def test_a_call_that_fails_costs_requests_and_then_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    cache, counts = open_cache(tmp_path, 4), Counts()
    read(cache, 0, Origin())
    module, _, function = name.partition(".")
    asked = []

    def fail(*_: Any, **__: Any) -> Any:
        asked.append(None)
        raise error

    before = count_thread_in(counts)
    monkeypatch.setattr({"os": os, "fcntl": fcntl}[module], function, fail)
    for group in [0] * 10 + list(range(1, 60)):  # the first is kept: only what is there can fail to be read
        read(cache, group, Origin())
        assert cache.once(value(str(group)), lambda: b"footer", 60) == b"footer"
    last = len(asked)
    for group in range(60, 90):
        read(cache, group, Origin())
    assert len(asked) == last > 0
    monkeypatch.undo()
    count_thread_in(before)
    assert getattr(counts, "cache_events.bypassed") > 30


@pytest.mark.parametrize("content", [b"", bytes(HEAD_BYTES + LENGTH), b"TDUCACH1" + b"\xff" * 90], ids=len)
def test_a_disk_that_gives_other_bytes_costs_requests_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    cache, origin = open_cache(tmp_path, 4), Origin()
    read(cache, 0, origin)

    def give(_: int, buffers: list[Any], __: int) -> int:
        given = 0
        for buffer in buffers:
            part = content[given : given + len(buffer)]
            memoryview(buffer)[: len(part)] = part
            given += len(part)
        return given

    monkeypatch.setattr(os, "preadv", give)
    for group in range(9):
        read(cache, group % 3, origin)
        assert cache.once(value("a"), lambda: b"footer", 60) == b"footer"


def test_a_process_that_stops_with_the_lock_is_gone_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_dataloader_utils.cache.index._MOST_WAIT_SECONDS", 0.2)
    monkeypatch.setattr("torch_dataloader_utils.cache.breaker._MOST_LOST_SECONDS", 0.1)
    cache, origin, counts = open_cache(tmp_path), Origin(), Counts()
    read(cache, 0, origin)
    journal = os.open(HostCache(tmp_path, max_bytes=1).root / "journal", os.O_RDWR)
    fcntl.flock(journal, fcntl.LOCK_EX)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda group: read(cache, group, origin), range(1, 7)))
    before = count_thread_in(counts)
    monkeypatch.setattr(cache._index, "_open_journal", None)
    for group in range(7, 30):
        read(cache, group, origin)
    count_thread_in(before)
    assert getattr(counts, "cache_events.bypassed") == 23
    read(cache, 0, origin)  # what it has is still read
    assert len(origin.asked) == 30
    os.close(journal)


def test_an_entry_whose_fetching_does_not_end_is_fetched_by_another(tmp_path: Path) -> None:
    stopped, origin = open_cache(tmp_path), Origin()
    read(stopped, 0, origin)
    held = stopped._files.claim(key(1).entry_name(SPAN))
    assert held is not None
    for cache in (open_cache(tmp_path), open_cache(tmp_path)):
        assert cache.ranges(key(1), [SPAN], origin.fetch, 0.01) == [content(SPAN)]
    held.write(bytes(LENGTH))
    assert not held.publish()
    held.release()
    read(open_cache(tmp_path), 1, origin)
    assert len(origin.asked) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_another_user_neither_reads_nor_changes_a_row(open_place: Path) -> None:
    """Whoever makes the directory first, or opens it, gets nothing and gives nothing."""
    open_place.chmod(0o777)
    root, origin = HostCache(open_place, max_bytes=1).root, Origin()
    with as_a_user(open_place):
        for name in ("", "entries", "pending", "schedules"):
            (root / name).mkdir()
            (root / name).chmod(0o777)
    cache = open_cache(open_place)
    read(cache, 1, origin)
    cache.put(value("a"), b"footer")
    assert files(open_place) == []
    root.rename(open_place / "aside")
    read(cache, 1, origin)
    assert len(origin.asked) == 2
    assert len(files(open_place)) == 1
    with as_a_user(open_place):
        with pytest.raises(PermissionError):
            list(root.iterdir())
        (open_place / "mine").mkdir()
        root.rename(open_place / "stolen")
        (open_place / "mine").rename(root)
    read(cache, 1, origin)
    assert len(origin.asked) == 3


def test_threads_that_want_a_range_at_once_fetch_it_once(tmp_path: Path) -> None:
    origin, cache = Origin(), open_cache(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: read(cache, number % 3, origin), range(60)))
    assert len(origin.asked) == 3


def test_whoever_waits_goes_on_where_the_other_one_fails(tmp_path: Path) -> None:
    cache, origin = open_cache(tmp_path), Origin()
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Any] = []

        def fail(spans: Sequence[Span]) -> list[Buffer]:
            waiting.append(pool.submit(read, cache, 1, origin))
            raise StoreError("gone")

        with pytest.raises(StoreError):
            cache.ranges(key(1), [SPAN], fail, 60)
        waiting[0].result()
    assert origin.asked == [SPAN]
    assert files(tmp_path, "pending") == []


def test_whoever_has_waited_long_enough_fetches_by_itself(tmp_path: Path) -> None:
    cache, origin = open_cache(tmp_path), Origin()

    def slow(spans: Sequence[Span]) -> list[Buffer]:
        assert cache.ranges(key(1), [SPAN], origin.fetch, 0.01) == [content(SPAN)]
        return origin.fetch(spans)

    cache.ranges(key(1), [SPAN], slow, 60)
    assert len(origin.asked) == 2


@pytest.mark.processes
def test_the_directory_may_be_deleted_or_replaced_by_a_file_at_any_time(tmp_path: Path) -> None:
    origin, cache = Origin(), open_cache(tmp_path)
    for number in range(8):
        read(cache, 1, origin)
        subprocess.run(["rm", "-rf", *map(str, tmp_path.iterdir())], check=True)
        if number == 3:
            HostCache(tmp_path, max_bytes=1).root.write_text("a file")
    assert len(origin.asked) == 8
    read(cache, 1, origin)
    read(cache, 1, origin)
    assert len(origin.asked) <= 10
    read(open_cache(tmp_path), 1, origin)


def bound(trace: list[int], room: int) -> int:
    """Hits of Belady's rule, which may leave out what is read again last."""
    cached: set[int] = set()
    hits = 0
    for now, group in enumerate(trace):
        hits += group in cached
        cached.add(group)
        if len(cached) > room:
            later = trace[now + 1 :]
            cached.remove(max(cached, key=lambda each: later.index(each) if each in later else len(trace)))
    return hits


@pytest.mark.slow
@given(trace=st.lists(st.integers(0, 9), min_size=1, max_size=60), room=st.integers(1, 8))
def test_hits_are_as_many_as_possible(tmp_path_factory: pytest.TempPathFactory, trace: list[int], room: int) -> None:
    directory, origin = tmp_path_factory.mktemp("cache"), Origin()
    cache = open_cache(directory, groups=room)
    numbers = np.array([key(group).number for group in trace], np.uint64)
    cache.foresee("token", ReadSchedule(keys=numbers, times=np.arange(len(trace), dtype=float), num_present=len(trace)))
    for group in trace:
        cache.mark("token", key(group))
        read(cache, group, origin)
        assert len(files(directory)) <= room
    assert len(trace) - len(origin.asked) == bound(trace, room)


@pytest.mark.processes
def test_what_another_process_reads_next_is_kept(tmp_path: Path) -> None:
    """Its schedule counts as long as it lives, whatever its job is."""
    script = """
import sys
import numpy as np
from pathlib import Path
from tests.cache.test_host_cache import key, open_cache
from torch_dataloader_utils.cache.schedules import ReadSchedule
keys = np.array([key(1).number], np.uint64)
cache = open_cache(Path(sys.argv[1]))
cache.foresee("other", ReadSchedule(keys=keys, times=np.zeros(1), num_present=1))
print("ready", flush=True)
sys.stdin.read()
"""
    cache, origin = open_cache(tmp_path, groups=1), Origin()
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        for group in (1, 2, 1, 2, 1):
            read(cache, group, origin)
        assert len(origin.asked) == 3
        other.kill()
        other.wait()
    for group in (2, 2):
        read(cache, group, origin)
    assert len(origin.asked) == 4
    assert files(tmp_path, "schedules") == []


@pytest.mark.slow
@given(st.binary(max_size=200))
def test_a_damaged_schedule_counts_nothing(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    directory = tmp_path_factory.mktemp("cache")
    cache = open_cache(directory, groups=1)
    schedule = ReadSchedule(keys=np.ones(2, np.uint64), times=np.zeros(2), num_present=1)
    cache.foresee("token", schedule)
    (path,) = files(directory, "schedules")
    whole = schedule.encoded()
    for content in (data, whole[: len(data)], whole[:-1] + data):
        path.write_bytes(content)
        read(cache, 1, Origin())
        read(cache, 2, Origin())
        ReadSchedules(path.parents[1]).mark("token", 1)


CRASH = """
import os, sys
from pathlib import Path
from tests.faults import crash_points
from tests.cache.test_host_cache import Origin, files, key, open_cache, read
from torch_dataloader_utils.cache.schedules import ReadSchedule
import numpy as np
root = Path(sys.argv[1])
steps = ("write", "pwrite", "pwritev", "ftruncate", "unlink")

def with_audit(name):
    inner = getattr(os, name)
    def call(*arguments, **options):
        sys.audit("open", "crash-here")
        return inner(*arguments, **options)
    setattr(os, name, call)

for name in steps:
    with_audit(name)

def work():
    cache = open_cache(root, groups=2)
    cache.foresee("token", ReadSchedule(keys=np.array([key(1).number], np.uint64), times=np.zeros(1), num_present=1))
    for group in (1, 2, 3, 1):
        cache.mark("token", key(group))
        read(cache, group, Origin())
    cache.withdraw("token")

def check():
    cache, origin = open_cache(root, groups=2), Origin()
    for group in (1, 2, 3):
        read(cache, group, origin)
    assert len(files(root)) <= 2, files(root)
    assert files(root, "pending") == []
    for left in files(root):
        left.unlink()
    (cache._index._journal).unlink(missing_ok=True)
"""


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
def test_a_crash_at_any_point_costs_no_byte_and_leaves_nothing(tmp_path: Path) -> None:
    assert int(run(CRASH + "print(crash_points.crash_everywhere(work, check))", tmp_path / "crash-here")) > 40


@pytest.mark.processes
def test_a_full_disk_costs_no_byte_and_leaves_nothing(tmp_path: Path) -> None:
    script = CRASH + "crash_points.fill_disk_everywhere(work, check, range(0, 4200, 140))"
    run(script, tmp_path)
    read(open_cache(tmp_path), 1, Origin())


@pytest.mark.processes
def test_processes_fetch_a_range_once_and_stay_within_the_size(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from tests.cache.test_host_cache import Origin, files, open_cache, read
root = Path(sys.argv[1])
for room, most in ((100, 1), (3, 100)):
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            cache = open_cache(root / str(room), groups=room)
            for number in range(60):
                origin = Origin()
                read(cache, number % 10, origin)
                if origin.asked:
                    os.write(1, b"asked %d\\n" % room)
            os._exit(0)
        children.append(pid)
    assert all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in children)
    assert len(files(root / str(room))) <= room
"""
    assert run(script, tmp_path).splitlines().count("asked 100") == 10


def one() -> dict[str, Any]:
    return {}


class Role:
    """Credentials that name their reader."""

    def __init__(self, reader: str) -> None:
        self.reader = reader

    def __call__(self) -> dict[str, Any]:
        return {}


def test_another_access_is_given_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment_credentials():
        monkeypatch.delenv(name)
    accesses = [
        StoreAccess.of({"key": "a", "secret": "b"}),
        StoreAccess.of({"key": "a", "secret": "c"}),
        StoreAccess.of({"anon": True}),
        StoreAccess.of({"anon": True, "endpoint_url": "http://other"}),
        StoreAccess.of({}),
        StoreAccess.of({"session": object()}),
        StoreAccess.of({"session": object()}),
        StoreAccess.of({}, one),
        StoreAccess.of({}, one),
        StoreAccess.of({}, partial(one)),
        StoreAccess.of({}, dict),
        StoreAccess.of({}, dict),
        StoreAccess.of({}, Role("a")),
        StoreAccess.of({}, Role("b")),
    ]
    scopes = [access.scope for access in accesses]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "HF_TOKEN"):
        monkeypatch.setenv(name, "me")
        scopes.append(StoreAccess.of({}).scope)
        assert StoreAccess.of({"secret": "b", "key": "a"}).scope == scopes[0]
    assert len(set(scopes)) == len(scopes)
    assert StoreAccess.of({}, Role("a")).scope == accesses[12].scope
    assert pickle.loads(pickle.dumps(accesses[7])).scope == accesses[7].scope  # as a worker process has it
    assert all(len(scope) == 32 for scope in scopes)


def test_arguments_are_checked(tmp_path: Path) -> None:
    assert HostCache(tmp_path, max_bytes="1KiB").most_bytes == 1024
    with pytest.raises(ConfigTypeError, match="directory is an int"):
        HostCache(1, max_bytes=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_bytes"):
        HostCache(tmp_path, max_bytes=0)
    with pytest.raises(ConfigTypeError, match="cache is a str"):
        RemoteOptions(cache="/tmp")  # type: ignore[arg-type]
    assert HostCache("here", max_bytes=1).root.is_absolute()


def test_a_read_only_directory_serves_what_it_has(open_place: Path, caplog: pytest.LogCaptureFixture) -> None:
    if os.geteuid() == 0:
        os.chown(open_place, 65534, 65534)
    with as_a_user(open_place):
        origin = Origin()
        read(open_cache(open_place), 1, origin)
        for directory in [open_place, *(path for path in open_place.rglob("*") if path.is_dir())]:
            directory.chmod(0o500)
        cache = open_cache(open_place)
        for group in (1, 2, 1, 2):
            read(cache, group, origin)
        assert len(origin.asked) == 3
        assert "the cache in" in caplog.text
        for directory in [open_place, *(path for path in open_place.rglob("*") if path.is_dir())]:
            directory.chmod(0o700)
