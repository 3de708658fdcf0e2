"""Cut one shard out of a Hugging Face stream, as a stream of the same kind that can resume.

Written and tested against `datasets` 5.1 and 5.2. The public `filter` and `map` would decode and convert every row of
every shard before the cut (15 µs a row instead of 1); an examples iterable of our own does not. Examples iterables are
private to `datasets`: this module alone uses them, and fails to import when `datasets` renames a class.
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
    """Return the examples iterables that an examples iterable wraps; an empty list if it reads files itself."""
    if hasattr(examples, "source"):
        return [examples.source]
    inner = getattr(examples, "ex_iterables", None) or [getattr(examples, "ex_iterable", None)]
    return [each for each in inner if each is not None]


class WrappedExamples(_BaseExamplesIterable):  # type: ignore[misc]
    """Examples iterable with the columns of another examples iterable; subclasses decide which examples are given.

    Attributes:
        source: the wrapped examples iterable. Not named `ex_iterable`: `datasets` follows attributes of this name, to
            change the random state of shuffles in each worker.
    """

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.source = source

    @property
    def is_typed(self) -> bool:

        return bool(self.source.is_typed)

    @property
    def features(self) -> Any:

        return self.source.features

    @property
    def num_shards(self) -> int:
        """Number of files of the source, which workers share."""
        return int(self.source.num_shards)

    @property
    def sleep_on_threads_shutdown(self) -> bool:

        return bool(self.source.sleep_on_threads_shutdown)

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[Any, pa.Table]]] | None:
        """Function that yields tables instead of rows, or None if the source yields rows only."""
        return self._iter_arrow if self.source.iter_arrow else None

    @abstractmethod
    def _iter_arrow(self) -> Iterator[tuple[Any, pa.Table]]:
        """Yield the examples as tables."""

    @abstractmethod
    def _over(self, source: Any) -> Self:
        """Return a copy that wraps another source."""

    def shuffle_data_sources(self, generator: np.random.Generator) -> Self:
        """Return a copy with the files in another order."""
        return self._over(self.source.shuffle_data_sources(generator))

    def shift_rngs(self, value: int) -> Self:
        """Return a copy that shuffles its source with other random numbers, for an epoch or for a worker."""
        return self._over(shift_ex_examples_rngs(self.source, value))

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Self:
        """Return a copy with some of the files."""
        return self._over(self.source.shard_data_sources(num_shards, index, contiguous=contiguous))

    def reshard_data_sources(self) -> Self:
        """Return a copy that divides the files of the source more finely."""
        return self._over(self.source.reshard_data_sources())


class OpenState(dict[str, Any]):
    """State that accepts any keys, so that a state of other options reaches our check.

    `datasets` merges a loaded state into our state key by key, and fails at the first key that our state lacks.
    """

    def __missing__(self, key: str) -> None:
        return None


def check_options(state: dict[str, Any], layout: ShardLayout, kind: str) -> None:
    """Raise CheckpointMismatchError unless a state was saved with this layout, by examples of this kind."""
    saved, here = (state["layout"], state["type"]), (describe_layout(layout), kind)
    if saved != here:
        raise CheckpointMismatchError(
            f"The state was saved with {saved}, this shard has {here}. Shard with the same options, into as many "
            "shards: a stream cannot resume on another number of ranks."
        )


def check_index(saved: int, layout: ShardLayout) -> None:
    """Raise CheckpointMismatchError unless this very shard saved the state."""
    if saved != layout.index:
        raise CheckpointMismatchError(
            f"The state is of shard {saved} of {layout.num_shards}, this is shard {layout.index}, and the two shards "
            "have different tables. Save a state on every rank, and load each on its own rank."
        )


def holds_rows_back(examples: Any) -> bool:
    """Return whether a step shuffles in a buffer: states of `datasets` lack the rows in the buffer."""
    if isinstance(examples, ReplayedExamples):
        return False  # a shard that is cut again
    if isinstance(examples, BufferShuffledExamplesIterable):
        return True
    return any(map(holds_rows_back, sources_of(examples)))


class ReplayedExamples(WrappedExamples):
    """The examples of a source, with the number of given examples as the state.

    A resume reads the source again and skips the given examples. The order is a function of seed and epoch, so the
    resume arrives at the same example, at the cost of reading again. Transforms after the cut do not run for skipped
    examples.
    """

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = OpenState(given=0, type=type(self).__name__)
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        yield from self._left_of(lambda: iter(self.source))

    def _iter_arrow(self) -> Iterator[tuple[Any, pa.Table]]:
        yield from self._left_of(lambda: self.source.iter_arrow())

    def _left_of(self, read: Callable[[], Iterable[Any]]) -> Iterator[Any]:
        """Yield the rows or tables that were not given yet, and keep the state up to date."""
        state = self._state_dict or self._init_state_dict()
        if state["type"] != type(self).__name__:
            raise CheckpointMismatchError(
                "The state was saved without a shuffle before the cut, and this stream is shuffled before it. "
                "Build the stream with the steps it was saved with."
            )
        self.source._init_state_dict()  # else an earlier pass would continue in its middle
        for item in islice(read(), state["given"], None):
            state["given"] += 1
            yield item

    def _over(self, source: Any) -> "ReplayedExamples":
        return ReplayedExamples(source)


def shard_hugging_face(dataset: Any, layout: ShardLayout) -> Any:
    """Return one shard of an `IterableDataset`: the rows of the shard, of every file.

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
    """Return whether a random step took its seed from the system: numpy takes 128 bits, a user gives 64 at most."""
    bits = getattr(getattr(examples, "generator", None), "bit_generator", None)
    entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
    is_own = isinstance(entropy, int) and entropy >= 1 << 64
    return is_own or any(map(_is_unseeded, sources_of(examples)))


