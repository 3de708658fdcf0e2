"""Grain: a data set of this package as an IterDataset of Grain, for JAX and for trainers that feed from Grain.

Source: grain 0.2, `grain.IterDataset`, `grain.DatasetIterator`, and `set_slice` of its multiprocess prefetch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import grain

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils.errors import ConfigTypeError, of_type
from torch_dataloader_utils.stream.dataset import TableDataset


def for_grain(dataset: TableDataset[Any], num_epochs: int | None = None) -> "GrainDataset":
    """The batches of this data set's rank as a `grain.IterDataset`; each iterator has a position of its own.

        rows = StructuredDataset("train/", batch_size=256, shuffle=True, output_format="numpy", num_ranks=8, rank=r)
        batches = iter(for_grain(rows).map(step))
        checkpoint = batches.get_state()

    The states of an iterator are those of `dataset.state_dict()`: JSON, the same on every rank that has taken as many
    steps, and valid under any number of ranks and any batch size. Batches that are dicts come as plain dicts, which
    JAX takes for trees. Map, mix and prefetch on top as with any IterDataset; do not shard it again.

    In `mp_prefetch` each of n processes reads a shard of its own (rank r of R becomes n ranks of n * R), and its states
    go on with n processes only. Threads decode ahead without it.

    Args:
        dataset: a StructuredDataset or an IcebergDataset.
        num_epochs: iterators end before the epoch of this number, counted from 0; None goes on for ever.

    Raises:
        ConfigTypeError: another data set. A RowDataset goes into `grain.MapDataset.source` as it is.
        ConfigError: num_epochs below 1.
    """
    if not isinstance(dataset, TableDataset):
        raise ConfigTypeError(
            f"for_grain got {of_type(dataset)}: pass a StructuredDataset or an IcebergDataset. A RowDataset goes into "
            "grain.MapDataset.source(rows) as it is."
        )
    return GrainDataset(dataset, None if num_epochs is None else check_integer("num_epochs", num_epochs, least=1))


class GrainDataset(grain.IterDataset[Any]):  # type: ignore[misc]  # Grain has no annotations for type checkers
    """The result of `for_grain`."""

    def __init__(self, dataset: TableDataset[Any], num_epochs: int | None) -> None:
        super().__init__()
        self._dataset = dataset
        self._num_epochs = num_epochs

    def __repr__(self) -> str:
        return f"for_grain({self._dataset!r})"

    def __iter__(self) -> "GrainIterator":
        """An iterator from where the data set stands."""
        return GrainIterator(_copy_of(self._dataset), self._num_epochs)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Read only one shard of several: Grain calls this in the processes of `mp_prefetch`."""
        self._dataset = self._dataset.shard_rows(sl.step or 1, sl.start or 0, contiguous=sequential_slice)


class GrainIterator(grain.DatasetIterator[Any]):  # type: ignore[misc]
    """Batches, one epoch after the other."""

    def __init__(self, dataset: TableDataset[Any], num_epochs: int | None) -> None:
        super().__init__()
        self._dataset = dataset
        self._num_epochs = num_epochs
        self._batches: Iterator[Any] | None = None  # the pass, and its epoch
        self._epoch = dataset.epoch

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: `num_epochs` are over, or an epoch has no batches at all.
        """
        self._assert_not_closed()
        for _ in range(2):  # the rest of this epoch may be empty; a whole one that is has no successor
            if self._batches is None:
                if self._num_epochs is not None and self._dataset.epoch >= self._num_epochs:
                    break
                self._epoch = self._dataset.epoch
                self._batches = self._dataset.begin_pass()
            for batch in self._batches:
                return dict(batch) if isinstance(batch, dict) else batch
            self._batches = None
            self._dataset.set_epoch(self._epoch + 1)
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        """See `for_grain`."""
        return self._dataset.state_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` stood.

        Raises:
            CheckpointMismatchError: the state belongs to other data or options, or was changed.
        """
        self._end_pass()
        self._dataset.load_state_dict(state)

    def close(self) -> None:
        """End the pass and its threads."""
        self._end_pass()
        super().close()

    def _end_pass(self) -> None:
        batches, self._batches = self._batches, None
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def _copy_of(dataset: TableDataset[Any]) -> TableDataset[Any]:
    """The same data set with a position of its own. Ranks are not compared: JAX runs no process group of torch."""
    copy: TableDataset[Any] = TableDataset(replace(dataset.stages, peers=None))
    copy.load_state_dict(dataset.state_dict())
    return copy
