"""`LoaderCallback`, implemented by users to follow a loader, and `EpochRun`, which describes a pass."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch_dataloader_utils._observe.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRun:
    """One pass of one rank over an epoch, or over the rest of an epoch.

    Attributes:
        num_batches: batches that this pass delivers to this rank; None if row counts are not known.
        num_rows: rows that this pass delivers to this rank; None if row counts are not known.
        padding_rows: rows of num_rows that are delivered a second time.
        fingerprint: fingerprint of the data, as in states.
        metrics: function that returns the metrics of this pass up to now.
    """

    epoch: int
    rank: int
    num_ranks: int
    num_workers: int
    num_batches: int | None
    num_rows: int | None
    padding_rows: int
    fingerprint: str
    metrics: Callable[[], Metrics] = field(default=Metrics, repr=False)


@runtime_checkable
class LoaderCallback(Protocol):
    """Hooks that a loader calls in the trainer's thread. Subclass, and override the methods you need.

        class Watch(LoaderCallback):
            def on_epoch_end(self, run, *, completed):
                print(run.epoch, run.metrics().rows_per_second)

        loader, dataset = StructuredDataset.create_dataloader(path, callbacks=[Watch()])

    An error of a callback is raised in the trainer. Do not change or keep a batch.
    """

    def on_epoch_start(self, run: EpochRun) -> None:
        """Called when a pass begins."""

    def on_batch(self, run: EpochRun, batch: Any) -> None:
        """Called before a batch is delivered to the trainer; `loader.state_dict()` already counts the batch."""

    def on_epoch_end(self, run: EpochRun, *, completed: bool) -> None:
        """Called when a pass ends, by its last batch or (completed=False) by a break or an error."""