class ShardExamples(WrappedExamples):
    """The examples of one shard of another examples iterable, neither decoded nor formatted.

    A cut counts from the start of its source, so all ranks must read the same order, and no step after the cut may
    change the source: a later step sees one file, whatever the source has, and cannot reorder the files of the source.
    Two things do reach the source. The first is the epoch, which is the same on all ranks: it reorders files and
    shuffles. The second is a DataLoader worker, which takes some of the files, once, and cuts these files alone; all
    ranks must have the same number of workers, and batch mode pads or drops once per worker.
    """

    def __init__(
        self, source: Any, layout: ShardLayout, *, is_reordered: bool = False, is_of_worker: bool = False
    ) -> None:
        """Wrap the examples of all shards.

        Args:
            source: the examples of all shards.
            layout: positions of the examples of this shard.
            is_reordered: whether an epoch reorders files; False if a `take` or `skip` after the cut forbids a reorder.
            is_of_worker: whether the source has the files of one worker only.
        """
        super().__init__(source)
        self.layout = layout
        self._is_reordered = is_reordered
        self._is_of_worker = is_of_worker

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[Any, pa.Table]]] | None:
        """Function that yields tables instead of rows, or None if the source has no tables or the cut looks ahead."""
        can_cut_tables = isinstance(self.layout, StridedLayout) and self.layout.tail is TailPolicy.KEEP
        return self._iter_arrow if can_cut_tables and self.source.iter_arrow else None

    @property
    def num_shards(self) -> int:
        """Number of workers that the files can be divided among in a DataLoader worker, elsewhere 1."""
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
            # Loading makes a new state in the source; our state must refer to the new state.
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
        # `datasets` merges a loaded state into our state unasked, so the check is here, where the state is used.
        state: dict[str, Any] = self._state_dict or self._init_state_dict()
        check_options(state, self.layout, type(self).__name__)
        return state

    def _held_state(self, position: int) -> Any:
        return [position, self.source.state_dict()] if self._state_dict else None

    def _read_head(self) -> list[tuple[Any, Any]]:
        # The source moves when it is read, so the head is read from a copy.
        fresh = deepcopy(self.source)
        fresh._init_state_dict()
        return list(islice(iter(fresh), group_items(self.layout)))

    def _over(self, source: Any) -> "ShardExamples":
        return ShardExamples(source, self.layout, is_reordered=self._is_reordered, is_of_worker=self._is_of_worker)

    def shuffle_data_sources(self, generator: np.random.Generator) -> "ShardExamples":  # noqa: ARG002
        """Note that an epoch may reorder the files. The generator is not used: it may differ from rank to rank."""
        return ShardExamples(self.source, self.layout, is_reordered=True, is_of_worker=self._is_of_worker)

    def shift_rngs(self, value: int) -> "ShardExamples":
        """Return a copy with the source in the order of an epoch.

        In a worker nothing changes: ranks may use different workers for the same file.
        """
        if self._is_of_worker:
            return self
        source = self.source
        if self._is_reordered:
            # As in `datasets`: steps that select rows, such as `take`, raise this error.
            with suppress(DataSourcesShufflingDisallowed):
                source = source.shuffle_data_sources(np.random.default_rng(value))
        return self._over(shift_ex_examples_rngs(source, value))

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> "ShardExamples":
        """Return the same cut over the files of a DataLoader worker.

        Raises:
            ConfigError: more than one part outside of a worker.
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
