"""Limits of open files and of file sizes: errors name the limit, nothing is left behind, and threads need neither."""

import errno
import gc
import multiprocessing
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import recvfds
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._runtime.shared_memory import SharedEpoch
from torch_dataloader_utils._runtime.system_limits import limits_named
from torch_dataloader_utils._store import open_store
from torch_dataloader_utils._store.store_errors import translated
from torch_dataloader_utils.errors import StoreError, WorkerDiedError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory has a name here")
ROWS = 40_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("limits")
    for file in range(2):
        pq.write_table(pa.table({"a": range(ROWS)}), found / f"{file}.parquet", row_group_size=ROWS // 4)
    return str(found)


@contextmanager
def at_most(limit: int, soft: int) -> Iterator[None]:
    before, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(limit, (before, hard))


def open_files() -> int:
    gc.collect()
    return len(_numbers())


def _numbers() -> set[int]:
    return {int(file.name) for file in Path("/proc/self/fd").iterdir()}


def first_number_after(open_now: int) -> int:
    """The lowest limit at which so many more files can be opened: numbers of closed files are used again."""
    used = _numbers()
    free = (number for number in range(100_000) if number not in used)
    return [next(free) for _ in range(open_now + 1)][-1]


def first_free_number() -> int:
    """The highest limit at which no file can be opened any more."""
    free = os.dup(0)
    os.close(free)
    return free


def rows_of(path: str, num_workers: int) -> int:
    """The rows that came. A process that is forked has the limits of this moment; one of a forkserver has others."""
    options = {"num_workers": num_workers, "multiprocessing_context": "fork" if num_workers else None}
    loader, _ = StructuredDataset.create_dataloader(path, batch_size=5_000, **options)
    return sum(len(batch["a"]) for batch in loader)


def test_threads_need_no_file_of_any_size(path: str) -> None:
    with at_most(resource.RLIMIT_FSIZE, 0):
        assert rows_of(path, 0) == 2 * ROWS


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_limit_of_file_sizes_is_named(path: str, num_workers: int) -> None:
    with (
        at_most(resource.RLIMIT_FSIZE, 65_536),
        pytest.raises(StoreError, match=r"File too large.*65,536 bytes.*ulimit -f"),
    ):
        rows_of(path, num_workers)
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.cases(1)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_limit_of_open_files_at_the_start_is_named_and_leaves_nothing(path: str, num_workers: int) -> None:
    rows_of(path, 0)
    before = open_files()
    with (
        at_most(resource.RLIMIT_NOFILE, first_number_after(7)),
        pytest.raises(StoreError, match=r"Too many open files.*ulimit -n"),
    ):
        rows_of(path, num_workers)
    assert not multiprocessing.active_children()
    assert open_files() <= before + 2  # of multiprocessing itself


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [1, 2])
def test_no_number_of_open_files_makes_the_trainer_wait_for_a_lost_batch(path: str, num_workers: int) -> None:
    """From too few to start at all to enough; in between a batch is lost on the way, at one end or the other."""
    rows_of(path, 0)
    for open_now in range(5, 24):
        with at_most(resource.RLIMIT_NOFILE, first_number_after(open_now)), suppress(StoreError, WorkerDiedError):
            assert rows_of(path, num_workers) == 2 * ROWS
        assert not multiprocessing.active_children()


def test_a_descriptor_that_finds_no_room_on_its_arrival_names_the_limit() -> None:
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(here, [b"\x01"], [here.fileno()])  # `recvfds` wants their number
        with (
            at_most(resource.RLIMIT_NOFILE, first_free_number()),
            pytest.raises(StoreError, match=r"No batch came \(Too many open files\).*ulimit -n"),
            limits_named("No batch came"),
        ):
            recvfds(there, 1)


def test_a_local_file_that_cannot_be_opened_names_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"0123")
    store = open_store(str(file))
    with (
        at_most(resource.RLIMIT_NOFILE, first_free_number()),
        pytest.raises(StoreError, match=r"cannot read \(Too many open files\).*ulimit -n"),
    ):
        store.ranges(str(file), [(0, 2)])


def _fail(error: BaseException) -> None:
    raise error


def test_a_limit_that_was_handled_before_is_not_blamed() -> None:
    broken, limit = OSError("broken"), OSError(errno.EMFILE, "Too many open files")
    try:
        raise OSError(errno.EMFILE, "Too many open files")
    except OSError:
        with pytest.raises(StoreError, match=r"cannot read \(OSError: broken\)"), translated("/a", "read"):
            _fail(broken)
        with pytest.raises(OSError, match="broken"), limits_named("That failed"):
            _fail(broken)
        with pytest.raises(StoreError, match="ulimit -n"), translated("/a", "read"):
            _fail(limit)


def _set(epoch: SharedEpoch) -> None:
    epoch.value = 7


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_epoch_that_was_made_below_the_limit_reaches_processes(method: str) -> None:
    with at_most(resource.RLIMIT_FSIZE, 0):
        epoch = SharedEpoch(1)
    process = multiprocessing.get_context(method).Process(target=_set, args=(epoch,))
    process.start()
    process.join(100)
    assert process.exitcode == 0
    assert epoch.value == 7
