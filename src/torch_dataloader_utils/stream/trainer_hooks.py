"""Hooks of trainers in a loader: a sampler that takes epochs, batches on the device, which batch is the last one.

Accelerate keeps a list of the loaders that are being iterated (`GradientState`), and asks the innermost one two things:
whether this batch is its last, so that `accelerator.accumulate` steps the optimizer, and how many rows of the last
global batch are no padding (`remainder`, 0: all of them), so that `accelerator.gather_for_metrics` cuts the rest off.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data import Sampler

from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import ConfigTypeError

if TYPE_CHECKING:
    from torch_dataloader_utils.stream.dataset import TableDataset


class EpochSampler(Sampler[None]):
    """Stands where trainers look for a DistributedSampler: passes epochs on to the data set, and orders nothing."""

    def __init__(self, dataset: "TableDataset") -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; in the present one it does nothing.

        Lightning calls this after it has begun to iterate, where `TableDataset.set_epoch` would give up the pass.
        """
        if epoch != self._dataset.epoch:
            self._dataset.set_epoch(epoch)


def warn_of_lost_places(dataset: "TableDataset") -> None:
    """Warn if the state has the place of one rank only, where a trainer saves the state of one rank for all of them."""
    if dataset.topology.num_ranks > 1 and dataset.progress.position.segment.cursors is not None:
        warn_user(
            f"This checkpoint has only the position of rank {dataset.rank} of {dataset.topology.num_ranks}: "
            "without row counts, other ranks cannot resume from it. Leave count_rows=False out, or save merge_states "
            "of all ranks."
        )


@dataclass(slots=True, weakref_slot=True, eq=False)
class LoaderRecord:
    """One pass, as GradientState sees it.

    repeats_at_end: this rank's last batch is one row that came before, because it has none left for a last step.
    Accelerate has no place for this: its remainder is of all ranks together, and the ranks that repeat may be any.
    """

    repeats_at_end: bool
    end_of_dataloader: bool = False
    remainder: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a prepared loader puts its batches; None leaves them where they are."""

    device: Any
    non_blocking: bool

    @classmethod
    def of_process(cls, non_blocking: bool) -> "Placement":
        """The device that Accelerate has chosen for this process."""
        from accelerate.state import PartialState  # type: ignore[import-untyped]

        return cls(device=PartialState().device, non_blocking=non_blocking)

    def place(self, batch: Any) -> Any:
        """The batch on the device."""
        from accelerate.utils import send_to_device  # type: ignore[import-untyped]

        return batch if self.device is None else send_to_device(batch, self.device, self.non_blocking)

    @contextmanager
    def following(self, *, repeats_at_end: bool) -> Iterator[LoaderRecord]:
        """Inside, Accelerate follows a pass, by the record that this gives.

        Plans count batches, so which one is the last is known without looking ahead, and states stay those of the
        batches received. Without row counts no batch is called the last one.
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
    """Raises the error for `loader[index]`, where Python would only say "not subscriptable".

    Raises:
        ConfigTypeError: always.
    """
    raise ConfigTypeError(
        f"{type(loader).__name__}[{index!r}]: its batches come in an order of their own and have no numbers. Iterate "
        "it as it is: it is a loader, with no DataLoader around it. A RowDataset gives rows by number."
    )
