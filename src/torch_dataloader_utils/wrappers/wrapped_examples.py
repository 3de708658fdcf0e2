"""The base of examples iterables (Hugging Face) around another one, and what their states have in common."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import pyarrow as pa
from datasets.iterable_dataset import _BaseExamplesIterable, shift_ex_examples_rngs

from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.wrappers.shard_layout import ShardLayout, describe_layout


def sources_of(examples: Any) -> list[Any]:
    """The examples iterables that one is made of; none for those that read files."""
    if hasattr(examples, "source"):
        return [examples.source]
    inner = getattr(examples, "ex_iterables", None) or [getattr(examples, "ex_iterable", None)]
    return [each for each in inner if each is not None]


class WrappedExamples(_BaseExamplesIterable):  # type: ignore[misc]
    """Has the columns of another examples iterable; subclasses decide which examples are given.

    Attributes:
        source: the other one. Not `ex_iterable`: `datasets` goes through attributes of that name by itself, to change
            the random state of shuffles in each worker.
    """

    def __init__(self, source: Any) -> None:
        """Wraps a source."""
        super().__init__()
        self.source = source

    @property
    def is_typed(self) -> bool:
        """That of the source."""
        return bool(self.source.is_typed)

    @property
    def features(self) -> Any:
        """Those of the source."""
        return self.source.features

    @property
    def num_shards(self) -> int:
        """Files that workers can share: those of the source."""
        return int(self.source.num_shards)

    @property
    def sleep_on_threads_shutdown(self) -> bool:
        """As the source."""
        return bool(self.source.sleep_on_threads_shutdown)

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[Any, pa.Table]]] | None:
        """Tables instead of rows where the source has them."""
        return self._iter_arrow if self.source.iter_arrow else None

    @abstractmethod
    def _iter_arrow(self) -> Iterator[tuple[Any, pa.Table]]:
        """The tables of the examples."""

    @abstractmethod
    def _over(self, source: Any) -> Self:
        """The same over another source."""

    def shuffle_data_sources(self, generator: np.random.Generator) -> Self:
        """Files in another order."""
        return self._over(self.source.shuffle_data_sources(generator))

    def shift_rngs(self, value: int) -> Self:
        """Other random numbers in the shuffles of the source: those of an epoch, or of a worker."""
        return self._over(shift_ex_examples_rngs(self.source, value))

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Self:
        """Some of the files."""
        return self._over(self.source.shard_data_sources(num_shards, index, contiguous=contiguous))

    def reshard_data_sources(self) -> Self:
        """The same over the source, whose files are divided more finely."""
        return self._over(self.source.reshard_data_sources())


class OpenState(dict[str, Any]):
    """A state that accepts any keys, so that a state of other options reaches our check.

    `datasets` merges a loaded state into ours key by key, and would fail at the first key that ours does not have.
    """

    def __missing__(self, key: str) -> None:
        return None


def check_options(state: dict[str, Any], layout: ShardLayout, kind: str) -> None:
    """Raises CheckpointMismatchError unless a state was saved with this layout, by examples of this kind."""
    saved, here = (state["layout"], state["type"]), (describe_layout(layout), kind)
    if saved != here:
        raise CheckpointMismatchError(
            f"The state was saved with {saved}, this shard has {here}. Shard with the same options, into as many "
            "shards: the state of a stream goes on with no other number of ranks."
        )


def check_index(saved: int, layout: ShardLayout) -> None:
    """Raises CheckpointMismatchError unless a state was saved by this very shard."""
    if saved != layout.index:
        raise CheckpointMismatchError(
            f"The state is of shard {saved} of {layout.num_shards}, this is shard {layout.index}, and they have other "
            "files or tables. Save a state on every rank, and load each on its own."
        )
