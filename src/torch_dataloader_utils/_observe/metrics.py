"""`Metrics`: the counts and times of a loader as one frozen value."""

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Counts and times of one rank's loader, all its workers together, since it was built (or of one pass).

    All but queue_depth only grow, so the difference of two of them is what happened in between: `later - earlier`.

        metrics = loader.metrics()
        metrics.rows_per_second, metrics.wait_share

    Attributes:
        passes: passes that reached their last batch.
        batches: received by the trainer.
        rows: in those batches.
        padding_rows: rows that came a second time so that this rank takes its last step; see `plan.repeated_rows`.
        row_groups: row groups read and decoded, ahead of the trainer included.
        decoded_bytes: memory of what was decoded.
        fetched_bytes: of remote storage; 0 for local files. Listings and footers that were read before the first pass
            are not counted, here and in the next two.
        requests: to remote storage.
        retries: requests that were sent again.
        decode_seconds: time of reading, decoding and shaping row groups, all threads and processes added up.
        wait_seconds: time the trainer spent in `next()` of the loader's iterator.
        stall_seconds: the part of it in which no decoded rows were there (threads), or no finished batch (processes).
        seconds: time in passes, the trainer's own work between batches included.
        queue_depth: row groups decoded and not used up yet, in all workers, at the last batch; 0 between passes.
    """

    passes: int = 0
    batches: int = 0
    rows: int = 0
    padding_rows: int = 0
    row_groups: int = 0
    decoded_bytes: int = 0
    fetched_bytes: int = 0
    requests: int = 0
    retries: int = 0
    decode_seconds: float = 0.0
    wait_seconds: float = 0.0
    stall_seconds: float = 0.0
    seconds: float = 0.0
    queue_depth: int = 0

    @property
    def rows_per_second(self) -> float:
        """Rows the trainer received, by the time in passes; 0 before the first batch."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def decoded_bytes_per_second(self) -> float:
        """Decoded bytes by the time in passes."""
        return self.decoded_bytes / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        """The part of the time in passes that the trainer waited for data: 0.0 is a loader that is never waited for."""
        return self.wait_seconds / self.seconds if self.seconds else 0.0

    def __sub__(self, earlier: "Metrics") -> "Metrics":
        """What happened since `earlier`; queue_depth is the later one's."""
        changes = {
            field.name: getattr(self, field.name) - getattr(earlier, field.name)
            for field in fields(self)
            if field.name != "queue_depth"
        }
        return Metrics(**changes, queue_depth=self.queue_depth)

    def to_dict(self) -> dict[str, Any]:
        """The counts and times as a dict, for JSON and for loggers."""
        return asdict(self)
