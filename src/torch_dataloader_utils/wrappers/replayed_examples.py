"""The examples of a Hugging Face stream with a complete state, where the stream's own state is incomplete."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.wrappers.wrapped_examples import OpenState, WrappedExamples, sources_of


def holds_rows_back(examples: Any) -> bool:
    """Whether a shuffle buffer is among the steps: the rows in it are in no state of `datasets`."""
    if isinstance(examples, ReplayedExamples):
        return False  # a shard that is cut again
    if type(examples).__name__ == "BufferShuffledExamplesIterable":
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
