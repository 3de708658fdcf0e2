"""The files of one shard of a Hugging Face stream, with a state that only the same shard's workers can load."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pyarrow as pa
from datasets.iterable_dataset import _BaseExamplesIterable

from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.wrappers.shard_layout import ShardLayout, describe_layout


class ChainedExamples(_BaseExamplesIterable):  # type: ignore[misc]
    """The examples of several sources (the whole files of one shard), one source after the other.

    `datasets` has a similar class (`VerticallyConcatenatedMultiSourcesExamplesIterable`), whose state is a list of the
    states of all its sources. But `datasets` loads a worker's state into the whole before it deals to the workers, and
    a worker, which has some of the sources, has a shorter list. So the state here is the number of one source and its
    state. It is valid for this shard only, as other shards have other files.
    """

    def __init__(self, ex_iterables: list[Any], layout: ShardLayout) -> None:
        """Chains the sources of the shard of this layout."""
        super().__init__()
        self.ex_iterables = ex_iterables
        self.layout = layout

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[Any, pa.Table]]] | None:
        """Tables instead of rows where all sources have them."""
        return self._iter_arrow if all(source.iter_arrow for source in self.ex_iterables) else None

    @property
    def is_typed(self) -> bool:
        """As the sources."""
        return bool(self.ex_iterables[0].is_typed)

    @property
    def features(self) -> Any:
        """As the sources."""
        return self.ex_iterables[0].features

    @property
    def num_shards(self) -> int:
        """Files of all sources."""
        return sum(source.num_shards for source in self.ex_iterables)

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = OpenState(
            source=0,
            source_state=None,
            layout=describe_layout(self.layout),
            index=self.layout.index,
            type=type(self).__name__,
        )
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for source in self._sources_left():
            yield from source

    def _iter_arrow(self) -> Iterator[tuple[Any, pa.Table]]:
        for source in self._sources_left():
            yield from source.iter_arrow()

    def _sources_left(self) -> Iterator[Any]:
        """The sources from the loaded state on; the state follows them."""
        state = self._state_dict or self._init_state_dict()
        check_options(state, self.layout, type(self).__name__)
        check_index(state["index"], self.layout)
        for number in range(state["source"], len(self.ex_iterables)):
            source, loaded = self.ex_iterables[number], state["source_state"]
            live = source._init_state_dict() if loaded is None else source.load_state_dict(loaded)
            state.update(source=number, source_state=live)
            yield source
            state.update(source=number + 1, source_state=None)

    def shuffle_data_sources(self, generator: np.random.Generator) -> "ChainedExamples":
        """Files in another order. All shards have equally many files, so files that they share keep their places."""
        if len(self.ex_iterables) == 1:
            return self._of([self.ex_iterables[0].shuffle_data_sources(generator)])
        files = self._files()
        deepcopy(generator).shuffle(files)
        return self._of(files)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> "ChainedExamples":
        """Some of the files; those of one source stay one source, so that a shuffle still mixes them."""
        if len(self.ex_iterables) == 1:
            return self._of([self.ex_iterables[0].shard_data_sources(num_shards, index, contiguous=contiguous)])
        files = self._files()
        numbers = self.split_shard_indices_by_worker(num_shards, index, contiguous=contiguous)
        return self._of([files[number] for number in numbers])

    def reshard_data_sources(self) -> "ChainedExamples":
        """The same sources in finer files."""
        return self._of([source.reshard_data_sources() for source in self.ex_iterables])

    def _of(self, sources: list[Any]) -> "ChainedExamples":
        return ChainedExamples(sources, self.layout)

    def _files(self) -> list[Any]:
        return [
            source.shard_data_sources(source.num_shards, number, contiguous=True)
            for source in self.ex_iterables
            for number in range(source.num_shards)
        ]


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
