"""Work in threads or in the user's executor: results in order, the first error in its place, no thread left."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from torch_dataloader_utils._runtime.parallel import map_in_order, map_quick, map_watched


class CountingExecutor(ThreadPoolExecutor):
    """Knows how many results nobody has taken yet."""

    def __init__(self) -> None:
        super().__init__(4)
        self.submitted = 0

    def submit(self, *args, **kwargs):
        self.submitted += 1
        return super().submit(*args, **kwargs)


def test_results_come_in_order_and_few_are_pending():
    with CountingExecutor() as executor:
        for taken, result in enumerate(map_in_order(lambda i: i * i, range(100), executor, 5)):
            assert result == taken * taken
            assert executor.submitted <= taken + 5


def test_an_error_leaves_at_its_place_and_the_rest_is_not_begun():
    with CountingExecutor() as executor:
        results = map_in_order(lambda i: 1 // (3 - i), range(100), executor, 5)
        assert [next(results) for _ in range(3)] == [0, 0, 1]
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert executor.submitted < 15


def test_quick_work_is_done_here_in_order():
    with CountingExecutor() as executor:
        assert list(map_quick(lambda i: i * i, range(100), executor, 5)) == [i * i for i in range(100)]
        assert executor.submitted == 0
        assert list(map_quick(str, [], executor, 5)) == []


def test_work_that_waits_is_given_to_the_executor_soon():
    here, waiting = threading.get_ident(), threading.Event()

    def wait(item):
        waiting.wait(0.002)
        return item, threading.get_ident() == here

    with CountingExecutor() as executor:
        results = list(map_quick(wait, range(60), executor, 5))
    assert [item for item, _ in results] == list(range(60))
    assert [was_here for _, was_here in results] == [True] * 7 + [False] * 53


def test_threads_are_gone_when_all_is_done():
    """A process that forks then has no other thread."""
    before = set(threading.enumerate())
    for _ in range(20):
        assert map_watched(abs, range(-64, 0), threads=16, name="tdu-test") == list(range(64, 0, -1))
        assert set(threading.enumerate()) <= before
