"""The meter of one loader: adds up what workers count, measures how long the trainer waits, and calls callbacks."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any

import numpy as np

from torch_dataloader_utils._observe.callbacks import EpochRun, LoaderCallback
from torch_dataloader_utils._observe.counters import Int64s, WorkerCounters, counts_shape, totals
from torch_dataloader_utils._observe.metrics import GAUGES, Metrics, kinds_of

_END = object()

_NO_GAUGES: dict[str, Any] = dict.fromkeys(GAUGES, 0)


class LoaderMeter:
    """Counts all passes of one loader; `metrics()` may be called at any time, from any thread."""

    def __init__(self, callbacks: Sequence[LoaderCallback] = (), row_tokens: int = 0) -> None:
        """row_tokens: tokens of each row, where all have the same number."""
        self.callbacks = tuple(callbacks)
        self.row_tokens = row_tokens
        self._pass = _PassCounts(before=Metrics(), begin_ns=0, end_ns=0, final=Metrics())

    def __reduce__(self) -> tuple[type["LoaderMeter"], tuple[Sequence[LoaderCallback], int]]:
        """A copy belongs to another loader, in another process perhaps, and has counted nothing."""
        return LoaderMeter, (self.callbacks, self.row_tokens)

    def metrics(self) -> Metrics:
        """Everything since the loader was built."""
        counts = self._pass
        return _add(counts.before, counts.metrics())

    def worker(self, threads: int) -> WorkerCounters:
        """New counters, for the one worker that runs in this process; threads: that decode."""
        counts = self._pass
        counts.memory = np.zeros(counts_shape(threads), dtype=np.int64)
        counts.local = WorkerCounters(counts.memory)
        return counts.local

    def count_workers(self, memory: Int64s) -> None:
        """Count what worker processes do from now on, which they write to this memory."""
        self._pass.earlier = totals(memory, perf_counter_ns())
        self._pass.memory = memory

    def received(self, rows: int) -> None:
        """A batch of so many rows arrived from a worker process."""
        self._pass.rows += rows

    def responses(self, responses: Iterable[Any]) -> Iterator[Any]:
        """The responses of worker processes; until each arrives, the trainer's process does nothing."""
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
        """Inside, one pass: it is counted and timed, and the callbacks are called when it begins and ends."""
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
        # Both at once: a thread that saw one without the other would count the last pass twice.
        before = replace(self.metrics(), **_NO_GAUGES)
        self._pass = _PassCounts(before=before, begin_ns=perf_counter_ns(), row_tokens=self.row_tokens)
        return self._pass


class PassWatch:
    """Counts the batches of one pass. waiting: a context, inside of which the trainer waits for the next batch."""

    __slots__ = ("_callbacks", "_counts", "_run", "waiting")

    def __init__(self, counts: "_PassCounts", run: EpochRun, callbacks: Sequence[LoaderCallback]) -> None:
        self._counts = counts
        self._run = run
        self._callbacks = callbacks
        self.waiting = _Waiting(counts)

    def given(self, batch: Any) -> None:
        """This batch is given to the trainer next."""
        self._counts.batches += 1
        for callback in self._callbacks:
            callback.on_batch(self._run, batch)

    def completed(self) -> None:
        """There are no more batches."""
        self._counts.passes = 1


class _Waiting:
    """As `during`, without a generator: it is entered once for each batch."""

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
    """The counts of one pass.

    before: the counts of earlier passes. row_tokens: of each row. rows: received from worker processes. wait_ns: in
    next(). given_ns: when the trainer last went on; 0: not yet. arrive_ns: the part of wait_ns until responses of
    worker processes arrived. Times that are being spent are negative, as in `Counts`. local: the counters of the worker
    in this process. memory: where workers count. earlier: what was there when the pass began. end_ns, final: None while
    it runs. seen: the last metrics that were asked for.
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
        """The pass is over; a trainer that took the last batch need not have asked for one more."""
        self.end_ns = perf_counter_ns()
        if self.passes or self.batches == run.num_batches:
            self.passes = 1
            self.padding_rows = run.padding_rows
        # Processes that were killed in the middle of something would spend time for ever.
        self.final = replace(self._largest(self._now()), **_NO_GAUGES)
        self.memory = _no_memory()

    def metrics(self) -> Metrics:
        """The pass up to now, with what is under way; only gauges may be smaller than before."""
        self.seen = self._largest(self._now()) if self.final is None else self.final
        return self.seen

    def _largest(self, now: Metrics) -> Metrics:
        """The larger ones of what was seen and what is read now, while other threads and processes write."""
        seen = {**self.seen.to_dict(), **_NO_GAUGES}
        return Metrics.from_dict({name: max(number, seen[name]) for name, number in now.to_dict().items()})

    def _now(self) -> Metrics:
        now_ns = perf_counter_ns() if self.end_ns is None else self.end_ns
        counted = totals(self.memory, now_ns)
        counted = {name: counted[name] - self.earlier.get(name, 0) for name in counted}
        wait_ns, arrive_ns = _spent(self.wait_ns, now_ns), _spent(self.arrive_ns, now_ns)
        # Whoever makes batches (the trainer, or worker processes) waits for rows, calls functions, or hands over.
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
    """A time as `Counts` have it, up to now."""
    return time_ns if time_ns >= 0 else max(0, time_ns + now_ns)


def _add(first: Metrics, second: Metrics) -> Metrics:
    numbers = second.to_dict()
    return Metrics.from_dict({name: number + numbers[name] for name, number in first.to_dict().items()})
