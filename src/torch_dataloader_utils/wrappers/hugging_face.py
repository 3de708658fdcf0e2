"""One shard of a Hugging Face data set, as a data set of the same kind.

Written and tested against `datasets` 5.2. Its public `filter` and `map` would decode and convert every row of every
shard before the cut; an examples iterable of our own does not. That interface is private to `datasets`; all use of it
is in this module, in chained_examples.py, in replayed_examples.py and in wrapped_examples.py.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.wrappers.chained_examples import ChainedExamples, OpenState, check_index, check_options
from torch_dataloader_utils.wrappers.replayed_examples import ReplayedExamples, holds_rows_back
from torch_dataloader_utils.wrappers.shard_layout import (
    ContiguousLayout,
    ShardLayout,
    StridedLayout,
    Tail,
    describe_layout,
    group_items,
    shard_positions,
)
from torch_dataloader_utils.wrappers.shard_reader import ShardReader
from torch_dataloader_utils.wrappers.wrapped_examples import WrappedExamples, sources_of

# Steps of a stream under which dealing out files deals out the same rows. `take`, `skip` and `interleave_datasets`
# choose other rows when files are dealt out first, so they and all unknown steps are sharded item by item.
_FILE_SHARDABLE = {
    "ExamplesIterable",
    "ArrowExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
    "MappedExamplesIterable",
    "FilteredExamplesIterable",
    "FormattedExamplesIterable",
    "VerticallyConcatenatedMultiSourcesExamplesIterable",
    "InterleavedShardsExamplesIterable",
    "BufferShuffledExamplesIterable",
    "ChainedExamples",
    "ReplayedExamples",
}


def shard_hugging_face(dataset: Any, layout: ShardLayout, *, shard_files: bool) -> Any:
    """The rows of one shard.

    A map-style data set gives a selection of its rows. With `shard_files`, which only sample mode may ask for, a
    stream of F ≥ num_shards files gives file `index`, `index + num_shards`, … whole, as `split_dataset_by_node` deals
    them; each of the F mod num_shards files left over is shared, every shard taking its items of it in turn. Else all
    items are dealt in turn.

    10 rows in files of 4, 3 and 3, two shards: 0 1 2 3 7 9 and 4 5 6 8.
    """
    if isinstance(dataset, datasets.Dataset):
        return dataset.select(shard_positions(layout, len(dataset)))
    examples = dataset._ex_iterable
    if holds_rows_back(examples):
        examples = ReplayedExamples(examples)
    if shard_files and examples.num_shards >= layout.num_shards and _is_file_shardable(examples):
        return _with_examples(dataset, _deal_files(examples, layout))
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


def _is_file_shardable(examples: Any) -> bool:
    if type(examples).__name__ not in _FILE_SHARDABLE:
        return False
    # Row numbers would start again in every shard, and every shard would drop its own last batch.
    if getattr(examples, "with_indices", False) or getattr(examples, "drop_last_batch", False):
        return False
    return all(map(_is_file_shardable, sources_of(examples)))


def _deal_files(examples: Any, layout: ShardLayout) -> Any:
    """Whole files for this shard, then its items of each file that is left over."""
    num_shards, index = layout.num_shards, layout.index
    num_whole, num_left = divmod(examples.num_shards, num_shards)
    mine = examples.shard_data_sources(num_shards, index, contiguous=False)
    if num_left == 0:
        return ChainedExamples([mine], layout)
    # The first num_left shards hold one file more than the others: the last one of each is left over.
    whole = _all_but_last_file(mine) if index < num_left else [mine]
    # One cut for each file, not one over all: it stays right if files are reordered or dealt to workers.
    shared = [
        ShardExamples(
            examples.shard_data_sources(num_shards, owner, contiguous=False).shard_data_sources(
                num_whole + 1, num_whole, contiguous=True
            ),
            layout,
        )
        for owner in range(num_left)
    ]
    return ChainedExamples([*whole, *shared], layout)


def _all_but_last_file(examples: Any) -> list[Any]:
    """All files but the last, as at most log2(files) + 1 pieces: `datasets` can only cut into equal parts."""
    pieces = []
    while examples.num_shards > 1:
        pieces.append(examples.shard_data_sources(2, 0, contiguous=True))
        examples = examples.shard_data_sources(2, 1, contiguous=True)
    return pieces


class ShardExamples(WrappedExamples):
    """The examples of one shard of another examples iterable, neither decoded nor formatted.

    Under DataLoader workers `datasets` first deals the files to the workers, and each worker cuts its own part; all
    ranks must have the same number of workers, and batch mode pads or drops once for each worker.
    """

    def __init__(self, ex_iterable: Any, layout: ShardLayout) -> None:
        """Wraps the examples of all shards."""
        super().__init__(ex_iterable)
        self.layout = layout

    @property
    def iter_arrow(self) -> Callable[[], Iterator[tuple[Any, pa.Table]]] | None:
        """Tables instead of rows where the source has them and the cut needs no look ahead."""
        can_cut_tables = isinstance(self.layout, StridedLayout) and self.layout.tail is Tail.KEEP
        return self._iter_arrow if can_cut_tables and self.ex_iterable.iter_arrow else None

    @property
    def num_shards(self) -> int:
        """Files that workers can share: those of the source, but one for a span, which cannot be cut by files."""
        return 1 if isinstance(self.layout, ContiguousLayout) else super().num_shards

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = OpenState(
            examples_iterable=self.ex_iterable._init_state_dict(),
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
            head=self._read_head() if state["yielded"] and self.layout.tail is Tail.PAD else None,
            hold=lambda: self._held_state(reader.position),
        )
        if state["held"] is not None and reader.is_inside_held_run:
            # Loading makes a new state in the source; ours must refer to that one.
            reader.position, held = state["held"]
            state["examples_iterable"] = self.ex_iterable.load_state_dict(held)
        for example in reader.read(iter(self.ex_iterable)):
            state.update(position=reader.position, yielded=reader.yielded, held=reader.held)
            yield example
        # Behind its last item the reader looks for the end of the stream.
        state.update(position=reader.position)

    def _iter_arrow(self) -> Iterator[tuple[Any, pa.Table]]:
        state = self._checked_state()
        # `datasets` counts the tables of a rank above us, and other ranks have other tables.
        check_index(state["index"], self.layout)
        for key, table in self.ex_iterable.iter_arrow():
            kept = self._kept_rows(state["position"], len(table))
            state["position"] += len(table)
            state["yielded"] += len(kept)
            if len(kept):
                yield key, table.take(kept)

    def _kept_rows(self, position: int, count: int) -> npt.NDArray[np.int64]:
        layout = self.layout
        turn = np.arange(position, position + count) // layout.run_items % layout.num_shards
        return np.flatnonzero(turn == layout.index)

    def _checked_state(self) -> dict[str, Any]:
        # `datasets` merges a loaded state into ours without asking, so ours is checked where it is used.
        state: dict[str, Any] = self._state_dict or self._init_state_dict()
        check_options(state, self.layout, type(self).__name__)
        return state

    def _held_state(self, position: int) -> Any:
        return [position, self.ex_iterable.state_dict()] if self._state_dict else None

    def _read_head(self) -> list[tuple[Any, Any]]:
        # The state of the source is live: only a copy can be read from the start without moving it.
        fresh = deepcopy(self.ex_iterable)
        fresh._init_state_dict()
        return list(islice(iter(fresh), group_items(self.layout)))

    def shuffle_data_sources(self, generator: np.random.Generator) -> "ShardExamples":
        """Files in another order, the same on every shard because the generator is."""
        return ShardExamples(self.ex_iterable.shuffle_data_sources(generator), self.layout)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> "ShardExamples":
        """The same cut over some of the files.

        Raises:
            ConfigError: more than one part of a span.
        """
        if isinstance(self.layout, ContiguousLayout):
            if num_shards > 1:
                raise ConfigError("A contiguous shard of a stream cannot be cut by files. Shard in turn instead.")
            return self
        return ShardExamples(self.ex_iterable.shard_data_sources(num_shards, index, contiguous=contiguous), self.layout)

    def reshard_data_sources(self) -> "ShardExamples":
        """The same cut of the source, whose files are divided more finely."""
        return ShardExamples(self.ex_iterable.reshard_data_sources(), self.layout)
