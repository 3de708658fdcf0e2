"""Grain: makes an IterDataset of Grain from a data set, for JAX and for trainers that take their batches from Grain.

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
    """Return the batches of the data set's rank as a `grain.IterDataset`; each iterator has a position of its own.

        rows = StructuredDataset("train/", batch_size=256, shuffle=True, output_format="numpy", num_ranks=8, rank=r)
        batches = iter(for_grain(rows).map(step))
        checkpoint = batches.get_state()

    An iterator has the same states as `dataset.state_dict()`: JSON, equal on all ranks that have taken the same number
    of steps, and valid under any number of ranks and any batch size. Batches that are dicts come as plain dicts, which
    JAX treats as trees. Map, mix and prefetch the result like any IterDataset, but do not shard it again.

    With `mp_prefetch`, each of n processes reads a shard of its own (rank r of R becomes n ranks of n * R), and states
    resume only with n processes. Without `mp_prefetch`, threads decode ahead.

    Args:
        dataset: Data set of batches (StructuredDataset, IcebergDataset or DeltaDataset).
        num_epochs: Number of the epoch before which iterators end, counted from 0; None never ends.

    Raises:
        ConfigTypeError: the data set does not make batches. Pass a RowDataset to `grain.MapDataset.source` instead.
        ConfigError: num_epochs is below 1.
    """
    if not isinstance(dataset, TableDataset):
        raise ConfigTypeError(
            f"for_grain got {of_type(dataset)}: pass a StructuredDataset or an IcebergDataset. A RowDataset goes into "
            "grain.MapDataset.source(rows) as it is."
        )
    return GrainDataset(dataset, None if num_epochs is None else check_integer("num_epochs", num_epochs, least=1))


class GrainDataset(grain.IterDataset[Any]):  # type: ignore[misc]  # Grain has no annotations for type checkers
    """IterDataset that `for_grain` returns."""

    def __init__(self, dataset: TableDataset[Any], num_epochs: int | None) -> None:
        super().__init__()
        self._dataset = dataset
        self._num_epochs = num_epochs

    def __repr__(self) -> str:
        return f"for_grain({self._dataset!r})"

    def __iter__(self) -> "GrainIterator":
        """Return an iterator that starts at the data set's position."""
        return GrainIterator(_copy_of(self._dataset), self._num_epochs)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Read only one shard of several. Grain calls this method in the processes of `mp_prefetch`."""
        self._dataset = self._dataset.shard_rows(sl.step or 1, sl.start or 0, contiguous=sequential_slice)


class GrainIterator(grain.DatasetIterator[Any]):  # type: ignore[misc]
    """Iterator over the batches, epoch after epoch."""

    def __init__(self, dataset: TableDataset[Any], num_epochs: int | None) -> None:
        super().__init__()
        self._dataset = dataset
        self._num_epochs = num_epochs
        self._batches: Iterator[Any] | None = None  # the pass, and its epoch
        self._epoch = dataset.epoch

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: `num_epochs` are over, or an epoch has no batches at all.
        """
        self._assert_not_closed()
        for _ in range(2):  # the rest of an epoch may be empty, but after an empty whole epoch all epochs are empty
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
        """Return the position; see `for_grain`."""
        return self._dataset.state_dict()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`.

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
    """Return a copy with a position of its own. Ranks are not compared, because JAX runs no process group of torch."""
    copy: TableDataset[Any] = TableDataset(replace(dataset.stages, peers=None))
    copy.load_state_dict(dataset.state_dict())
    return copy
