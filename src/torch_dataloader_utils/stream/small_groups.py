"""Small row groups: one job decodes several of them, to one block.

One by one, the trainer's thread would wake up for each and take the interpreter's lock from the decoding thread; and
two thirds of the time that a small row group takes alone are not decoding.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from torch_dataloader_utils._core.block import Block, JoinedGroups
from torch_dataloader_utils._runtime.threads import Turns
from torch_dataloader_utils.stream.batch_groups import BlockSlice

Wanted = tuple[int, int | None]
"""A row group and its `stop_row`: how many of its first rows are needed (None: all)."""

MOST_TOGETHER = 64
"""Row groups of one job. 64 of 20 KB take 4 to 8 ms; at worst the trainer waits so long for the first of them."""

MOST_BYTES_TOGETHER = 2 << 20
"""Stored bytes of one job, so that larger row groups do not take longer."""

JobRows = JoinedGroups | list[BlockSlice | BaseException]
"""What a job gives: all row groups as one block; or, for each row group, its rows or its error."""


class JointDecode:
    """The row groups of one job, and its pending result."""

    __slots__ = ("_job", "groups")

    def __init__(self, groups: Sequence[int], job: "Future[JobRows]") -> None:
        self.groups = groups
        self._job = job

    def done(self) -> bool:
        """Whether the job has ended."""
        return self._job.done()

    def result(self) -> Block | None:
        """The block of all row groups, in order; None if they were not decoded to one block.

        Raises:
            CancelledError: the decoder was closed before.
        """
        rows = None if self._job.exception() else self._job.result()
        return rows.block if isinstance(rows, JoinedGroups) else None

    def rows(self, group: int) -> "RowsOfOne":
        """All rows of one of the row groups."""
        return RowsOfOne(self._job, self.groups.index(group))


class RowsOfOne:
    """The pending rows of one row group of a job. No Future: making one takes half as long as decoding."""

    __slots__ = ("_index", "_job")

    def __init__(self, job: "Future[JobRows]", index: int) -> None:
        self._job = job
        self._index = index

    def done(self) -> bool:
        """Whether the rows, or their error, are there."""
        return self._job.done()

    def cancelled(self) -> bool:
        """Whether the job was cancelled, so that the rows never come."""
        return self._job.cancelled()

    def result(self) -> BlockSlice:
        """The rows, or their error."""
        outcome = self._outcome()
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # it refers to this frame
        return outcome

    def exception(self) -> BaseException | None:
        """The error in place of the rows, or None."""
        outcome = self._outcome()
        return outcome if isinstance(outcome, BaseException) else None

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call a function once the job has ended."""
        self._job.add_done_callback(function)

    def _outcome(self) -> BlockSlice | BaseException:
        failure = self._job.exception()
        if failure is not None:
            return failure
        rows = self._job.result()
        if not isinstance(rows, JoinedGroups):
            return rows[self._index]
        start = sum(rows.rows[: self._index])
        return BlockSlice(rows.block, start, start + rows.rows[self._index])


class SmallGroups:
    """Starts jobs over several row groups, in a pool that others use too.

    decode: decodes one row group. decode_joined: decodes several to one block. Jobs that are one call of pyarrow run in
    parallel; the others are mostly Python, and run one at a time as long as they are quick (see `Turns`).
    """

    def __init__(
        self,
        pool: Executor,
        decode: Callable[[Wanted], Block],
        decode_joined: Callable[[Sequence[Wanted]], JoinedGroups],
    ) -> None:
        self._pool = pool
        self._decode = decode
        self._decode_joined = decode_joined
        self._turns = Turns()
        self._do_join = True
        self._takes_one_call = False

    def start(self, wanted: Sequence[Wanted]) -> JointDecode:
        """Start one job for these; errors are raised where the rows are taken."""
        return JointDecode([group for group, _ in wanted], self._pool.submit(self._run, wanted))

    def _run(self, wanted: Sequence[Wanted]) -> JobRows:
        job = partial(self._rows, wanted)
        # The next job is most often like the last one.
        return job() if self._takes_one_call else self._turns.take(job, len(wanted))

    def _rows(self, wanted: Sequence[Wanted]) -> JobRows:
        joined = self._joined(wanted) if self._do_join else None
        if joined is not None:
            return joined
        alone = list(map(self._outcome, wanted))
        # If each of them decodes alone, these row groups do not join, and so the next ones will not either.
        self._do_join = self._do_join and any(isinstance(outcome, BaseException) for outcome in alone)
        return alone

    def _joined(self, wanted: Sequence[Wanted]) -> JoinedGroups | None:
        try:
            joined = self._decode_joined(wanted)
        except BaseException:  # noqa: BLE001 - decoding them one by one finds the one that fails, and raises its error there
            return None
        self._takes_one_call = joined.by_one_call
        return joined

    def _outcome(self, wanted: Wanted) -> BlockSlice | BaseException:
        try:
            return BlockSlice.of(self._decode(wanted))
        except BaseException as error:  # noqa: BLE001 - raised where the rows are taken, as executors do
            return error


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
