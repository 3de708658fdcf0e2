"""`Metrics`: counts and times of a loader as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch_dataloader_utils._observe.counters import KINDS
from torch_dataloader_utils._runtime.notebook import html_of

GAUGES = ("queue_depth", "batch_age_seconds")
"""Numbers about the present moment; all other numbers only grow."""

# A trainer that waits less is not held up: every pass waits for its first batch.
_MOST_WAIT_FRACTION = 0.1


def _zeros(name: str) -> Any:
    return field(default_factory=lambda: dict.fromkeys(KINDS[name], 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Counts and times of one rank's loader with all its workers, since the loader was built (or in one pass).

    All numbers but queue_depth and batch_age_seconds only grow, so `later - earlier` counts the time in between.

        metrics = loader.metrics()
        metrics.rows_per_second, metrics.wait_fraction, metrics.diagnosis

    Attributes:
        passes: passes that reached their last batch.
        batches: batches that the trainer received.
        rows: rows that the trainer received.
        tokens: tokens of packed samples that the trainer received, padding included: rows * sequence_length. Else 0.
        padding_rows: rows delivered a second time so that this rank takes its last step; see `plan.repeated_rows`.
        row_groups: row groups read and decoded, also ahead of the trainer.
        column_chunks: column chunks of Parquet files. Key "compiled": read by the compiled decoder. All other keys are
            reasons why pyarrow read the chunk: its "type" (such as text), its "encoding" or its "codec" is unknown to
            the compiled decoder; "damaged" bytes or numbers that contradict each other, or a page that is too large;
            "turned_off" by Decoding(compiled=False); "not_built" because no compiler was found at installation.
        decoded_bytes: memory of decoded rows.
        fetched_bytes: bytes received from remote storage; 0 for local files. Listings and footers read before the first
            pass are not counted, neither here nor in the other counts of requests.
        requests: requests to remote storage, answered or not.
        retries: requests sent again after a failure.
        hedges: requests sent a second time because the first was not answered; `requests` counts them too.
        requests_by_time: requests by duration, until all bytes had arrived or the request failed. Keys: "to_10ms",
            "to_100ms", "to_1s", "to_10s", "over_10s".
        request_errors: failed attempts by answer. An attempt is one request, or the requests for one row group.
            "throttled": HTTP 429 or 503. "server": HTTP 408, 500 and the like. "refused": no permission, expired
            credentials, not found, another version. "connection": no connection, time-out, wrong bytes.
        cache_events: what the cache on this host did, see `HostCache`. "hits", "misses": byte ranges found, and not
            found. "evictions": entries removed to make room. "damaged": entries with wrong bytes, fetched again.
            "bypassed": entries that were fetched past the cache, because it kept failing.
        cached_bytes: bytes read from the cache on this host.
        fetch_seconds: time in which decoding threads waited for remote storage, pauses before retries included.
        decode_seconds: time in which decoding threads decoded, shaped and shuffled rows, and read local files.
        stall_seconds: time in which the thread that makes batches (of the trainer or of a worker) waited for a row
            group.
        transform_seconds: time in which the thread that makes batches called `transform` and `collate_fn`.
        handover_seconds: time in which the same thread cut, joined, copied, pinned and moved batches.
        wait_seconds: time that the trainer spent in `next()` of the loader's iterator.
        seconds: time in passes, the trainer's own work between batches included.
        queue_depth: row groups decoded and not used up yet, in all workers; 0 between passes.
        batch_age_seconds: time since the trainer received its last batch, or began to wait for the first batch; 0
            between passes.

    Work in progress counts up to now, and so does work that failed. The times from fetch_seconds to handover_seconds
    are sums over all threads and processes, so they may exceed `seconds`. Mappings have all of their keys.
    """

    passes: int = 0
    batches: int = 0
    rows: int = 0
    tokens: int = 0
    padding_rows: int = 0
    row_groups: int = 0
    column_chunks: Mapping[str, int] = _zeros("column_chunks")
    decoded_bytes: int = 0
    fetched_bytes: int = 0
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    requests_by_time: Mapping[str, int] = _zeros("requests_by_time")
    request_errors: Mapping[str, int] = _zeros("request_errors")
    cache_events: Mapping[str, int] = _zeros("cache_events")
    cached_bytes: int = 0
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    stall_seconds: float = 0.0
    transform_seconds: float = 0.0
    handover_seconds: float = 0.0
    wait_seconds: float = 0.0
    seconds: float = 0.0
    queue_depth: int = 0
    batch_age_seconds: float = 0.0

    def describe_chunks(self) -> str:
        """Say which decoder read how many column chunks, and why pyarrow did; "" before the first chunk."""
        found = {kind.replace("_", " "): number for kind, number in self.column_chunks.items() if number}
        compiled = found.pop("compiled", 0)
        parts = [f"{compiled:,} by the compiled decoder"] if compiled else []
        if found:
            reasons = ", ".join(f"{reason} {number:,}" for reason, number in found.items())
            parts.append(f"{sum(found.values()):,} by pyarrow ({reasons})")
        return "column chunks: " + ", ".join(parts) if parts else ""

    @property
    def rows_per_second(self) -> float:
        """Rows received by the trainer per second in passes; 0 before the first batch."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of packed samples received by the trainer per second in passes."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def decoded_bytes_per_second(self) -> float:
        """Decoded bytes per second in passes."""
        return self.decoded_bytes / self.seconds if self.seconds else 0.0

    @property
    def wait_fraction(self) -> float:
        """Fraction of the time in passes in which the trainer waited for data: 0.0 if the loader is always ahead."""
        return self.wait_seconds / self.seconds if self.seconds else 0.0

    @property
    def diagnosis(self) -> str | None:
        """Sentence that says why the trainer waits for data and what to do; None if it does not wait.

        For a difference of two metrics, the sentence is about the time in between.
        """
        if self.wait_fraction < _MOST_WAIT_FRACTION:
            return None
        bypassed = self.cache_events["bypassed"]
        cache = f" The cache on this host fails, and {bypassed:,} reads went past it: see its log." if bypassed else ""
        return f"The trainer waits {self.wait_fraction:.0%} of its time, {self._cause()}.{cache}"

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
        times, errors = self.requests_by_time, self.request_errors
        slow = sum(times[kind] for kind in ("to_1s", "to_10s", "over_10s"))
        parts = [f"{slow:,} of {self.requests:,} requests took more than 0.1 s"]
        parts += [f"{number:,} {kind} errors" for kind, number in errors.items() if number]
        return ", ".join(parts)

    def _storage_advice(self) -> str:
        if self.request_errors["throttled"]:
            return "it throttles requests; let fewer jobs read these prefixes at once, or copy the data"
        return "use more Decoding(threads=...), or bring the data nearer"

    def __sub__(self, earlier: "Metrics") -> "Metrics":
        """Return the counts and times since `earlier`; queue_depth and batch_age_seconds are the later ones."""
        before = {**earlier.to_dict(), **dict.fromkeys(GAUGES, 0)}
        return Metrics.from_dict({name: number - before[name] for name, number in self.to_dict().items()})

    def _repr_html_(self) -> str:
        """Show rates and all numbers but zeros in notebooks."""
        facts: list[tuple[str, object]] = [
            ("rows a second", f"{self.rows_per_second:,.0f}"),
            ("MB decoded a second", f"{self.decoded_bytes_per_second / 1e6:,.1f}"),
            ("waited for data", f"{self.wait_fraction:.1%} of the time in passes"),
        ]
        numbers = [(name, value) for name, value in self.to_dict().items() if value]
        facts += [(name, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}") for name, value in numbers]
        return html_of("Metrics", facts)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers in one flat dict, for JSON and for loggers.

        {"passes": 1, ..., "cache_events.hits": 7, "cache_events.misses": 0, ...}
        """
        numbers = {}
        for each in fields(self):
            value = getattr(self, each.name)
            by_kind = {f"{each.name}.{kind}": value[kind] for kind in KINDS.get(each.name, ())}
            numbers.update(by_kind or {each.name: value})
        return numbers

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> "Metrics":
        """Return metrics from the numbers of `to_dict`."""
        return cls(**{name: number for name, number in numbers.items() if "." not in name}, **kinds_of(numbers))


def kinds_of(numbers: Mapping[str, object]) -> dict[str, Any]:
    """Return the counts of several kinds as mappings: "cache_events.hits" becomes {"cache_events": {"hits": ...}}."""
    return {name: {kind: numbers[f"{name}.{kind}"] for kind in kinds} for name, kinds in KINDS.items()}
