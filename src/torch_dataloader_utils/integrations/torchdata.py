"""torchdata: gives a data set the states that a StatefulDataLoader needs."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from torch_dataloader_utils.errors import ConfigTypeError, of_type
from torch_dataloader_utils.stream.dataset import BatchT, TableDataset
from torch_dataloader_utils.stream.foreign_loaders import refuse_collation


def for_torchdata(dataset: TableDataset[BatchT]) -> "TorchdataDataset[BatchT]":
    """Return the data set for torchdata's StatefulDataLoader, with batch_size=None and any number of workers.

        dataset = StructuredDataset("train/", batch_size=256, shuffle=True)
        loader = StatefulDataLoader(for_torchdata(dataset), batch_size=None, num_workers=2)

    A StatefulDataLoader takes a state after the last batch of a pass and a state after the end of the pass. The two
    states must differ: the first leaves an empty rest of the epoch, the second names the next epoch. The data set's own
    states name the next epoch in both places.

    Raises:
        ConfigTypeError: the data set is not of this package, or does not make batches.
    """
    if not isinstance(dataset, TableDataset):
        raise ConfigTypeError(
            f"for_torchdata got {of_type(dataset)}: pass a StructuredDataset or an IcebergDataset. Other data sets go "
            "into a StatefulDataLoader as they are."
        )
    return TorchdataDataset(dataset)


class TorchdataDataset(IterableDataset[BatchT]):
    """Data set that `for_torchdata` returns. It has no position of its own: `dataset` keeps epoch and position."""

    def __init__(self, dataset: TableDataset[BatchT]) -> None:
        super().__init__()
        self.dataset = dataset

    def __repr__(self) -> str:
        return f"for_torchdata({self.dataset!r})"

    def __len__(self) -> int:
        """See TableDataset.__len__."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[BatchT]:
        """See TableDataset.__iter__."""
        refuse_collation(self.dataset)
        return self.dataset.begin_pass()

    def set_epoch(self, epoch: int) -> None:
        """See TableDataset.set_epoch."""
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank; in a worker, the state of the worker."""
        return self.dataset.progress.state_for_torchdata()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See TableDataset.load_state_dict; in a worker, `state` is the state of the worker."""
        self.dataset.load_state_dict(state)
