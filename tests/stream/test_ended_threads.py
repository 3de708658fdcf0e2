"""Forks do not meet the threads of ended passes: pyarrow's allocator has a lock while a thread ends."""

import os
import threading
import time
from pathlib import Path

import pytest

from tests.stream.tables import write_table
from torch_dataloader_utils import Decoding, StructuredDataset
from torch_dataloader_utils._runtime import threads as thread_pool
from torch_dataloader_utils._runtime.threads import ThreadPool

TASKS = Path("/proc/self/task")

pytestmark = [
    pytest.mark.skipif(not TASKS.exists(), reason="says which threads there are"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def fork():
    """The ids of the threads that there were."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    left = {int(task.name) for task in TASKS.iterdir()}
    assert os.waitpid(child, 0)[1] == 0
    return left


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole pass", "broken off"])
def test_the_threads_of_a_pass_that_ended_are_gone(tmp_path, is_whole):
    write_table(tmp_path, [[40] * 8])
    loader, _ = StructuredDataset.create_dataloader(
        str(tmp_path), batch_size=8, num_workers=0, shuffle=False, decoding=Decoding(threads=8)
    )
    for _ in range(10):
        batches = iter(loader)
        next(batches)
        ended = {thread.native_id for thread in threading.enumerate() if thread.name.startswith("tdu-decode")}
        if is_whole:
            list(batches)
        del batches
        assert ended
        assert ended.isdisjoint(fork())


@pytest.mark.processes
def test_a_job_that_takes_long_delays_one_fork_only_by_a_second():
    pool, may_end = ThreadPool(1, "late"), threading.Event()
    job = pool.submit(may_end.wait)
    pool.shutdown(wait=False)
    fork()
    assert not job.done()
    may_end.set()
    assert job.result()


@pytest.mark.processes
def test_a_thread_that_leaves_after_the_second_is_gone_at_the_next_fork(monkeypatch):
    pool, may_end = ThreadPool(1, "leaves"), threading.Event()
    job = pool.submit(may_end.wait)
    (thread,) = [each for each in threading.enumerate() if each.name.startswith("leaves")]
    pool.shutdown(wait=False)
    fork()
    asked = []

    def is_there(left):
        asked.append(left)
        return len(asked) < 3  # as if the system were slow to end it

    monkeypatch.setattr(thread_pool, "_is_there", is_there)
    may_end.set()
    assert job.result()
    thread.join()
    fork()
    fork()
    assert asked == [thread] * 3  # and it is forgotten then


def test_a_pool_whose_threads_are_gone_is_forgotten_when_the_next_one_is_shut_down():
    pool = ThreadPool(1, "test")
    native_id = pool.submit(threading.get_native_id).result()
    pool.shutdown()
    while (TASKS / str(native_id)).exists():
        time.sleep(0.001)
    ThreadPool(1, "test").shutdown()
    known = [thread.native_id for each in thread_pool._shut_down for thread in each.threads]
    assert native_id not in known


@pytest.mark.processes
def test_a_job_of_an_ended_pool_may_fork():
    pool, is_shut_down = ThreadPool(1, "late"), threading.Event()
    job = pool.submit(lambda: is_shut_down.wait() and threading.get_native_id() in fork())
    pool.shutdown(wait=False)
    is_shut_down.set()
    assert job.result()
