"""Requests to remote storage, counted on the thread that waits for them.

A thread reads for one loader at a time, so the difference of its counts before and after a job is the cost of that job.
"""

import threading
from dataclasses import dataclass


@dataclass(slots=True)
class RequestCounts:
    """Requests sent, those of them that were sent again after a failure, and bytes received."""

    requests: int = 0
    retries: int = 0
    fetched_bytes: int = 0


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.counts = RequestCounts()


_of_thread = _OfThread()


def thread_requests() -> RequestCounts:
    """The running counts of the calling thread; the storage layer adds to them, others only look."""
    return _of_thread.counts
