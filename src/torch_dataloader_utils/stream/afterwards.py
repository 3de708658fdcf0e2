"""Work over the results of other work, done by the thread that finishes last: nothing in a pool waits for the pool."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class FollowUp(Generic[T, R]):
    """A job to be done once all of `needed` are done, whether they have failed or not.

    The thread in which the last one ends does it there and then, before anything that was submitted to the pool
    meanwhile, and while what it has just made is in its core's cache. Where all are done from the beginning, whoever
    comes first does it: the pool, or who wants the result.
    """

    def __init__(self, pool: Executor, job: Callable[[], R], needed: Sequence["Future[T]"]) -> None:
        self._result: Future[R] = Future()
        self._job: Callable[[], R] | None = job
        # One more: `add_done_callback` calls back at once for what is done, and this thread has other things to do.
        self._count = len(needed) + 1
        self._lock = threading.Lock()
        for future in needed:
            future.add_done_callback(self._one_is_done)
        if self._count_down():
            pool.submit(self._run)

    @property
    def is_done(self) -> bool:
        """Whether the result is there."""
        return self._result.done()

    def result(self) -> R:
        """What the job gave, or its error; does it here if it can begin and nobody has begun."""
        if self._count == 0:
            self._run()
        return self._result.result()

    def _one_is_done(self, _: "Future[T]") -> None:
        if self._count_down():
            self._run()

    def _count_down(self) -> bool:
        with self._lock:
            self._count -= 1
            return self._count == 0

    def _run(self) -> None:
        with self._lock:  # and let go of the job: what it needed refers to this for as long as it lives
            job, self._job = self._job, None
        if job is None:
            return
        try:
            self._result.set_result(job())
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken, as executors do
            self._result.set_exception(error)
