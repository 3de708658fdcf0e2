"""Read the items of one shard in one pass over a stream, and keep the position for states."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, Generic, TypeVar

from torch_dataloader_utils.errors import CheckpointMismatchError, RowCountError
from torch_dataloader_utils.wrappers.shard_layout import ShardLayout, StridedLayout, TailPolicy, group_items, head_items

ItemT = TypeVar("ItemT")

_END: Any = object()


class ShardReader(Generic[ItemT]):
    """Reader of the runs of one shard, or of one worker of a shard, in order.

    With W workers, worker w takes the runs w, w + W, w + 2W, … Runs are batches, so a DataLoader with the batch size
    `run_items` asks its workers round robin and gives the batches in the order of a single process.

    Memory: one run with `TailPolicy.DROP` (a run may be given only after its whole group was seen), one group with
    `TailPolicy.PAD`, else nothing.

    Attributes:
        layout: positions of the items of the shard.
        worker: (id, number of workers) of the worker that reads.
        position: number of items taken from the stream so far.
        yielded: number of items given so far. An item is counted before it is given, so a suspended reader has counted
            the last item.
        has_ended: whether the stream gave fewer items than were asked for; after the end only padding is given.
        held: the result of `hold` at the start of the current run (`TailPolicy.DROP` on a strided layout only).
    """

    def __init__(
        self,
        layout: ShardLayout,
        *,
        worker: tuple[int, int] = (0, 1),
        position: int = 0,
        yielded: int = 0,
        head: list[ItemT] | None = None,
        hold: Callable[[], Any],
    ) -> None:
        """Prepare a reader that continues from the place of an earlier reader.

        Args:
            layout: positions of the items of the shard.
            worker: (id, number of workers) of the worker that reads.
            position: position of the first item that the stream will give.
            yielded: number of items that were given before.
            head: the first group of the stream; needed with `TailPolicy.PAD` unless position is 0.
            hold: function called before a run that a resume may have to read again; returns the state of the stream.
        """
        self.layout = layout
        self.position = position
        self.yielded = yielded
        self.held: Any = None
        self.worker = worker
        self._head = head
        self._hold = hold
        self.has_ended = False
        self._is_holding = layout.tail is TailPolicy.DROP and isinstance(layout, StridedLayout)

    @property
    def is_inside_held_run(self) -> bool:
        """Whether a resume has to start from `held` instead of where the stream stands."""
        return self._is_holding and self.yielded % self.layout.run_items != 0

    @property
    def run_start(self) -> int:
        """Position of the first item of the run that comes next or is being given."""
        worker, num_workers = self.worker
        return self.layout.run_bounds(worker + num_workers * (self.yielded // self.layout.run_items))[0]

    def read(self, items: Iterator[ItemT]) -> Iterator[ItemT]:
        """Yield the items of this shard that have not been given yet.

        Raises:
            CheckpointMismatchError: the stream is already past the next item of this shard.
            RowCountError: a stream ended before its declared length, or went on after it (raised by the last shard).
        """
        yield from self._read_runs(items)
        if self.layout.total is not None and self.layout.index == self.layout.num_shards - 1:
            self._check_end(items, self.layout.total)

    def _read_runs(self, items: Iterator[ItemT]) -> Iterator[ItemT]:
        total = self.layout.total
        if self.layout.tail is TailPolicy.PAD and self._head is None:
            items = self._remember_head(items)
        for run, offset in self._runs():
            start, stop = self.layout.run_bounds(run)
            if start + offset >= stop:
                return
            if total is not None and start + offset >= total:
                break
            yield from self._give_held(items, run, offset) if self._is_holding else self._give(items, run, offset)
            if self.has_ended:
                break
        yield from self._give_padding(items)

    def _remember_head(self, items: Iterator[ItemT]) -> Iterator[ItemT]:
        """Yield the items and keep the first group as the head.

        Items are taken one by one, so that the source never runs ahead of `position`.
        """
        self._head = head = []
        for item in islice(items, group_items(self.layout)):
            head.append(item)
            yield item
        yield from items

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield (run, number of its items already given) without end; both follow from `yielded` alone."""
        worker, num_workers = self.worker
        while True:
            done, offset = divmod(self.yielded, self.layout.run_items)
            yield worker + num_workers * done, offset

    def _give(self, items: Iterator[ItemT], run: int, offset: int) -> Iterator[ItemT]:
        start, stop = self.layout.run_bounds(run)
        if self.layout.total is not None:
            stop = min(stop, self.layout.total)
        if self._skip_to(items, start + offset):
            for item in islice(items, stop - start - offset):
                self.position += 1
                self.yielded += 1
                yield item
        self.has_ended = self.position < stop
        if self.has_ended:
            self._check_total()

    def _give_held(self, items: Iterator[ItemT], run: int, offset: int) -> Iterator[ItemT]:
        start, stop = self.layout.run_bounds(run)
        if not self._skip_to(items, start):
            self.has_ended = True
            return
        self.held = self._hold()
        kept = list(islice(items, stop - start))
        self.position += len(kept)
        group = group_items(self.layout)
        if not self._skip_to(items, (start // group + 1) * group):
            self.has_ended = True
            return
        for item in kept[offset:]:
            self.yielded += 1
            yield item

    def _give_padding(self, items: Iterator[ItemT]) -> Iterator[ItemT]:
        total = self.position if self.layout.total is None else self.layout.total
        if self.layout.tail is not TailPolicy.PAD or total == 0:
            return
        size = head_items(self.layout, total)
        # A span of padding only has read nothing yet.
        if not self._skip_to(items, max(self.position, size)):
            self._check_total()
        head = self._head or []
        for run, offset in self._runs():
            if run >= self.layout.num_runs(total):
                return
            start, stop = self.layout.run_bounds(run)
            for position in range(start + offset, stop):
                self.yielded += 1
                yield head[(position - total) % size]

    def _check_total(self) -> None:
        if self.layout.total is not None:
            raise RowCountError(
                f"The data set ended after {self.position} items, {self.layout.total} were declared. Give the right "
                "length, or shard without contiguous=True."
            )

    def _check_end(self, items: Iterator[ItemT], total: int) -> None:
        if not self._skip_to(items, total):
            self._check_total()
        if next(items, _END) is not _END:
            raise RowCountError(
                f"The data set has more than the {total} items that were declared, and no shard gives the rest. Give "
                "the right length, or shard without contiguous=True."
            )

    def _skip_to(self, items: Iterator[ItemT], target: int) -> bool:
        """Drop items until `position` is `target`. Return False if the stream ends before."""
        if target < self.position:
            raise CheckpointMismatchError(
                f"The source of this state is at item {self.position}, shard {self.layout.index} of "
                f"{self.layout.num_shards} goes on at item {target}. Load the state of this shard or of a lower shard."
            )
        skipped = count()
        deque(zip(islice(items, target - self.position), skipped, strict=False), maxlen=0)
        self.position += next(skipped)
        return self.position == target
