"""`Metrics`: the counts and times of a loader as one frozen value."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from torch_dataloader_utils._observe.counters import CHUNKS, ERRORS
from torch_dataloader_utils._runtime.notebook import html_of

GAUGES = ("queue_depth", "batch_age_seconds")
"""The numbers that say how it is now; all others only grow."""

# A trainer that waits less is not held up: the first batch of a pass is waited for in any case.
_MOST_WAIT_FRACTION = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Counts and times of one rank's loader, all its workers together, since it was built (or of one pass).

    All but queue_depth and batch_age_seconds only grow, so the difference of two of them is what happened in between:
    `later - earlier`.

        metrics = loader.metrics()
        metrics.rows_per_second, metrics.wait_fraction, metrics.diagnosis

    Attributes:
        passes: passes that reached their last batch.
        batches: batches that the trainer received.
        rows: rows in those batches.
        tokens: tokens in those rows if they are packed samples, padding included: rows * sequence_length; else 0.
        padding_rows: rows that came a second time so that this rank takes its last step; see `plan.repeated_rows`.
        row_groups: row groups read and decoded, ahead of the trainer included.
        compiled_chunks: column chunks of Parquet files that the compiled decoder read. The next six are those that
            pyarrow read, by the reason.
        type_chunks: columns of a type that the compiled decoder does not read, such as text.
        encoding_chunks: an encoding, or a kind of page, that it does not know.
        codec_chunks: a codec that it does not know, or whose library this machine lacks.
        damaged_chunks: bytes or numbers that do not fit each other, or a page that is too large; whether that is an
            error is pyarrow's to say.
        turned_off_chunks: read with Decoding(compiled=False).
        not_built_chunks: read where the package was installed without a compiler.
        decoded_bytes: memory of what was decoded.
        fetched_bytes: of remote storage; 0 for local files. Listings and footers that were read before the first pass
            are not counted, here and in the next two.
        requests: sent to remote storage, answered or not.
        retries: those of them that were sent again after a failure.
        cache_hits: byte ranges that came from a cache on this host; see `HostCache`.
        cache_misses: byte ranges that it did not have.
        cached_bytes: bytes that came from it, and so were not fetched.
        cache_evictions: entries that were removed to make room.
        cache_damaged: entries that were not what had been written, and were fetched again.
        requests_to_10ms: requests that took at most 10 ms, from when they were sent until all bytes were there or they
            failed. The next four are those that took longer: at most 100 ms, 1 s, 10 s, or more.
        throttled_errors: attempts that failed because the storage throttled requests (HTTP 429, 503). An attempt is
            one request, or those for the parts of one row group.
        server_errors: attempts in which the storage itself failed (408, 500 and the like).
        refused_errors: attempts that it refused: no permission, expired credentials, not found, another version.
        connection_errors: attempts without an answer: connections that failed, time-outs, replies with wrong bytes.
        fetch_seconds: time in which decoding threads waited for remote storage: for requests, and before they are sent
            again.
        decode_seconds: time in which they decoded, shaped and shuffled rows, and read local files.
        stall_seconds: time in which whoever makes batches (the trainer's thread, or workers) waited for a row group.
        transform_seconds: time in which it called `transform` and `collate_fn`.
        handover_seconds: time in which it did all else: cut, join, copy, pin and move batches.
        wait_seconds: time that the trainer spent in `next()` of the loader's iterator.
        seconds: time in passes, the trainer's own work between batches included.
        queue_depth: row groups decoded and not used up yet, in all workers; 0 between passes.
        batch_age_seconds: since the trainer was given its last batch, or began to wait for its first one; 0 between
            passes.

    Counts and times hold what is under way, up to now, and what failed. The times from fetch_seconds to
    handover_seconds are added up over all threads and processes, so that they may exceed seconds.
    """

    passes: int = 0
    batches: int = 0
    rows: int = 0
    tokens: int = 0
    padding_rows: int = 0
    row_groups: int = 0
    compiled_chunks: int = 0
    type_chunks: int = 0
    encoding_chunks: int = 0
    codec_chunks: int = 0
    damaged_chunks: int = 0
    turned_off_chunks: int = 0
    not_built_chunks: int = 0
    decoded_bytes: int = 0
    fetched_bytes: int = 0
    requests: int = 0
    retries: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cached_bytes: int = 0
    cache_evictions: int = 0
    cache_damaged: int = 0
    requests_to_10ms: int = 0
    requests_to_100ms: int = 0
    requests_to_1s: int = 0
    requests_to_10s: int = 0
    requests_over_10s: int = 0
    throttled_errors: int = 0
    server_errors: int = 0
    refused_errors: int = 0
    connection_errors: int = 0
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    stall_seconds: float = 0.0
    transform_seconds: float = 0.0
    handover_seconds: float = 0.0
    wait_seconds: float = 0.0
    seconds: float = 0.0
    queue_depth: int = 0
    batch_age_seconds: float = 0.0

    @property
    def pyarrow_chunks(self) -> dict[str, int]:
        """Column chunks that pyarrow read, by why the compiled decoder did not: {"type": 16}; empty for none."""
        found = {name.removesuffix("_chunks"): getattr(self, name) for name in CHUNKS[1:]}
        return {reason.replace("_", " "): number for reason, number in found.items() if number}

    def describe_chunks(self) -> str:
        """Which decoder read how many column chunks, in words; "" before the first one."""
        parts = [f"{self.compiled_chunks:,} by the compiled decoder"] if self.compiled_chunks else []
        reasons = self.pyarrow_chunks
        if reasons:
            why = ", ".join(f"{reason} {number:,}" for reason, number in reasons.items())
            parts.append(f"{sum(reasons.values()):,} by pyarrow ({why})")
        return "column chunks: " + ", ".join(parts) if parts else ""

    @property
    def rows_per_second(self) -> float:
        """Rows the trainer received, by the time in passes; 0 before the first batch."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of packed samples that the trainer received, by the time in passes."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def decoded_bytes_per_second(self) -> float:
        """Decoded bytes by the time in passes."""
        return self.decoded_bytes / self.seconds if self.seconds else 0.0

    @property
    def wait_fraction(self) -> float:
        """The part of the time in passes that the trainer waited for data: 0.0 is a loader that is never waited for."""
        return self.wait_seconds / self.seconds if self.seconds else 0.0

    @property
    def diagnosis(self) -> str | None:
        """Why the trainer waits for data and what to do, in one sentence; None if it does not wait.

        Of a difference of two metrics it is about the time in between.
        """
        if self.wait_fraction < _MOST_WAIT_FRACTION:
            return None
        return f"The trainer waits {self.wait_fraction:.0%} of its time, {self._cause()}."

    def _cause(self) -> str:
        makers = {"stall": self.stall_seconds, "transform": self.transform_seconds, "handover": self.handover_seconds}
        if sum(makers.values()) < self.wait_seconds / 2:
            return (
                "but little of it for making batches: workers start (persistent_workers=True keeps processes), or "
                "batches that are not tensors are sent"
            )
        match max(makers, key=makers.__getitem__):
            case "transform":
                return "mostly for transform and collate_fn: make them faster, or use more workers"
            case "handover":
                return "mostly for cutting, joining and copying batches: stack columns, or use larger batches"
            case _ if self.fetch_seconds > self.decode_seconds:
                return f"mostly for the storage ({self._describe_requests()}): {self._storage_advice()}"
            case _:
                return (
                    "mostly for decoding (or a slow local disk): read fewer columns, or use more "
                    "Decoding(threads=...) or num_workers"
                )

    def _describe_requests(self) -> str:
        slow = self.requests_to_1s + self.requests_to_10s + self.requests_over_10s
        failed = {name: getattr(self, name) for name in ERRORS if getattr(self, name)}
        parts = [f"{slow:,} of {self.requests:,} requests took more than 0.1 s"]
        parts += [f"{number:,} {name.replace('_', ' ')}" for name, number in failed.items()]
        return ", ".join(parts)

    def _storage_advice(self) -> str:
        if self.throttled_errors:
            return "it throttles requests; let fewer jobs read these prefixes at once, or copy the data"
        return "use more Decoding(threads=...), or bring the data nearer"

    def __sub__(self, earlier: "Metrics") -> "Metrics":
        """The counts and times since `earlier`; queue_depth and batch_age_seconds are the later ones."""
        changes = {each.name: getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)}
        return Metrics(**changes | {name: getattr(self, name) for name in GAUGES})

    def _repr_html_(self) -> str:
        """For notebooks: the rates, and every count and time that is not zero."""
        facts: list[tuple[str, object]] = [
            ("rows a second", f"{self.rows_per_second:,.0f}"),
            ("MB decoded a second", f"{self.decoded_bytes_per_second / 1e6:,.1f}"),
            ("waited for data", f"{self.wait_fraction:.1%} of the time in passes"),
        ]
        counts = [(name, value) for name, value in self.to_dict().items() if value]
        facts += [(name, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}") for name, value in counts]
        return html_of("Metrics", facts)

    def to_dict(self) -> dict[str, Any]:
        """The counts and times as a dict, for JSON and for loggers."""
        return asdict(self)
