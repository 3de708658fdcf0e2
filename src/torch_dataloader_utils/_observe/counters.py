"""The counts of one worker, cheap enough to be always on, in memory that the trainer's process can read."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._observe.requests import COUNTED, Counts, count_thread_in, during

T = TypeVar("T")

Int64s = npt.NDArray[np.int64]


def counts_shape(threads: int) -> tuple[int, int]:
    """The shape of a worker's memory for counts: of its main thread, and of each job of its decoding threads.

    Twice as many jobs as threads, because jobs of a pass that was left early may still run in the next one.
    """
    return (1 + 2 * threads, len(COUNTED))


def totals(memory: Int64s, now_ns: int) -> dict[str, int]:
    """The sums of all counts in a memory of any shape [..., len(COUNTED)], with what is being spent up to now."""
    counts = memory.reshape(-1, len(COUNTED)).copy()
    spent = np.where(counts < 0, np.maximum(counts + now_ns, 0), counts)
    return dict(zip(COUNTED, spent.sum(axis=0).tolist(), strict=True))


class WorkerCounters:
    """What one worker does, counted where `memory` says (see `counts_shape`); None: where only this object sees it.

    rows: handed out in batches. main: of the thread that takes batches, which alone may write to both.
    """

    __slots__ = ("_spare", "main", "memory", "rows")

    def __init__(self, memory: Int64s | None = None) -> None:
        self.memory = np.zeros(counts_shape(1), dtype=np.int64) if memory is None else memory
        self.rows = 0
        self.main, *jobs = map(Counts.from_buffer, self.memory)
        self._spare = deque(jobs)

    @contextmanager
    def decoding(self) -> Iterator[Counts]:
        """Inside, the calling thread decodes: its time and requests are counted in what this gives."""
        # Never empty but for a pass that was left over and over while its jobs still run; such jobs are not counted.
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
        """The result of `wait()`, whose time counts as a stall."""
        with during(self.main, "stall_ns"):
            return wait()
