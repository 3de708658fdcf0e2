"""Values that every process makes for itself: once for all its threads, also after a fork."""

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interleaved import between_calls_in
from torch_dataloader_utils._store import process_local
from torch_dataloader_utils._store.process_local import ProcessLocal


def test_made_once_for_all_threads():
    made = []
    local = ProcessLocal()
    barrier = threading.Barrier(4)

    def use(_):
        barrier.wait()
        return local.get(lambda: made.append(1) or object())

    with ThreadPoolExecutor(4) as pool:
        assert len(set(map(id, pool.map(use, range(4))))) == 1
    assert made == [1]


def test_a_pickle_carries_nothing_live():
    local = ProcessLocal()
    local.get(threading.Lock)  # cannot be pickled
    assert pickle.loads(pickle.dumps(local)).get(lambda: "new") == "new"


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_its_own_even_while_the_lock_is_held():
    local = ProcessLocal()
    local.get(lambda: "parent")
    local._slot.lock.acquire()
    child = os.fork()
    if child == 0:
        os._exit(0 if local.get(lambda: "child") == "child" else 1)
    local._slot.lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert local.get(lambda: "again") == "parent"


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_child_too_it_is_made_once_for_all_threads():
    local = ProcessLocal()
    local.get(lambda: "parent")
    child = os.fork()
    if child == 0:
        made = []

        def use():
            return local.get(lambda: made.append(1) or object())

        with between_calls_in(process_local, use):
            first = use()
        os._exit(0 if first is use() and made == [1] else 1)
    assert os.waitpid(child, 0)[1] == 0
