"""Work over the results of other work, done by the thread that finishes last: nothing in a pool waits for the pool."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


class Awaited(Protocol[T_co]):
    """Something that is under way."""

    def done(self) -> bool:
        """Whether it has come to an end."""
        ...

    def result(self) -> T_co:
        """What came of it, or its error; waits for it."""
        ...


class Pending(Awaited[T_co], Protocol[T_co]):
    """The same, with what else of a Future is asked where work follows on it."""

    def cancelled(self) -> bool:
        """Whether it never comes."""
        ...

    def exception(self) -> BaseException | None:
        """Its error, if there is one; waits for it."""
        ...

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call a function at its end, or now if it has come to one."""
        ...


class FollowUp(Generic[T, R]):
    """A job over the results of `needed`, to be done once all of them are there; or the error of one that failed.

    The thread that finishes the last of them does the job at once: what it has just made is in its core's cache, and
    nothing that was submitted to the pool meanwhile comes before. If all were done from the beginning, the pool does
    it, or the first who wants the result.
    """

    def __init__(self, pool: Executor, job: Callable[[list[T]], R], needed: Sequence[Pending[T]]) -> None:
        self._result: Future[R] = Future()
        self._begin = _Begin(job, needed, self._result)
        for future in needed:
            future.add_done_callback(self._begin.one_is_done)
        if self._begin.count_down():
            pool.submit(self._begin.run)

    def done(self) -> bool:
        """Whether the result is there."""
        return self._result.done()

    def result(self) -> R:
        """What the job gave, or its error; does it here if it can begin and nobody has begun."""
        if self._begin.is_free:
            self._begin.run()
        return self._result.result()


class _Begin(Generic[T, R]):
    """What the needed work and the pool refer to, which may outlive the result by far: empty once the job has begun."""

    def __init__(self, job: Callable[[list[T]], R], needed: Sequence[Pending[T]], result: "Future[R]") -> None:
        self._work: tuple[Callable[[list[T]], R], Sequence[Pending[T]], Future[R]] | None = (job, needed, result)
        # One more: `add_done_callback` calls back at once for what is done, in a thread that has other things to do.
        self._count = len(needed) + 1
        self._lock = threading.Lock()

    @property
    def is_free(self) -> bool:
        """Whether nothing is waited for any more."""
        return self._count == 0

    def one_is_done(self, _: Any) -> None:
        """What is waited for calls this at its end."""
        if self.count_down():
            self.run()

    def count_down(self) -> bool:
        """One is done; says whether it was the last."""
        with self._lock:
            self._count -= 1
            return self._count == 0

    def run(self) -> None:
        """Do the job, if nobody has begun it."""
        with self._lock:
            work, self._work = self._work, None
        if work is None:
            return
        job, needed, result = work
        error = next(filter(None, map(_error, needed)), None)
        if error is not None:  # not raised here: it is kept by what failed, and would keep this frame
            result.set_exception(error)
            return
        try:
            made = job([future.result() for future in needed])
        except BaseException as raised:  # noqa: BLE001 - raised where the result is taken, as executors do
            result.set_exception(raised)
        else:
            result.set_result(made)
        finally:
            del work, job, needed, result  # an error of the job refers to this frame


def _error(done: Pending[Any]) -> BaseException | None:
    return CancelledError() if done.cancelled() else done.exception()
