"""Read one shard of a torch IterableDataset, a list or a function that returns an iterable, pass by pass."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from torch_dataloader_utils._core.arguments import check_counts, check_epoch
from torch_dataloader_utils._runtime.shared_memory import SharedEpoch
from torch_dataloader_utils._runtime.user_warning import warn_of_earlier_epoch
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigTypeError, of_type
from torch_dataloader_utils.wrappers.shard_layout import ShardLayout, TailPolicy, describe_layout, group_items
from torch_dataloader_utils.wrappers.shard_reader import ShardReader
from torch_dataloader_utils.wrappers.stateful import Stateful

ItemT = TypeVar("ItemT")


class StreamSource(Generic[ItemT]):
    """Source of a stream: an iterable, or a function that returns an iterable.

    The state is the iterator's state if the iterator has a state, else the iterable's state, as in torchdata. If
    neither has a state, the state is None, and a resume iterates from the start.
    """

    def __init__(self, source: Iterable[ItemT] | Callable[[], Iterable[ItemT]]) -> None:
        self._source = source
        self._items: Iterator[ItemT] = iter(())
        self._unopened_state: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # A pass in progress, often a generator, cannot be copied or sent to a worker.
        return {"_source": self._source, "_items": iter(()), "_unopened_state": None}

    def __len__(self) -> int:
        """Return the length of the source; a source without a length raises TypeError."""
        return len(self._source)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """Name of the source in messages."""
        return type(self._source).__name__

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch of the next pass on to the source, if the source takes epochs."""
        if hasattr(self._source, "set_epoch"):
            self._source.set_epoch(epoch)
        elif isinstance(generator := getattr(self._source, "generator", None), torch.Generator):
            # accelerate's convention for a data set that shuffles with a generator of its own.
            generator.manual_seed(epoch)

    def open(self, state: Any = None) -> Iterator[ItemT]:
        """Open a new pass, from a state that `state_dict` gave, or from the start."""
        state, self._unopened_state = copy.deepcopy(state), None
        self._items = self._iterate()
        # `state_dict` asks the iterator first, then the iterable.
        if state is not None and isinstance(self._items, Stateful):
            self._items.load_state_dict(state)
        elif state is not None and isinstance(self._source, Stateful):
            self._source.load_state_dict(state)
            self._items = self._iterate()
        return self._items

    def _iterate(self) -> Iterator[ItemT]:
        # An iterable may also be callable (a Hugging Face or torch pipeline object): iterating it wins.
        items = self._source if isinstance(self._source, Iterable) else self._source()
        if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
            raise ConfigTypeError(f"The function of the stream gave {of_type(items)}: return an iterable.")
        return iter(items)

    def resume(self, state: Any) -> Iterator[ItemT]:
        """Return a pass from a state, opened when its first item is asked for.

        A source keeps a loaded state until the source is read. If the state were loaded at once and the pass never
        read, the next pass would start at the loaded state.
        """
        self._unopened_state = state
        return self._open_later(state)

    def state_dict(self) -> Any:
        """Return the state of the last pass; None if neither the iterator nor the source has a state."""
        if self._unopened_state is not None:
            return copy.deepcopy(self._unopened_state)
        for candidate in (self._items, self._source):
            if isinstance(candidate, Stateful):
                return copy.deepcopy(candidate.state_dict())
        return None

    def _open_later(self, state: Any) -> Iterator[ItemT]:
        yield from self.open(state)


_STATE_VERSION = 1
_STATE_KEYS = {"version", "layout", "worker", "epoch", "yielded", "position", "source", "is_finished"}


