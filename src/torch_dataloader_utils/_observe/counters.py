"""The counts of one worker during one pass: plain integers, cheap enough to be always on."""

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol, TypeVar

from torch_dataloader_utils._observe.requests import thread_requests


class _Sized(Protocol):
    @property
    def num_bytes(self) -> int: ...


T = TypeVar("T")
Decoded = TypeVar("Decoded", bound=_Sized)

Tally = tuple[int, ...]
"""A worker's counts at one moment, in the order of `COUNTED`; what travels from a worker process with each batch."""

COUNTED = (
    "rows",
    "decoded_groups",
    "released_groups",
    "decoded_bytes",
    "decode_ns",
    "stall_ns",
    "requests",
    "retries",
    "fetched_bytes",
)


class WorkerCounters:
    """The counts of one worker, one pass.

    rows: handed out in batches. decoded_groups, decoded_bytes, decode_ns: row groups read and shaped, the memory they
    took, and the time of it, all decoding threads added up. released_groups: used up. stall_ns: waited for a row group
    that was not decoded yet. requests, retries, fetched_bytes: see RequestCounts.

    `rows`, `released_groups` and `stall_ns` belong to the thread that takes batches; the others are added to by the
    decoding threads, under a lock, once for what is decoded at once.
    """

    __slots__ = (*COUNTED, "_lock")

    def __init__(self) -> None:
        self.rows = 0
        self.decoded_groups = 0
        self.released_groups = 0
        self.decoded_bytes = 0
        self.decode_ns = 0
        self.stall_ns = 0
        self.requests = 0
        self.retries = 0
        self.fetched_bytes = 0
        self._lock = threading.Lock()

    def count_decode(self, decode: Callable[[], Decoded], num_groups: int = 1) -> Decoded:
        """The result of `decode()`, counted as `num_groups` row groups."""
        seen = thread_requests()
        requests, retries, fetched_bytes = seen.requests, seen.retries, seen.fetched_bytes
        begin = perf_counter_ns()
        block = decode()
        took = perf_counter_ns() - begin
        num_bytes = block.num_bytes
        with self._lock:
            self.decoded_groups += num_groups
            self.decoded_bytes += num_bytes
            self.decode_ns += took
            self.requests += seen.requests - requests
            self.retries += seen.retries - retries
            self.fetched_bytes += seen.fetched_bytes - fetched_bytes
        return block

    def count_stall(self, wait: Callable[[], T]) -> T:
        """The result of `wait()`, whose time counts as a stall."""
        begin = perf_counter_ns()
        try:
            return wait()
        finally:
            self.stall_ns += perf_counter_ns() - begin

    def tally(self) -> Tally:
        """The counts now."""
        return (
            self.rows,
            self.decoded_groups,
            self.released_groups,
            self.decoded_bytes,
            self.decode_ns,
            self.stall_ns,
            self.requests,
            self.retries,
            self.fetched_bytes,
        )
