"""`LoaderMeter`: adds up the counts of workers, measures the trainer's waiting, and calls callbacks."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np

from torch_dataloader_utils._observe.callbacks import EpochRun, LoaderCallback
from torch_dataloader_utils._observe.counters import Int64s, WorkerCounters, counts_shape, totals
from torch_dataloader_utils._observe.metrics import GAUGES, Metrics, kinds_of

T = TypeVar("T")

_END: Any = object()

_NO_GAUGES: dict[str, Any] = dict.fromkeys(GAUGES, 0)


class LoaderMeter:
    """Counter of all passes of one loader; `metrics()` may be called at any time, from any thread."""

    def __init__(self, callbacks: Sequence[LoaderCallback] = (), row_tokens: int = 0) -> None:
        """row_tokens: tokens of each row, if all rows have the same number; else 0."""
        self.callbacks = tuple(callbacks)
        self.row_tokens = row_tokens
        self._pass = _PassCounts(before=Metrics(), begin_ns=0, end_ns=0, final=Metrics())

    def __reduce__(self) -> tuple[type["LoaderMeter"], tuple[Sequence[LoaderCallback], int]]:
        """Start from zero in a copy: it belongs to another loader, perhaps in another process."""
        return LoaderMeter, (self.callbacks, self.row_tokens)

    def metrics(self) -> Metrics:
        """Return the metrics since the loader was built."""
        counts = self._pass
        return _add(counts.before, counts.metrics())

    def worker(self, threads: int) -> WorkerCounters:
        """Return new counters for the worker that runs in this process. threads: number of decoding threads."""
        counts = self._pass
        counts.memory = np.zeros(counts_shape(threads), dtype=np.int64)
        counts.local = WorkerCounters(counts.memory)
        return counts.local

    def count_workers(self, memory: Int64s) -> None:
        """Read the counts of worker processes from this memory; earlier counts in the memory are left out."""
        self._pass.earlier = totals(memory, perf_counter_ns())
        self._pass.memory = memory

    def received(self, rows: int) -> None:
        """Count a batch of `rows` rows from a worker process."""
        self._pass.rows += rows

    def responses(self, responses: Iterable[T]) -> Iterator[T]:
        """Yield the responses of worker processes, and count the time until each arrives."""
        source, counts = iter(responses), self._pass
        while True:
            counts.arrive_ns -= perf_counter_ns()
            try:
                response = next(source, _END)
            finally:
                counts.arrive_ns += perf_counter_ns()
            if response is _END:
                return
            yield response

    @contextmanager
    def watching(self, run: EpochRun) -> Iterator["PassWatch"]:
        """Count and time the pass inside, and call the callbacks at its begin and end."""
        counts = self._begin()
        run = replace(run, metrics=counts.metrics)
        try:
            for callback in self.callbacks:
                callback.on_epoch_start(run)
            yield PassWatch(counts, run, self.callbacks)
        finally:
            counts.end(run)
            for callback in self.callbacks:
                callback.on_epoch_end(run, completed=counts.passes == 1)

    def _begin(self) -> "_PassCounts":
        # In one assignment: a thread that saw a new total with the old pass would count the old pass twice.
        before = replace(self.metrics(), **_NO_GAUGES)
        self._pass = _PassCounts(before=before, begin_ns=perf_counter_ns(), row_tokens=self.row_tokens)
        return self._pass


class PassWatch:
    """Counter of the batches of one pass. waiting: context in which the trainer waits for the next batch."""

    __slots__ = ("_callbacks", "_counts", "_run", "waiting")

    def __init__(self, counts: "_PassCounts", run: EpochRun, callbacks: Sequence[LoaderCallback]) -> None:
        self._counts = counts
        self._run = run
        self._callbacks = callbacks
        self.waiting = _Waiting(counts)

    def given(self, batch: object) -> None:
        """Count a batch that is delivered next, and call the callbacks."""
        self._counts.batches += 1
        for callback in self._callbacks:
            callback.on_batch(self._run, batch)

    def completed(self) -> None:
        """Count the pass as complete."""
        self._counts.passes = 1


class _Waiting:
    """Context like `during`, without a generator, since each batch enters it."""

    __slots__ = ("_counts",)

    def __init__(self, counts: "_PassCounts") -> None:
        self._counts = counts

    def __enter__(self) -> None:
        self._counts.wait_ns -= perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        now_ns = perf_counter_ns()
        self._counts.wait_ns += now_ns
        self._counts.given_ns = now_ns


def _no_memory() -> Int64s:
    return np.zeros(counts_shape(0), dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class _PassCounts:
    """Counts of one pass. Running times are negative, as in `Counts`.

    before: metrics of all earlier passes. row_tokens: tokens of each row. rows: rows received from worker processes.
    wait_ns: time in next(). given_ns: clock when the trainer last received a batch; 0 before the first batch.
    arrive_ns: part of wait_ns until responses of worker processes arrived. local: counters of the worker in this
    process. memory: counts of all workers. earlier: totals of `memory` when the pass began. end_ns, final: end and last
    metrics of the pass; None while it runs. seen: metrics of the last call of `metrics`.
    """

    before: Metrics
    begin_ns: int
    row_tokens: int = 0
    end_ns: int | None = None
    passes: int = 0
    batches: int = 0
    rows: int = 0
    padding_rows: int = 0
    wait_ns: int = 0
    given_ns: int = 0
    arrive_ns: int = 0
    local: WorkerCounters | None = None
    memory: Int64s = field(default_factory=_no_memory)
    earlier: dict[str, int] = field(default_factory=dict)
    seen: Metrics = field(default_factory=Metrics)
    final: Metrics | None = None

    def end(self, run: EpochRun) -> None:
        """End the pass; it is complete if its last batch was delivered, even if the trainer asked for no more."""
        self.end_ns = perf_counter_ns()
        if self.passes or self.batches == run.num_batches:
            self.passes = 1
            self.padding_rows = run.padding_rows
        # The running time of a killed process would grow for ever.
        self.final = replace(self._largest(self._now()), **_NO_GAUGES)
        self.memory = _no_memory()

    def metrics(self) -> Metrics:
        """Return the metrics of the pass up to now. No number but a gauge is smaller than in an earlier call."""
        self.seen = self._largest(self._now()) if self.final is None else self.final
        return self.seen

    def _largest(self, now: Metrics) -> Metrics:
        """Return the larger of each number seen before and read now: other threads and processes write meanwhile."""
        seen = {**self.seen.to_dict(), **_NO_GAUGES}
        return Metrics.from_dict({name: max(number, seen[name]) for name, number in now.to_dict().items()})

    def _now(self) -> Metrics:
        now_ns = perf_counter_ns() if self.end_ns is None else self.end_ns
        counted = totals(self.memory, now_ns)
        counted = {name: counted[name] - self.earlier.get(name, 0) for name in counted}
        wait_ns, arrive_ns = _spent(self.wait_ns, now_ns), _spent(self.arrive_ns, now_ns)
        # The maker of batches (the trainer, or worker processes) waits for rows, calls functions, or hands over.
        handover_ns = counted["make_ns"] + wait_ns - arrive_ns - counted["stall_ns"] - counted["transform_ns"]
        rows = self.rows if self.local is None else self.local.rows
        return Metrics(
            **kinds_of(counted),
            passes=self.passes,
            batches=self.batches,
            rows=rows,
            tokens=rows * self.row_tokens,
            padding_rows=self.padding_rows,
            row_groups=counted["decoded_groups"],
            cached_bytes=counted["cached_bytes"],
            decoded_bytes=counted["decoded_bytes"],
            fetched_bytes=counted["fetched_bytes"],
            requests=counted["requests"],
            retries=counted["retries"],
            hedges=counted["hedges"],
            fetch_seconds=counted["fetch_ns"] / 1e9,
            decode_seconds=(counted["decode_ns"] - counted["fetch_ns"]) / 1e9,
            stall_seconds=counted["stall_ns"] / 1e9,
            transform_seconds=counted["transform_ns"] / 1e9,
            handover_seconds=handover_ns / 1e9,
            wait_seconds=wait_ns / 1e9,
            seconds=(now_ns - self.begin_ns) / 1e9,
            queue_depth=max(0, counted["decoded_groups"] - counted["released_groups"]),
            batch_age_seconds=max(0, now_ns - (self.given_ns or self.begin_ns)) / 1e9,
        )


def _spent(time_ns: int, now_ns: int) -> int:
    """Return a time of `Counts`, running or not, up to now."""
    return time_ns if time_ns >= 0 else max(0, time_ns + now_ns)


def _add(first: Metrics, second: Metrics) -> Metrics:
    numbers = second.to_dict()
    return Metrics.from_dict({name: number + numbers[name] for name, number in first.to_dict().items()})
