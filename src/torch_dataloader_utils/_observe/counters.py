"""Counters of one worker, always on, in memory that other threads and processes read at any time."""

import ctypes
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TypeVar

import numpy as np
import numpy.typing as npt

# Counts of several kinds. `Metrics` documents each kind; exporters give the kind as a label.
KINDS = {
    "column_chunks": ("compiled", "type", "encoding", "codec", "damaged", "turned_off", "not_built"),
    "requests_by_time": ("to_10ms", "to_100ms", "to_1s", "to_10s", "over_10s"),
    "request_errors": ("throttled", "server", "refused", "connection"),
    "cache_events": ("hits", "misses", "evictions", "damaged", "bypassed"),
}
_TIME_LIMITS_SECONDS = (0.01, 0.1, 1.0, 10.0)

COUNTED = (
    *(f"{name}.{kind}" for name, kinds in KINDS.items() for kind in kinds),
    "decoded_groups",
    "released_groups",
    "decoded_bytes",
    "requests",
    "retries",
    "hedges",
    "fetched_bytes",
    "cached_bytes",
    "fetch_ns",
    "decode_ns",
    "stall_ns",
    "transform_ns",
    "make_ns",
)


class Counts(ctypes.Structure):
    """Integers of 64 bits, written by one thread at a time; `Counts.from_buffer` places them in shared memory.

    decoded_groups, decoded_bytes: row groups decoded and shaped, and the memory of their rows.
    released_groups: decoded row groups that are used up.
    requests, retries, fetched_bytes: requests to remote storage, requests after a failure, bytes received.
    hedges: requests that were sent a second time because their reply did not begin; requests counts them too.
    cached_bytes: bytes read from the cache of this host.
    fetch_ns: waiting for remote storage. decode_ns: reading, decoding and shaping, fetch_ns included.
    stall_ns: waiting for a row group that is not decoded yet. transform_ns: in functions of the user.
    make_ns: in a worker process, making responses; stall_ns and transform_ns included.
    The counts of KINDS are attributes with a dot in the name, such as "cache_events.hits"; see `count`.

    A running time is negative: the time spent before, minus the clock at the start. So one write starts it, one write
    ends it, and a reader adds the clock to get the time up to now. All processes share the clock.
    """

    _fields_ = [(name, ctypes.c_int64) for name in COUNTED]

    decoded_groups: int
    released_groups: int
    decoded_bytes: int
    requests: int
    retries: int
    hedges: int
    fetched_bytes: int
    cached_bytes: int
    fetch_ns: int
    decode_ns: int
    stall_ns: int
    transform_ns: int
    make_ns: int

    def add(self, other: "Counts") -> None:
        """Add the numbers of another thread that worked for this one, without its times."""
        for name in COUNTED:
            if not name.endswith("_ns"):
                setattr(self, name, getattr(self, name) + getattr(other, name))


@contextmanager
def during(counts: Counts, name: str) -> Iterator[None]:
    """Count the time inside under `name`, such as "stall_ns"; the time of that name must not be running already."""
    setattr(counts, name, getattr(counts, name) - perf_counter_ns())
    try:
        yield
    finally:
        setattr(counts, name, getattr(counts, name) + perf_counter_ns())


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.counts = Counts()


_of_thread = _OfThread()


def thread_counts() -> Counts:
    """Return the counts of the calling thread: the counts of its job, or its own outside of jobs."""
    return _of_thread.counts


def count_thread_in(counts: Counts) -> Counts:
    """Let the calling thread count in `counts` from now on; return its earlier counts."""
    before = _of_thread.counts
    _of_thread.counts = counts
    return before


def count(name: str, kind: str, number: int = 1) -> None:
    """Add to a count of the calling thread. name, kind: see `KINDS`."""
    counts, full_name = thread_counts(), f"{name}.{kind}"
    setattr(counts, full_name, getattr(counts, full_name) + number)


def count_chunks(kind: str, number: int = 1) -> None:
    """Count column chunks that the calling thread decodes; a kind that is not in `KINDS` counts as damaged."""
    count("column_chunks", kind if kind in KINDS["column_chunks"] else "damaged", number)


def count_times(seconds: Iterable[float]) -> None:
    """Count requests of the calling thread by their duration, whether they were answered or not."""
    for each in seconds:
        count("requests_by_time", KINDS["requests_by_time"][bisect_left(_TIME_LIMITS_SECONDS, each)])


@contextmanager
def fetching() -> Iterator[None]:
    """Count the time inside as waiting for remote storage; also a decorator."""
    with during(thread_counts(), "fetch_ns"):
        yield


T = TypeVar("T")

Int64s = npt.NDArray[np.int64]


def counts_shape(threads: int) -> tuple[int, int]:
    """Return the shape of a worker's counts: one row for its main thread, and one for each job of decoding threads.

    There are twice as many jobs as threads, because jobs of an abandoned pass may still run in the next pass.
    """
    return (1 + 2 * threads, len(COUNTED))


def totals(memory: Int64s, now_ns: int) -> dict[str, int]:
    """Return the sums of all counts in a memory of shape [..., len(COUNTED)]; running times count up to now_ns."""
    counts = memory.reshape(-1, len(COUNTED)).copy()
    spent = np.where(counts < 0, np.maximum(counts + now_ns, 0), counts)
    return dict(zip(COUNTED, spent.sum(axis=0).tolist(), strict=True))


class WorkerCounters:
    """Counters of one worker, in `memory` of `counts_shape`; None: in private memory.

    rows: rows delivered in batches. main: counts of the thread that takes batches; only this thread writes both.
    """

    __slots__ = ("_spare", "main", "memory", "rows")

    def __init__(self, memory: Int64s | None = None) -> None:
        self.memory = np.zeros(counts_shape(1), dtype=np.int64) if memory is None else memory
        self.rows = 0
        self.main, *jobs = map(Counts.from_buffer, self.memory)
        self._spare = deque(jobs)

    @contextmanager
    def decoding(self) -> Iterator[Counts]:
        """Count the time and the requests of the calling thread inside as decoding; give the counts."""
        # Empty only if pass after pass was abandoned with running jobs; further jobs are not counted.
        counts = self._spare.pop() if self._spare else Counts()
        before = count_thread_in(counts)
        counts.decode_ns -= perf_counter_ns()
        try:
            yield counts
        finally:
            counts.decode_ns += perf_counter_ns()
            count_thread_in(before)
            self._spare.append(counts)

    def count_stall(self, wait: Callable[[], T]) -> T:
        """Return the result of `wait()`; the time counts as a stall."""
        with during(self.main, "stall_ns"):
            return wait()
