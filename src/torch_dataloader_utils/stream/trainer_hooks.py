"""Serve the hooks of trainers: a sampler that takes epochs, batches on the device, and a mark on the last batch.

Accelerate keeps a list of the loaders that are being iterated (`GradientState`), and asks the innermost loader two
things. Is this batch the last? Then `accelerator.accumulate` steps the optimizer. How many rows of the last global
batch are not padding (`remainder`, 0: all rows)? `accelerator.gather_for_metrics` cuts the other rows off.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import Sampler

from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import ConfigTypeError

if TYPE_CHECKING:
    from torch_dataloader_utils.stream.dataset import TableDataset


class EpochSampler(Sampler[None]):
    """Sampler where trainers look for a DistributedSampler: passes epochs on to the data set, and orders nothing."""

    def __init__(self, dataset: "TableDataset") -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; the number of the present epoch has no effect.

        Lightning calls this after the pass has begun, and `TableDataset.set_epoch` would then give up the pass.
        """
        if epoch != self._dataset.epoch:
            self._dataset.set_epoch(epoch)


def warn_of_lost_places(dataset: "TableDataset") -> None:
    """Warn if the state has the position of one rank only; for trainers that save the state of one rank for all."""
    if dataset.topology.num_ranks > 1 and dataset.progress.position.segment.cursors is not None:
        warn_user(
            f"This checkpoint has only the position of rank {dataset.rank} of {dataset.topology.num_ranks}: "
            "without row counts, other ranks cannot resume from it. Leave count_rows=False out, or save merge_states "
            "of all ranks."
        )


@dataclass(slots=True, weakref_slot=True, eq=False)
class LoaderRecord:
    """Record of one pass for Accelerate's GradientState.

    repeats_at_end: true if this rank's last batch repeats one row, because the rank has no row left for the last step.
    Accelerate has no field for this: `remainder` counts all ranks together, and any of the ranks may repeat a row.
    """

    repeats_at_end: bool
    end_of_dataloader: bool = False
    remainder: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Device of a prepared loader's batches; device=None leaves batches where they are."""

    device: torch.device | str | int | None
    non_blocking: bool

    @classmethod
    def of_process(cls, non_blocking: bool) -> "Placement":
        """Return a placement on the device that Accelerate has chosen for this process."""
        from accelerate.state import PartialState  # type: ignore[import-untyped]

        return cls(device=PartialState().device, non_blocking=non_blocking)

    def place(self, batch: object) -> Any:
        """Return the batch on the device."""
        from accelerate.utils import send_to_device  # type: ignore[import-untyped]

        return batch if self.device is None else send_to_device(batch, self.device, self.non_blocking)

    @contextmanager
    def following(self, *, repeats_at_end: bool) -> Iterator[LoaderRecord]:
        """Register a pass with Accelerate inside the context. Gives the record that the pass updates.

        The plan counts batches, so the last batch is known without reading ahead, and states count only received
        batches. Without row counts no batch is marked as the last.
        """
        from accelerate.state import GradientState

        gradient_state = GradientState()
        record = LoaderRecord(repeats_at_end=repeats_at_end)
        gradient_state._add_dataloader(record)
        try:
            yield record
        finally:
            gradient_state._remove_dataloader(record)


def refuse_number(loader: object, index: object) -> NoReturn:
    """Raise ConfigTypeError for `loader[index]`, always. Python would only say "not subscriptable".

    A text is the name of a column: the caller iterates (loader, dataset) and takes the loader for a batch.
    """
    if isinstance(index, str):
        raise ConfigTypeError(
            f"{type(loader).__name__}[{index!r}]: this is a loader, not a batch. create_dataloader returns two values: "
            "write loader, dataset = ...create_dataloader(...), and then for batch in loader. open_loader returns the "
            "loader alone."
        )
    raise ConfigTypeError(
        f"{type(loader).__name__}[{index!r}]: its batches come in an order of their own and have no numbers. Iterate "
        "the loader, without a DataLoader around it; to a Trainer, return it from get_train_dataloader. A RowDataset "
        "gives rows by number."
    )
