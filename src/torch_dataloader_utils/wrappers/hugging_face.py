"""One shard of a Hugging Face stream, as a stream of the same kind, and how it resumes.

Written and tested against `datasets` 5.1 and 5.2. Its public `filter` and `map` would decode and convert every row of
every shard before the cut (15 µs a row instead of 1); an examples iterable of our own does not. That interface is
private to `datasets`; all use of it is in this module, and a class that is renamed there fails its import.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from typing import Any, Self

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datasets.iterable_dataset import (
    BufferShuffledExamplesIterable,
    DataSourcesShufflingDisallowed,
    _BaseExamplesIterable,
    shift_ex_examples_rngs,
)
from torch.utils.data import get_worker_info

from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.wrappers.shard_layout import (
    ContiguousLayout,
    ShardLayout,
    StridedLayout,
    TailPolicy,
    describe_layout,
    group_items,
)
from torch_dataloader_utils.wrappers.shard_reader import ShardReader


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
            "tables. Save a state on every rank, and load each on its own."
        )


def holds_rows_back(examples: Any) -> bool:
    """Whether a shuffle buffer is among the steps: states of `datasets` do not have the rows in it."""
    if isinstance(examples, ReplayedExamples):
        return False  # a shard that is cut again
    if isinstance(examples, BufferShuffledExamplesIterable):
        return True
    return any(map(holds_rows_back, sources_of(examples)))


class ReplayedExamples(WrappedExamples):
    """The examples of a source, with their count as the state: a resume reads and skips those that were given.

    The order is a function of seed and epoch, so that leads to the same place, at the cost of reading again. Transforms
    after the cut do not run for skipped examples.
    """

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = OpenState(given=0, type=type(self).__name__)
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        yield from self._left_of(lambda: iter(self.source))

    def _iter_arrow(self) -> Iterator[tuple[Any, pa.Table]]:
        yield from self._left_of(lambda: self.source.iter_arrow())

    def _left_of(self, read: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """The rows or tables that were not given yet; keeps the state up to date."""
        state = self._state_dict or self._init_state_dict()
        if state["type"] != type(self).__name__:
            raise CheckpointMismatchError(
                "The state was saved without a shuffle before the cut, and this stream is shuffled before it. "
                "Build the stream with the steps it was saved with."
            )
        self.source._init_state_dict()  # a pass that was begun before would go on in its middle
        for item in islice(read(), state["given"], None):
            state["given"] += 1
            yield item

    def _over(self, source: Any) -> "ReplayedExamples":
        return ReplayedExamples(source)


def shard_hugging_face(dataset: Any, layout: ShardLayout) -> Any:
    """The rows of one shard of an `IterableDataset`: its rows of every file.

    Raises:
        ConfigError: a shuffle without a seed.
    """
    examples = dataset._ex_iterable
    if layout.num_shards > 1 and _is_unseeded(examples):
        raise ConfigError(
            "A shuffle before streaming_shard has no seed, so every rank would read another order, and rows would be "
            "lost and repeated. Give all ranks the same seed below 2**64, as in shuffle(seed=0)."
        )
    if holds_rows_back(examples):
        examples = ReplayedExamples(examples)
    return _with_examples(dataset, ShardExamples(examples, layout))


def _with_examples(dataset: Any, examples: Any) -> Any:
    return datasets.IterableDataset(
        ex_iterable=examples,
        info=dataset.info.copy(),
        split=dataset.split,
        formatting=dataset._formatting,
        distributed=deepcopy(dataset._distributed),
        token_per_repo_id=dataset._token_per_repo_id,
    )


def _is_unseeded(examples: Any) -> bool:
    """Whether a random step took its seed from the system: numpy takes 128 bits, a user's seed has 64 at most."""
    bits = getattr(getattr(examples, "generator", None), "bit_generator", None)
    entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
    is_own = isinstance(entropy, int) and entropy >= 1 << 64
    return is_own or any(map(_is_unseeded, sources_of(examples)))