class ShardedStream(IterableDataset[ItemT]):
    """One shard of a source that cannot shard itself; made by `streaming_shard`.

    Every pass walks the source and gives the items of this shard. Items of other shards are skipped untouched, so a
    transform on this data set runs for the items of this shard only.

    Workers: DataLoader worker w of W takes the runs w, w + W, … of the shard, unless `source_splits_workers` says that
    the source gives every worker its own part. In nested shards, the outermost shard divides among the workers.

    State: of constant size, and JSON if the state of the source is JSON. Loading a state steps a plain source forward
    without giving items; a source (or iterator) with `state_dict` and `load_state_dict` loads its own state.
    """

    def __init__(
        self,
        source: Iterable[ItemT] | Callable[[], Iterable[ItemT]],
        layout: ShardLayout,
        *,
        source_splits_workers: bool = False,
    ) -> None:
        """Wrap a source.

        Args:
            source: iterable that starts a new pass with every `iter` (the first `iter` after `load_state_dict` goes on
                from the state), or a function that returns an iterable.
            layout: positions of the items of this shard.
            source_splits_workers: whether the source already gives each DataLoader worker its own part.
        """
        # A shard of a shard: the outer shard divides among the workers, so the inner shard must not.
        self._source = StreamSource(source.all_workers if isinstance(source, ShardedStream) else source)
        self._layout = layout
        self._source_splits_workers: bool = source_splits_workers or (
            isinstance(source, ShardedStream) and source._source_splits_workers
        )
        self._epoch = SharedEpoch()
        self._pending: dict[str, Any] | None = None
        self._reader: ShardReader[ItemT] | None = None
        self._reading_epoch = 0
        self._is_finished = False

    def __getstate__(self) -> dict[str, Any]:
        # A copy begins at the loaded state or at the start, not in the middle of our pass.
        return {**self.__dict__, "_reader": None, "_is_finished": False}

    @property
    def all_workers(self) -> "ShardedStream[ItemT]":
        """Copy of this shard that DataLoader workers do not divide, with its own passes over the source."""
        whole = copy.copy(self)
        whole._source = copy.copy(self._source)
        whole._source_splits_workers = True
        return whole

    def __len__(self) -> int:
        """Return the number of items of this shard over all its workers, padding included.

        Raises:
            ConfigTypeError: the source has no length (a TypeError, as `len` gives it).
        """
        try:
            total = len(self._source)
        except TypeError as error:
            raise ConfigTypeError(
                f"{self._source.name} has no length, so its shards have none. Iterate instead."
            ) from error
        return self._layout.length(total)

    def __iter__(self) -> Iterator[ItemT]:
        """Yield the items of this shard, from the loaded state or from the start.

        Raises:
            CheckpointMismatchError: the loaded state is of another worker, or of a source that is already further.
        """
        state = self._pending
        if state is not None and state["is_finished"]:
            # Consumed here, not with the first item: torchdata makes one iterator that it never reads, then a second.
            self._check_worker(state)
            self._pending, self._reading_epoch, self._is_finished = None, self._epoch.value, True
            return iter(())
        return self._read()

    def _read(self) -> Iterator[ItemT]:
        state, self._pending = self._pending, None
        self._reading_epoch, self._is_finished = self._epoch.value, False
        self._source.set_epoch(self._reading_epoch)
        reader, items = self._start() if state is None or not state["yielded"] else self._resume(state)
        self._reader = reader
        yield from reader.read(items)
        if self._reader is reader:
            self._reader, self._is_finished = None, True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, also in persistent workers.

        If it is the epoch of a loaded state, the next pass still goes on from the state.

        Raises:
            ConfigTypeError, ConfigError: not a whole number, or one below 0.
        """
        self._epoch.value = check_epoch(epoch)
        if self._pending is not None and self._pending["epoch"] != epoch:
            warn_of_earlier_epoch(self._pending["epoch"], epoch)
            self._pending = None
        if self._reading_epoch != epoch:
            self._reader = None
        self._is_finished = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the last pass; after the end of the pass, the start of the next epoch.

        In a DataLoader worker the state after the end is the end itself: other workers may still be reading, and no
        worker begins the next epoch alone.
        """
        if self._pending is not None:
            return copy.deepcopy(self._pending)
        reader = self._reader
        epoch, yielded, position, source, is_finished = self._epoch.value, 0, 0, None, False
        if reader is not None:
            epoch, yielded = self._reading_epoch, reader.yielded
            is_held = reader.is_inside_held_run
            position = reader.run_start if is_held else reader.position
            if not reader.has_ended:  # the state of an ended source may be its next epoch: walk the source instead
                source = reader.held if is_held else self._source.state_dict()
        elif self._is_finished and epoch == self._reading_epoch:
            is_finished = get_worker_info() is not None
            epoch += not is_finished
        return {
            "version": _STATE_VERSION,
            "layout": describe_layout(self._layout),
            "worker": list(self._worker()),
            "epoch": epoch,
            "yielded": yielded,
            "position": position,
            "source": source,
            "is_finished": is_finished,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on from a state. The index of this shard stays.

        Raises:
            CheckpointMismatchError: a state of other options, of another number of shards, or of something else.
        """
        layout = describe_layout(self._layout)
        if not isinstance(state_dict, Mapping):
            raise CheckpointMismatchError(
                f"Not a streaming_shard state: it is {of_type(state_dict)}. Load what state_dict returned."
            )
        if state_dict.keys() != _STATE_KEYS or state_dict["version"] != _STATE_VERSION:
            raise CheckpointMismatchError(
                f"Not a streaming_shard state of version {_STATE_VERSION}: it has the keys {sorted(state_dict)}, "
                f"wanted are {sorted(_STATE_KEYS)}. Load what state_dict of a shard returned."
            )
        if state_dict["layout"] != layout:
            raise CheckpointMismatchError(
                f"The state was saved with {state_dict['layout']}, this shard has {layout}. Shard with the same "
                "options."
            )
        check_counts(state_dict, "epoch", "yielded", "position")
        if not isinstance(state_dict["is_finished"], bool):
            raise CheckpointMismatchError(
                f"The state says is_finished={state_dict['is_finished']!r}, which is neither True nor False. Load what "
                "state_dict returned."
            )
        self._pending = copy.deepcopy(state_dict)
        self._reader, self._is_finished = None, False
        self._epoch.value = state_dict["epoch"]

    def _worker(self) -> tuple[int, int]:
        info = get_worker_info()
        return (0, 1) if info is None or self._source_splits_workers else (info.id, info.num_workers)

    def _check_worker(self, state: dict[str, Any]) -> tuple[int, int]:
        worker = self._worker()
        if state["worker"] != list(worker):
            raise CheckpointMismatchError(
                f"The state is of worker (number, of how many) {state['worker']}, this is {list(worker)}. Load it with "
                "the number of workers it was saved with."
            )
        return worker

    def _start(self) -> tuple[ShardReader[ItemT], Iterator[ItemT]]:
        reader: ShardReader[ItemT] = ShardReader(self._layout, worker=self._worker(), hold=self._source.state_dict)
        return reader, self._source.open()

    def _resume(self, state: dict[str, Any]) -> tuple[ShardReader[ItemT], Iterator[ItemT]]:
        worker = self._check_worker(state)
        head = None
        if self._layout.tail is TailPolicy.PAD:
            # Padding repeats the first group of the stream. The state does not carry this group: read it again.
            head = list(islice(self._source.open(), group_items(self._layout)))
        reader = ShardReader(
            self._layout,
            worker=worker,
            position=0 if state["source"] is None else state["position"],
            yielded=state["yielded"],
            head=head,
            hold=self._source.state_dict,
        )
        return reader, self._source.resume(state["source"])
