"""Run jobs in decoding threads: a job decodes one row group, or several small row groups to one block.

With one job for each small row group, the trainer's thread would wake up for every row group and take the interpreter's
lock from the decoding thread. Also, two thirds of the time of such a job would not be decoding.
"""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch_dataloader_utils._core.block import RowGroupReader, Shaper, read_block
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils._runtime.threads import QuickJobs
from torch_dataloader_utils.stream.batch_groups import BlockSlice


class GroupToDecode(NamedTuple):
    """Number of a row group, and the range of its live rows that is needed."""

    group: int
    rows: GroupRows = ALL_ROWS


JobResult = Sequence[BlockSlice | BaseException]
"""For each row group of a job its needed rows, or its error."""


class GroupDecoder:
    """Decoder of a job's row groups: runs in the calling thread, and counts row groups and bytes.

    A single row group is read and converted column by column. Several small row groups are joined and converted to one
    block, and each row group is a slice of the block. If joining fails, each row group is decoded alone: this finds the
    bad row group and gives the rows before it. If all row groups decode alone, their kind cannot be joined, and no more
    row groups are joined.

    Jobs that are one call without Python's lock run in parallel. Other jobs of several row groups are mostly Python,
    see `QuickJobs`.

    growth: ratio of decoded bytes to projected bytes.
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
        """Make `decode` raise CancelledError from now on."""
        self._is_closed = True

    def decode(self, groups: Sequence[GroupToDecode]) -> JobResult:
        """Return the rows of each row group, or its error. For a single row group, raise its error."""
        if len(groups) == 1:
            return [self._decode_one(groups[0])]
        job = partial(self._decode_several, groups)
        # The next job is most often like the last job.
        return job() if self._decodes_by_one_call else self._quick_jobs.run(job, len(groups))

    def _decode_several(self, groups: Sequence[GroupToDecode]) -> JobResult:
        if self._do_join:
            try:
                return self._decode_joined(groups)
            except BaseException:  # noqa: BLE001, S110 - decoding row groups alone finds the one with the error
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
            num_bytes = block.num_bytes
            counts.decoded_bytes += num_bytes
        share = block.num_rows / task.live_rows if task.live_rows > 0 else 1  # also 1 without row counts
        self.growth.learn(int(share * self._projected_bytes[needed.group]), num_bytes)
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
    """Ratio of decoded bytes to projected bytes, of the row groups decoded so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._projected_bytes = self._decoded_bytes = 0

    def learn(self, projected_bytes: int, decoded_bytes: int) -> None:
        """Add the bytes of decoded row groups."""
        with self._lock:
            self._projected_bytes += projected_bytes
            self._decoded_bytes += decoded_bytes

    @property
    def ratio(self) -> float:
        """Ratio of decoded to projected bytes: at least 1; infinity before the first row group was decoded."""
        return max(1.0, self._decoded_bytes / self._projected_bytes) if self._projected_bytes else math.inf


class DecodeJob:
    """Job that decodes row groups, with its pending result. left: number of row groups that are still needed."""

    __slots__ = ("_result", "groups", "left")

    def __init__(self, groups: Sequence[int], result: "Future[JobResult]") -> None:
        self.groups = groups
        self.left = len(groups)
        self._result = result

    def rows(self, group: int) -> "PendingRows":
        """Return the pending rows of one of the row groups."""
        return PendingRows(self._result, self.groups.index(group))


class PendingRows:
    """Pending rows of one row group of a job. Not a Future: making a Future takes half as long as decoding."""

    __slots__ = ("_index", "_job")

    def __init__(self, job: "Future[JobResult]", index: int) -> None:
        self._job = job
        self._index = index

    def done(self) -> bool:
        """Return whether the rows, or their error, are available."""
        return self._job.done()

    def cancelled(self) -> bool:
        """Return whether the job was cancelled, so that the rows never come."""
        return self._job.cancelled()

    def result(self) -> BlockSlice:
        """Wait for the rows and return them, or raise their error."""
        outcome = self._outcome()
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # it refers to this frame
        return outcome

    def exception(self) -> BaseException | None:
        """Wait for the end of the job. Return the error of the rows, or None."""
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
    """Result that may still be pending."""

    def done(self) -> bool:
        """Return whether the result, or an error, is available."""
        ...

    def result(self) -> T_co:
        """Wait for the result and return it, or raise its error."""
        ...


class Pending(Awaited[T_co], Protocol[T_co]):
    """Part of a Future's interface that `DependentJob` needs."""

    def cancelled(self) -> bool:
        """Return whether the job was cancelled, so that no result comes."""
        ...

    def exception(self) -> BaseException | None:
        """Wait for the end. Return the error, or None."""
        ...

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call a function at the end, or now if the end has come."""
        ...


class DependentJob(Generic[T, R]):
    """Job that takes the results of `needed`. If a needed result is an error, the job's result is this error.

    The thread that finishes the last of `needed` runs the job at once: its core's cache has the data, and the job does
    not queue behind jobs that were submitted to the pool meanwhile. If all results were available before, the pool or
    the first caller of `result` runs the job.
    """

    def __init__(self, pool: Executor, job: Callable[[list[T]], R], needed: Sequence[Pending[T]]) -> None:
        self._result: Future[R] = Future()
        self._begin = _Start(job, needed, self._result)
        for future in needed:
            future.add_done_callback(self._begin.one_is_done)
        if self._begin.count_down():
            pool.submit(self._begin.run)

    def done(self) -> bool:
        """Return whether the result is available."""
        return self._result.done()

    def cancelled(self) -> bool:
        """Return False: a job whose needed results do not come has an error."""
        return False

    def result(self) -> R:
        """Return the job's result, or raise its error. Runs the job here if it can begin and no thread has begun it."""
        if self._begin.is_free:
            self._begin.run()
        return self._result.result()

    def exception(self) -> BaseException | None:
        """Return the job's error, or None; see `result`."""
        if self._begin.is_free:
            self._begin.run()
        return self._result.exception()

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call a function at the end, or now if the end has come."""
        self._result.add_done_callback(function)


class _Start(Generic[T, R]):
    """Single start of a job. Pool and needed results may refer to this object for long, so it drops a started job."""

    def __init__(self, job: Callable[[list[T]], R], needed: Sequence[Pending[T]], result: "Future[R]") -> None:
        self._work: tuple[Callable[[list[T]], R], Sequence[Pending[T]], Future[R]] | None = (job, needed, result)
        # Plus one: `add_done_callback` calls back at once if a result is available, in a thread that must not run jobs.
        self._count = len(needed) + 1
        self._lock = threading.Lock()

    @property
    def is_free(self) -> bool:
        """True if all needed results are available."""
        return self._count == 0

    def one_is_done(self, _: object) -> None:
        """Count one needed result, and run the job after the last. This is the callback of each needed result."""
        if self.count_down():
            self.run()

    def count_down(self) -> bool:
        """Count one more result. Return whether it was the last."""
        with self._lock:
            self._count -= 1
            return self._count == 0

    def run(self) -> None:
        """Run the job unless it has begun."""
        with self._lock:
            work, self._work = self._work, None
        if work is None:
            return
        job, needed, result = work
        error = next(filter(None, map(_error, needed)), None)
        if error is not None:  # not raised here: the failed result keeps the error, and the error would keep this frame
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
