"""`LoaderCallback`, which users implement to follow a loader, and `EpochRun`, which describes a pass."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch_dataloader_utils._observe.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRun:
    """One pass of one rank over an epoch, or over the rest of one.

    Attributes:
        num_batches: batches that this pass delivers to this rank; None if row counts are not known.
        num_rows: rows that it delivers; likewise.
        padding_rows: rows among them that come a second time.
        fingerprint: of the data, as states have it.
        metrics: gives the metrics of this pass up to now.
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
    """Called at the passes and batches of a loader, in the trainer's thread. Subclass it and override what you need.

        class Watch(LoaderCallback):
            def on_epoch_end(self, run, *, completed):
                print(run.epoch, run.metrics().rows_per_second)

        loader, dataset = StructuredDataset.create_dataloader(path, callbacks=[Watch()])

    Errors of a callback are raised in the trainer. A batch must not be changed or kept.
    """

    def on_epoch_start(self, run: EpochRun) -> None:
        """A pass begins."""

    def on_batch(self, run: EpochRun, batch: Any) -> None:
        """A batch is about to be delivered to the trainer; `loader.state_dict()` already counts it."""

    def on_epoch_end(self, run: EpochRun, *, completed: bool) -> None:
        """A pass ended: with its last batch, or (completed=False) by a break or an error."""
