"""The meter of one loader: adds up the counts of workers, measures how long the trainer waits, and calls callbacks."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from time import perf_counter_ns
from typing import Any

from torch_dataloader_utils._observe.callbacks import EpochRun, LoaderCallback
from torch_dataloader_utils._observe.counters import COUNTED, Tally, WorkerCounters
from torch_dataloader_utils._observe.metrics import Metrics

_END = object()


class LoaderMeter:
    """Counts all passes of one loader; `metrics()` may be called at any time, from any thread."""

    def __init__(self, callbacks: Sequence[LoaderCallback] = ()) -> None:
        self.callbacks = tuple(callbacks)
        self._pass = _PassCounts(before=Metrics(), begin_ns=0, end_ns=0)

    def __reduce__(self) -> tuple[type["LoaderMeter"], tuple[Sequence[LoaderCallback]]]:
        """A copy belongs to another loader, in another process perhaps, and has counted nothing."""
        return LoaderMeter, (self.callbacks,)

    def metrics(self) -> Metrics:
        """Everything since the loader was built."""
        counts = self._pass
        return _add(counts.before, counts.metrics())

    def worker(self) -> WorkerCounters:
        """New counters, for the one worker that runs in this process."""
        self._pass.local = WorkerCounters()
        return self._pass.local

    def received(self, worker: int, tally: Tally) -> None:
        """A batch of a worker process arrived; tally: that worker's counts when it made the batch."""
        self._pass.tallies[worker] = tally

    def answers(self, answers: Iterable[Any]) -> Iterator[Any]:
        """The answers of worker processes; the time until each arrives counts as a stall."""
        source, counts = iter(answers), self._pass
        while True:
            begin = perf_counter_ns()
            answer = next(source, _END)
            counts.stall_ns += perf_counter_ns() - begin
            if answer is _END:
                return
            yield answer

    def watch(self, batches: Generator[Any], run: EpochRun) -> Iterator[Any]:
        """The batches of a pass, counted and timed, with calls of the callbacks."""
        counts = self._begin()
        run = replace(run, metrics=counts.metrics)
        callbacks = self.callbacks
        try:
            for callback in callbacks:
                callback.on_epoch_start(run)
            while True:
                begin = perf_counter_ns()
                batch = next(batches, _END)
                counts.wait_ns += perf_counter_ns() - begin
                if batch is _END:
                    counts.passes = 1
                    return
                counts.batches += 1
                for callback in callbacks:
                    callback.on_batch(run, batch)
                yield batch
        finally:
            batches.close()
            counts.end(run)
            for callback in callbacks:
                callback.on_epoch_end(run, completed=counts.passes == 1)

    def _begin(self) -> "_PassCounts":
        # Both at once: a thread that saw one without the other would count the last pass twice.
        self._pass = _PassCounts(before=replace(self.metrics(), queue_depth=0), begin_ns=perf_counter_ns())
        return self._pass


@dataclass(slots=True, kw_only=True)
class _PassCounts:
    """The counts of one pass; `end_ns` is None while it runs.

    before: the counts of earlier passes. local: the counters of the worker in this process. tallies: the counts of each
    worker process at its last batch.
    """

    before: Metrics
    begin_ns: int
    end_ns: int | None = None
    passes: int = 0
    batches: int = 0
    padding_rows: int = 0
    wait_ns: int = 0
    stall_ns: int = 0
    local: WorkerCounters | None = None
    tallies: dict[int, Tally] = field(default_factory=dict)

    def end(self, run: EpochRun) -> None:
        """The pass is over; a trainer that took the last batch need not have asked for one more."""
        self.end_ns = perf_counter_ns()
        if self.passes or self.batches == run.num_batches:
            self.passes = 1
            self.padding_rows = run.padding_rows

    def metrics(self) -> Metrics:
        """The pass up to now."""
        tallies = [*self.tallies.copy().values(), *([] if self.local is None else [self.local.tally()])]
        counted = dict(zip(COUNTED, map(sum, zip(*tallies, strict=True)), strict=True)) if tallies else _NOTHING
        # A worker process waits for its own decoding while others deliver; the trainer does not.
        stall_ns = self.stall_ns if self.local is None else counted["stall_ns"]
        runs = self.end_ns is None
        end_ns = perf_counter_ns() if self.end_ns is None else self.end_ns
        return Metrics(
            passes=self.passes,
            batches=self.batches,
            rows=counted["rows"],
            padding_rows=self.padding_rows,
            row_groups=counted["decoded_groups"],
            decoded_bytes=counted["decoded_bytes"],
            fetched_bytes=counted["fetched_bytes"],
            requests=counted["requests"],
            retries=counted["retries"],
            decode_seconds=counted["decode_ns"] / 1e9,
            wait_seconds=self.wait_ns / 1e9,
            stall_seconds=stall_ns / 1e9,
            seconds=(end_ns - self.begin_ns) / 1e9,
            queue_depth=counted["decoded_groups"] - counted["released_groups"] if runs else 0,
        )


_NOTHING = dict.fromkeys(COUNTED, 0)


def _add(first: Metrics, second: Metrics) -> Metrics:
    return Metrics(
        **{entry.name: getattr(first, entry.name) + getattr(second, entry.name) for entry in fields(Metrics)}
    )
