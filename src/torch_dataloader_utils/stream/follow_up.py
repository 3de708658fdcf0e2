"""Jobs that need the results of other jobs. The thread that finishes the last of those runs them: no thread waits."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


class Awaited(Protocol[T_co]):
    """A result that may not be there yet."""

    def done(self) -> bool:
        """Whether the result, or an error, is there."""
        ...

    def result(self) -> T_co:
        """Wait for the result and return it, or raise its error."""
        ...


class Pending(Awaited[T_co], Protocol[T_co]):
    """The part of a Future's interface that `FollowUp` needs."""

    def cancelled(self) -> bool:
        """Whether the job was cancelled, so that no result comes."""
        ...

    def exception(self) -> BaseException | None:
        """Wait for the end; the error, or None."""
        ...

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call a function at the end, or now if that was already."""
        ...


class FollowUp(Generic[T, R]):
    """The result of a job that takes the results of `needed`; if one of those failed, its error.

    The thread that finishes the last of `needed` runs the job at once: its core's cache has the data, and the job does
    not queue behind what was submitted to the pool meanwhile. If all were done before, the pool runs the job, or the
    first caller of `result`.
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
        """The job's result, or raise its error; runs the job here if it can begin and no thread has begun it."""
        if self._begin.is_free:
            self._begin.run()
        return self._result.result()


class _Begin(Generic[T, R]):
    """Begins the job, once. Pool and needed results may refer to this for long, so it is empty once the job began."""

    def __init__(self, job: Callable[[list[T]], R], needed: Sequence[Pending[T]], result: "Future[R]") -> None:
        self._work: tuple[Callable[[list[T]], R], Sequence[Pending[T]], Future[R]] | None = (job, needed, result)
        # One more: `add_done_callback` calls back at once for what is done, in a thread that has other things to do.
        self._count = len(needed) + 1
        self._lock = threading.Lock()

    @property
    def is_free(self) -> bool:
        """Whether all needed results are there."""
        return self._count == 0

    def one_is_done(self, _: Any) -> None:
        """The callback of each needed result."""
        if self.count_down():
            self.run()

    def count_down(self) -> bool:
        """One more is done; returns whether it was the last."""
        with self._lock:
            self._count -= 1
            return self._count == 0

    def run(self) -> None:
        """Run the job, unless it was begun."""
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
