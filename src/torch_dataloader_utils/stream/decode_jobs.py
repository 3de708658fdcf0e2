"""Jobs of decoding threads: each decodes one row group, or several small ones to one block.

If small row groups were jobs of their own, the trainer's thread would wake up for each and take the interpreter's lock
from the decoding thread; and two thirds of the time that a small row group takes alone are not decoding.
"""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch_dataloader_utils._core.block import RowGroupReader, Shaper, read_block
from torch_dataloader_utils._core.inventory import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils._runtime.threads import QuickJobs
from torch_dataloader_utils.stream.batch_groups import BlockSlice


class GroupToDecode(NamedTuple):
    """A row group by its number, and which of its live rows are needed."""

    group: int
    rows: GroupRows = ALL_ROWS


JobResult = Sequence[BlockSlice | BaseException]
"""For each row group of a job the rows that are needed of it, or its error."""


class GroupDecoder:
    """Decodes the row groups of a job, in the thread that calls it, and counts them.

    One row group alone is read and converted column by column. Several small ones are joined and converted to one
    block, of which each is a slice. If that fails, each is decoded alone, as if the others were not there: that finds
    the one that is wrong, and gives the rows before it. If then none of them fails, they are of a kind that does not
    join, and no more are joined.

    Jobs that are one call without Python's lock run in parallel; other jobs of several row groups are mostly Python,
    see `QuickJobs`.

    growth: how much larger row groups are once decoded.
    """

    def __init__(self, work: WorkerInput, reader: RowGroupReader, shaper: Shaper, counters: WorkerCounters) -> None:
        self.growth = Growth()
        self._work = work
        self._projected_bytes = work.inventory.groups.projected_bytes
        self._reader = reader
        self._shaper = shaper
        self._counters = counters
        self._quick_jobs = QuickJobs()
        self._do_join = True
        self._decodes_by_one_call = False
        self._is_closed = False

    def close(self) -> None:
        """From now on `decode` raises CancelledError."""
        self._is_closed = True

    def decode(self, groups: Sequence[GroupToDecode]) -> JobResult:
        """The rows of each row group, or its error; raises the error of a row group that is alone."""
        if len(groups) == 1:
            return [self._decode_one(groups[0])]
        job = partial(self._decode_several, groups)
        # The next job is most often like the last one.
        return job() if self._decodes_by_one_call else self._quick_jobs.run(job, len(groups))

    def _decode_several(self, groups: Sequence[GroupToDecode]) -> JobResult:
        if self._do_join:
            try:
                return self._decode_joined(groups)
            except BaseException:  # noqa: BLE001, S110 - decoding each alone raises the error where it belongs
                pass
        alone = list(map(self._rows_or_error, groups))
        self._do_join = self._do_join and any(isinstance(outcome, BaseException) for outcome in alone)
        return alone

    def _decode_joined(self, groups: Sequence[GroupToDecode]) -> list[BlockSlice]:
        tasks = [self._task(each.group) for each in groups]
        with self._counters.decoding() as counts:
            parts, rows, self._decodes_by_one_call = self._reader.read_together(tasks)
            block = self._shaper.block(parts)
            counts.decoded_groups += len(groups)
            counts.decoded_bytes += block.num_bytes
        self.growth.learn(sum(int(self._projected_bytes[each.group]) for each in groups), block.num_bytes)
        wholes = BlockSlice.one_after_other(block, rows)
        return [whole.cut(*each.rows) for whole, each in zip(wholes, groups, strict=True)]

    def _decode_one(self, needed: GroupToDecode) -> BlockSlice:
        task = self._task(needed.group)
        with self._counters.decoding() as counts:
            block = read_block(self._reader, self._shaper, task, needed.rows)
            counts.decoded_groups += 1
            counts.decoded_bytes += block.num_bytes
        share = block.num_rows / task.live_rows if task.live_rows > 0 else 1  # 1 too where nobody has counted them
        self.growth.learn(int(share * self._projected_bytes[needed.group]), block.num_bytes)
        return BlockSlice.of(block)

    def _rows_or_error(self, needed: GroupToDecode) -> BlockSlice | BaseException:
        try:
            return self._decode_one(needed)
        except BaseException as error:  # noqa: BLE001 - raised where the rows are taken, as executors do
            return error

    def _task(self, group: int) -> RowGroupTask:
        if self._is_closed:
            raise CancelledError
        return self._work.task(group)


class Growth:
    """Decoded bytes divided by projected bytes, of the row groups decoded so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._projected_bytes = self._decoded_bytes = 0

    def learn(self, projected_bytes: int, decoded_bytes: int) -> None:
        """Take row groups that were decoded into account."""
        with self._lock:
            self._projected_bytes += projected_bytes
            self._decoded_bytes += decoded_bytes

    @property
    def ratio(self) -> float:
        """At least 1; infinity before anything was decoded."""
        return max(1.0, self._decoded_bytes / self._projected_bytes) if self._projected_bytes else math.inf


class DecodeJob:
    """The row groups that one job decodes, and its pending result. left: how many of them are still needed."""

    __slots__ = ("_result", "groups", "left")

    def __init__(self, groups: Sequence[int], result: "Future[JobResult]") -> None:
        self.groups = groups
        self.left = len(groups)
        self._result = result

    def rows(self, group: int) -> "PendingRows":
        """The rows of one of the row groups."""
        return PendingRows(self._result, self.groups.index(group))


class PendingRows:
    """The pending rows of one row group of a job. No Future: making one takes half as long as decoding."""

    __slots__ = ("_index", "_job")

    def __init__(self, job: "Future[JobResult]", index: int) -> None:
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
        error = self._job.exception()
        return self._job.result()[self._index] if error is None else error


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
    """The part of a Future's interface that `DependentJob` needs."""

    def cancelled(self) -> bool:
        """Whether the job was cancelled, so that no result comes."""
        ...

    def exception(self) -> BaseException | None:
        """Wait for the end; the error, or None."""
        ...

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call a function at the end, or now if that was already."""
        ...


class DependentJob(Generic[T, R]):
    """The result of a job that takes the results of `needed`; if one of those failed, its error.

    The thread that finishes the last of `needed` runs the job at once: its core's cache has the data, and the job does
    not queue behind what was submitted to the pool meanwhile. If all were done before, the pool runs the job, or the
    first caller of `result`.
    """

    def __init__(self, pool: Executor, job: Callable[[list[T]], R], needed: Sequence[Pending[T]]) -> None:
        self._result: Future[R] = Future()
        self._begin = _Start(job, needed, self._result)
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


class _Start(Generic[T, R]):
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
