"""`Counts`: counts and times of one thread, which other threads and processes read while they grow.

The storage layer adds requests, retries, bytes and waiting to those of the calling thread.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

COUNTED = (
    "decoded_groups",
    "released_groups",
    "decoded_bytes",
    "requests",
    "retries",
    "fetched_bytes",
    "fetch_ns",
    "decode_ns",
    "stall_ns",
    "transform_ns",
    "make_ns",
)


class Counts(ctypes.Structure):
    """Integers of 64 bits, written by one thread at a time; `Counts.from_buffer` puts them into shared memory.

    decoded_groups, decoded_bytes: row groups read and shaped, and the memory they took. released_groups: used up.
    requests, retries, fetched_bytes: sent to remote storage, sent again after a failure, received.
    fetch_ns: waiting for remote storage. decode_ns: reading, decoding and shaping, with fetch_ns. stall_ns: waiting for
    a row group that is not decoded. transform_ns: in functions of the user. make_ns: of a worker process, making
    answers, with stall_ns and transform_ns.

    A time that is being spent is negative: what was spent before, minus the clock when it began. So it begins and ends
    by one write, and a reader who adds the clock has what was spent up to now. The clock is the same in all processes.
    """

    _fields_ = [(name, ctypes.c_int64) for name in COUNTED]

    decoded_groups: int
    released_groups: int
    decoded_bytes: int
    requests: int
    retries: int
    fetched_bytes: int
    fetch_ns: int
    decode_ns: int
    stall_ns: int
    transform_ns: int
    make_ns: int


@contextmanager
def during(counts: Counts, name: str) -> Iterator[None]:
    """Inside, time passes in one of the counts' times; not for one that passes already."""
    setattr(counts, name, getattr(counts, name) - perf_counter_ns())
    try:
        yield
    finally:
        setattr(counts, name, getattr(counts, name) + perf_counter_ns())


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.counts = Counts()


_of_thread = _OfThread()


def thread_requests() -> Counts:
    """The counts of the calling thread: those of the job that it does, or else its own."""
    return _of_thread.counts


def count_thread_in(counts: Counts) -> Counts:
    """Count what the calling thread does in these from now on; returns the ones before."""
    before = _of_thread.counts
    _of_thread.counts = counts
    return before


@contextmanager
def fetching() -> Iterator[None]:
    """Inside, the calling thread waits for remote storage; also a decorator."""
    with during(thread_requests(), "fetch_ns"):
        yield