class ShardExamples(WrappedExamples):
    """The examples of one shard of another examples iterable, neither decoded nor formatted.

    A cut counts from the start of its source, so all ranks must read the same order, and no step after the cut may
    change what is below it: such a step reads one file, whatever the source has, and cannot reorder the source's.
    Two things do reach the source. The epoch, as it is the same on all ranks: it reorders files and shuffles. And a
    DataLoader worker takes some of the files, once, and cuts them by itself; all ranks must have the same number of
    workers, and batch mode pads or drops once for each worker.
    """

    def __init__(
        self, source: Any, layout: ShardLayout, *, is_reordered: bool = False, is_of_worker: bool = False
    ) -> None:
        """Wraps the examples of all shards.

        Args:
            source: the examples.
            layout: which of them are ours.
            is_reordered: whether an epoch reorders files: not if a `take` or `skip` after the cut forbids it.
            is_of_worker: whether the source has the files of one worker only.
        """
        super().__init__(source)
        self.layout = layout
        self._is_reordered = is_reordered
        self._is_of_worker = is_of_worker

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[Any, pa.Table]]] | None:
        """Tables instead of rows where the source has them and the cut needs no look ahead."""
        can_cut_tables = isinstance(self.layout, StridedLayout) and self.layout.tail is TailPolicy.KEEP
        return self._iter_arrow if can_cut_tables and self.source.iter_arrow else None

    @property
    def num_shards(self) -> int:
        """1, but in a DataLoader worker the number of workers that files can be divided among."""
        info = get_worker_info()
        if info is None or self._is_of_worker or isinstance(self.layout, ContiguousLayout):
            return 1
        return min(info.num_workers, super().num_shards)

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = OpenState(
            examples_iterable=self.source._init_state_dict(),
            layout=describe_layout(self.layout),
            index=self.layout.index,
            position=0,
            yielded=0,
            held=None,
            type=type(self).__name__,
        )
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        state = self._checked_state()
        reader: ShardReader[tuple[Any, Any]] = ShardReader(
            self.layout,
            position=state["position"],
            yielded=state["yielded"],
            head=self._read_head() if state["yielded"] and self.layout.tail is TailPolicy.PAD else None,
            hold=lambda: self._held_state(reader.position),
        )
        if state["held"] is not None and reader.is_inside_held_run:
            # Loading makes a new state in the source; ours must refer to that one.
            reader.position, held = state["held"]
            state["examples_iterable"] = self.source.load_state_dict(held)
        for example in reader.read(iter(self.source)):
            state.update(position=reader.position, yielded=reader.yielded, held=reader.held)
            yield example
        # After its last item the reader looks for the end of the stream.
        state.update(position=reader.position)

    def _iter_arrow(self) -> Iterator[tuple[Any, pa.Table]]:
        state = self._checked_state()
        # `datasets` counts the tables of a rank above us, and other ranks have other tables.
        check_index(state["index"], self.layout)
        for key, table in self.source.iter_arrow():
            kept = self._kept_rows(state["position"], len(table))
            state["position"] += len(table)
            state["yielded"] += len(kept)
            if len(kept):
                yield key, table.take(kept)

    def _kept_rows(self, position: int, count: int) -> npt.NDArray[np.int64]:
        layout = self.layout
        shard = np.arange(position, position + count) // layout.run_items % layout.num_shards
        return np.flatnonzero(shard == layout.index)

    def _checked_state(self) -> dict[str, Any]:
        # `datasets` merges a loaded state into ours without asking, so ours is checked where it is used.
        state: dict[str, Any] = self._state_dict or self._init_state_dict()
        check_options(state, self.layout, type(self).__name__)
        return state

    def _held_state(self, position: int) -> Any:
        return [position, self.source.state_dict()] if self._state_dict else None

    def _read_head(self) -> list[tuple[Any, Any]]:
        # The state of the source is live: only a copy can be read from the start without moving it.
        fresh = deepcopy(self.source)
        fresh._init_state_dict()
        return list(islice(iter(fresh), group_items(self.layout)))

    def _over(self, source: Any) -> "ShardExamples":
        return ShardExamples(source, self.layout, is_reordered=self._is_reordered, is_of_worker=self._is_of_worker)

    def shuffle_data_sources(self, generator: np.random.Generator) -> "ShardExamples":  # noqa: ARG002
        """Notes that an epoch may reorder the files: this generator may be another one on each rank."""
        return ShardExamples(self.source, self.layout, is_reordered=True, is_of_worker=self._is_of_worker)

    def shift_rngs(self, value: int) -> "ShardExamples":
        """The source in the order of an epoch; a worker changes nothing, as ranks need not use the same for a file."""
        if self._is_of_worker:
            return self
        source = self.source
        if self._is_reordered:
            # As in `datasets`: steps that decide which rows there are, such as `take`, raise this.
            with suppress(DataSourcesShufflingDisallowed):
                source = source.shuffle_data_sources(np.random.default_rng(value))
        return self._over(shift_ex_examples_rngs(source, value))

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> "ShardExamples":
        """The same cut over the files of a DataLoader worker.

        Raises:
            ConfigError: more than one part, and not in a worker.
        """
        if num_shards > 1 and get_worker_info() is None:
            raise ConfigError(
                f"A stream that streaming_shard has cut by rows cannot be cut by files after it (part {index} of "
                f"{num_shards}). Call shard() before streaming_shard, or cut again with streaming_shard."
            )
        is_divided = self.num_shards > 1
        source = self.source.shard_data_sources(num_shards, index, contiguous=contiguous) if is_divided else self.source
        is_of_worker = get_worker_info() is not None
        return ShardExamples(source, self.layout, is_reordered=self._is_reordered, is_of_worker=is_of_worker)
